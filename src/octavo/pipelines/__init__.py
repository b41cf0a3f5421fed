"""`octavo.pipeline(task, model)`: the shape of Hugging Face's pipelines over an LLM."""

from __future__ import annotations

import re
from typing import Any, Literal, overload

from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.llm import LLM
from octavo.pipelines.text2text import RESULTS, Text2TextPipeline
from octavo.pipelines.text_generation import TextGenerationPipeline, sampling_params

__all__ = ["Text2TextPipeline", "TextGenerationPipeline", "pipeline", "sampling_params"]

_TRANSLATION = re.compile(r"translation_[^_]+_to_[^_]+")


@overload
def pipeline(
    task: Literal["text-generation"], model: str | LLM = "smollm2", **engine: Any
) -> TextGenerationPipeline: ...
@overload
def pipeline(task: str, model: str | LLM = "smollm2", **engine: Any) -> Text2TextPipeline: ...
def pipeline(
    task: str, model: str | LLM = "smollm2", **engine: Any
) -> TextGenerationPipeline | Text2TextPipeline:
    """A callable for the task.

    Args:
        task: "text-generation"; for encoder-decoder models "text2text-generation", "summarization",
            "translation" or "translation_xx_to_yy", xx and yy being what the model's files call languages.
        model: an alias, a .gguf file, a folder with config.json or a hub id; or an LLM that exists.
        engine: as LLM takes them, for a model given by name. device and device_map are accepted
            where they ask for what happens anyway ("cpu", -1, "auto").

    Raises:
        UnsupportedError: another task, or an argument that Octavo does not know.
        InvalidRequestError: the model is of the other kind.
    """
    if task != TextGenerationPipeline.task and task not in RESULTS and not _TRANSLATION.fullmatch(task):
        tasks = ", ".join([TextGenerationPipeline.task, *RESULTS, "translation_xx_to_yy"])
        raise UnsupportedError(f"no pipeline for task {task!r}; there is: {tasks}", "task")
    for name, fine in (("device", ("cpu", -1, None)), ("device_map", ("auto", "cpu", None))):
        if engine.pop(name, None) not in fine:
            raise UnsupportedError(f"{name} is not for the caller to choose: leave it out", name)
    if not isinstance(model, LLM):
        model = LLM(model, **engine)
    elif engine:
        name = next(iter(engine))
        raise InvalidRequestError(f"{name} belongs to LLM(...), which is already built", name)
    return (
        TextGenerationPipeline(model)
        if task == TextGenerationPipeline.task
        else Text2TextPipeline(model, task)
    )
