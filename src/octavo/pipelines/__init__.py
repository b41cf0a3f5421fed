"""`octavo.pipeline(task, model)`: the shape of Hugging Face's pipelines over an LLM."""

from __future__ import annotations

import os
import re
from typing import Any, Literal, overload

from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.llm import LLM
from octavo.pipelines.question_answering import QuestionAnsweringPipeline
from octavo.pipelines.text2text import RESULTS, Text2TextPipeline
from octavo.pipelines.text_generation import TextGenerationPipeline, limited, sampling_params

__all__ = [
    "QuestionAnsweringPipeline",
    "Text2TextPipeline",
    "TextGenerationPipeline",
    "limited",
    "pipeline",
    "sampling_params",
]

WHERE_IT_IS = {"device": ("cpu",), "device_map": ("auto", "cpu", None)}
"""What says of a model that is loaded already where to load it."""
_TRANSLATION = re.compile(r"translation_[^_]+_to_[^_]+")


@overload
def pipeline(
    task: Literal["text-generation"], model: Any = "smollm2", **engine: Any
) -> TextGenerationPipeline: ...
@overload
def pipeline(
    task: Literal["question-answering"], model: Any = "smollm2", **engine: Any
) -> QuestionAnsweringPipeline: ...
@overload
def pipeline(task: str | None = None, model: Any = "smollm2", **engine: Any) -> Text2TextPipeline: ...
def pipeline(
    task: str | None = None, model: Any = "smollm2", **engine: Any
) -> TextGenerationPipeline | Text2TextPipeline | QuestionAnsweringPipeline:
    """A callable for the task.

    Args:
        task: "text-generation", which None stands for; "question-answering"; for encoder-decoder models
            "text2text-generation", "summarization", "translation" or "translation_xx_to_yy", xx and yy
            being what the model's files call languages.
        model: an alias, a .gguf file, a folder with config.json or a hub id; or an LLM that exists, or what
            has one as its `llm`, as octavo.compat's models do.
        engine: as LLM takes them, for a model given by name. device may be a number, as transformers count
            GPUs (-1: the CPU); model_kwargs are more of the same. tokenizer may also be an object, which must
            have the model's tokens.

    Raises:
        UnsupportedError: another task, or an argument that Octavo does not know.
        InvalidRequestError: the model is of the other kind.
    """
    task = TextGenerationPipeline.task if task is None else task
    own = (TextGenerationPipeline.task, QuestionAnsweringPipeline.task)
    if task not in (*own, *RESULTS) and not _TRANSLATION.fullmatch(task):
        tasks = ", ".join([*own, *RESULTS, "translation_xx_to_yy"])
        raise UnsupportedError(f"no pipeline for task {task!r}; there is: {tasks}", "task")
    engine |= engine.pop("model_kwargs", None) or {}
    if (device := engine.pop("device", None)) is not None:
        engine["device"] = _device(device)
    given = engine.pop("tokenizer", None)
    if isinstance(given, str):
        engine["tokenizer"] = given
    model = getattr(model, "llm", model)
    if not isinstance(model, LLM):
        if not isinstance(model, (str, os.PathLike)):
            kind = type(model).__name__
            raise InvalidRequestError(
                f"model must be a name, an LLM or have one as its llm, not {kind}", "model"
            )
        model = LLM(os.fspath(model), **engine)
    elif engine := {name: value for name, value in engine.items() if value not in WHERE_IT_IS.get(name, ())}:
        name = next(iter(engine))
        raise InvalidRequestError(f"{name} belongs to LLM(...), which is already built", name)
    if given is not None and not isinstance(given, str):
        _check_tokens(given, model)
    if task == TextGenerationPipeline.task:
        return TextGenerationPipeline(model)
    if task == QuestionAnsweringPipeline.task:
        return QuestionAnsweringPipeline(model)
    return Text2TextPipeline(model, task)


def _check_tokens(given: Any, llm: LLM) -> None:
    """
    Raises:
        InvalidRequestError: it is no tokenizer, or its tokens are not the model's.
    """
    own, other = llm.get_tokenizer(), getattr(given, "plain", given)
    read = getattr(other, "token_bytes", None)
    if read is None:
        raise InvalidRequestError("tokenizer must be a name, or a tokenizer of octavo's", "tokenizer")
    if other.vocab_size != own.vocab_size or any(
        read(i) != own.token_bytes(i) for i in range(own.vocab_size)
    ):
        raise InvalidRequestError("the tokenizer is another one than the model's", "tokenizer")


def _device(given: object) -> str:
    """A device as LLM names it, of a number or of torch's own."""
    if isinstance(given, int) and not isinstance(given, bool):
        return "cpu" if given < 0 else f"cuda:{given}"
    return str(given)
