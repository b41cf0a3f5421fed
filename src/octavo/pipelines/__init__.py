"""`octavo.pipeline(task, model)`: the shape of Hugging Face's pipelines over an LLM."""

from __future__ import annotations

import re
from typing import Any, Literal, overload

from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.llm import LLM
from octavo.pipelines.question_answering import QuestionAnsweringPipeline
from octavo.pipelines.text2text import RESULTS, Text2TextPipeline
from octavo.pipelines.text_generation import TextGenerationPipeline, sampling_params

__all__ = [
    "QuestionAnsweringPipeline",
    "Text2TextPipeline",
    "TextGenerationPipeline",
    "pipeline",
    "sampling_params",
]

WHERE_IT_IS = {"device": ("cpu",), "device_map": ("auto", "cpu", None)}
"""What says of a model that is loaded already where to load it."""
_TRANSLATION = re.compile(r"translation_[^_]+_to_[^_]+")


@overload
def pipeline(
    task: Literal["text-generation"], model: str | LLM = "smollm2", **engine: Any
) -> TextGenerationPipeline: ...
@overload
def pipeline(
    task: Literal["question-answering"], model: str | LLM = "smollm2", **engine: Any
) -> QuestionAnsweringPipeline: ...
@overload
def pipeline(task: str | None = None, model: str | LLM = "smollm2", **engine: Any) -> Text2TextPipeline: ...
def pipeline(
    task: str | None = None, model: str | LLM = "smollm2", **engine: Any
) -> TextGenerationPipeline | Text2TextPipeline | QuestionAnsweringPipeline:
    """A callable for the task.

    Args:
        task: "text-generation", which None stands for; "question-answering"; for encoder-decoder models
            "text2text-generation", "summarization", "translation" or "translation_xx_to_yy", xx and yy
            being what the model's files call languages.
        model: an alias, a .gguf file, a folder with config.json or a hub id; or an LLM that exists.
        engine: as LLM takes them, for a model given by name. device may be a number, as transformers count
            GPUs (-1: the CPU); model_kwargs are more of the same.

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
    if not isinstance(model, LLM):
        model = LLM(model, **engine)
    elif engine := {name: value for name, value in engine.items() if value not in WHERE_IT_IS.get(name, ())}:
        name = next(iter(engine))
        raise InvalidRequestError(f"{name} belongs to LLM(...), which is already built", name)
    if task == TextGenerationPipeline.task:
        return TextGenerationPipeline(model)
    if task == QuestionAnsweringPipeline.task:
        return QuestionAnsweringPipeline(model)
    return Text2TextPipeline(model, task)


def _device(given: object) -> str:
    """A device as LLM names it, of a number or of torch's own."""
    if isinstance(given, int) and not isinstance(given, bool):
        return "cpu" if given < 0 else f"cuda:{given}"
    return str(given)
