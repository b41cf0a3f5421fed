"""The question-answering pipeline: a language model is asked to quote the answer from a context."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from octavo.checks import items
from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.llm import LLM
from octavo.params import RequestOutput, SamplingParams

Record = dict[str, Any]

PROMPT = "Answer with a few words of the text.\n\nText: {context}\n\nQuestion: {question}\n\nAnswer:"
DEFAULT_ANSWER_TOKENS = 15
"""transformers' max_answer_len, which counts words there."""


class QuestionAnsweringPipeline:
    """Answers questions about contexts: generative, by a prompt, where transformers' own marks a span.

    Calling it returns {"answer", "score", "start", "end"}, or a list of these for several questions. score is
    the geometric mean of the answer's probabilities. start and end are where the context has the answer, and
    None where the model has used other words.
    """

    task = "question-answering"

    def __init__(self, llm: LLM) -> None:
        self.llm = llm

    def __call__(
        self,
        inputs: Mapping[str, str] | Sequence[Mapping[str, str]] | None = None,
        *,
        question: str | Sequence[str] | None = None,
        context: str | Sequence[str] | None = None,
        max_answer_len: int = DEFAULT_ANSWER_TOKENS,
        **arguments: Any,
    ) -> Record | list[Record]:
        """Answer.

        Args:
            inputs: {"question": ..., "context": ...}, or several; or as question and context, texts or lists
                of as many of each.
            max_answer_len: tokens of an answer.

        Raises:
            InvalidRequestError: there is no question or no context to each.
            UnsupportedError: an argument that is not known; it is named.
        """
        for name in arguments:
            raise UnsupportedError(f"the question-answering pipeline does not take {name!r}", name)
        pairs, many = _pairs(inputs, question, context)
        prompts = [PROMPT.format(context=text, question=asked) for asked, text in pairs]
        params = SamplingParams(temperature=0.0, max_tokens=max_answer_len, stop=["\n"], logprobs=0)
        outputs = self.llm.generate(prompts, params, use_tqdm=False)
        records = [_record(output, text) for output, (_, text) in zip(outputs, pairs, strict=True)]
        return records if many else records[0]


def _record(output: RequestOutput, context: str) -> Record:
    completion = output.outputs[0]
    answer = completion.text.strip()
    at = context.find(answer) if answer else -1
    total, count = completion.cumulative_logprob or 0.0, max(1, len(completion.token_ids))
    start, end = (at, at + len(answer)) if at >= 0 else (None, None)
    return {"score": math.exp(total / count), "start": start, "end": end, "answer": answer}


def _pairs(inputs: Any, question: Any, context: Any) -> tuple[list[tuple[str, str]], bool]:
    """(question, context) of each, and whether the caller gave a list of them."""
    if inputs is None:
        many = not isinstance(question, str)
        questions = items("question", "texts", question)
        each = [context] * len(questions) if isinstance(context, str) else context
        contexts = items("context", "texts", each)
    else:
        many = not isinstance(inputs, Mapping)
        every = [inputs] if isinstance(inputs, Mapping) else inputs
        if not isinstance(every, Sequence) or not all(isinstance(one, Mapping) for one in every):
            raise InvalidRequestError("inputs must be {'question': ..., 'context': ...}, or a list of these")
        questions = tuple(one.get("question") for one in every)
        contexts = tuple(one.get("context") for one in every)
    texts = [*questions, *contexts]
    if not texts or len(questions) != len(contexts) or not all(isinstance(t, str) and t for t in texts):
        raise InvalidRequestError("each question is a text and needs a context", "question")
    return list(zip(questions, contexts, strict=True)), many
