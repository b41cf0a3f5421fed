"""Log-probabilities: how many an answer may hold, and how chats and vLLM's prompts show them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from octavo.errors import InvalidRequestError
from octavo.params import Logprob, RequestOutput, RequestOutputKind, SamplingParams
from octavo.server.engine import ServedTokenizer

LogprobsOnePosition = Mapping[int, Logprob]
"""What the engine reports of one position: the drawn token and the likeliest ones, by id."""

MAX_REPORTED = 1 << 19
"""Log-probabilities in one answer. As JSON they take 45 MB; as objects all at a time they would take 180."""


def reported(params: SamplingParams, read: int, drawn: int) -> tuple[int, int]:
    """Log-probabilities of so many tokens of prompts, and of answers."""
    of_prompts, of_answers = params.prompt_logprobs, params.logprobs
    return (
        0 if of_prompts is None else read * (1 + of_prompts),
        0 if of_answers is None else drawn * (1 + of_answers),
    )


def check_reported(params: SamplingParams, lengths: Sequence[int], context: int) -> None:
    """Raise if an answer to prompts of these lengths may hold too many at a time."""
    most = context if params.max_tokens is None else params.max_tokens
    drawn = sum(params.n * max(1, min(most, context - length)) for length in lengths)
    of_prompts, of_answers = reported(params, sum(lengths), drawn)
    limit = MAX_REPORTED
    if params.output_kind is RequestOutputKind.DELTA:  # an event holds what one step drew, or a prompt's echo
        limit, of_answers = MAX_REPORTED // 32, 0
    if of_prompts + of_answers > limit:
        name = "prompt_logprobs" if of_prompts > of_answers else "logprobs"
        raise InvalidRequestError(
            f"{name}: prompts x tokens x (1 + {getattr(params, name)}) are {of_prompts + of_answers} "
            f"log-probabilities, and at most {limit} are taken at once: ask for less, or fewer max_tokens",
            name,
        )


def chat_logprobs(
    tokenizer: ServedTokenizer, token_ids: Sequence[int], logprobs: Sequence[LogprobsOnePosition], top: int
) -> dict[str, Any]:
    """{"content": [{"token", "logprob", "bytes", "top_logprobs"}], "refusal": null}, for dumps_apart()."""
    content = (
        _chat_token(tokenizer, token_id, at[token_id].logprob)
        | {"top_logprobs": [_chat_token(tokenizer, i, value) for i, value in best(at, top)]}
        for token_id, at in zip(token_ids, logprobs, strict=True)
    )
    return {"content": content, "refusal": None}


def _chat_token(tokenizer: ServedTokenizer, token_id: int, logprob: float) -> dict[str, Any]:
    data = tokenizer.token_bytes(token_id)
    text = data.decode("utf-8", errors="replace")
    return {"token": text, "logprob": finite(logprob), "bytes": list(data)}


def prompt_logprobs(output: RequestOutput) -> Iterator[dict[str, Any] | None]:
    """vLLM's list: per token of the prompt {id: {"logprob", "rank", "decoded_token"}}, None for the first."""
    return (
        None
        if at is None
        else {
            str(i): {"logprob": finite(one.logprob), "rank": one.rank, "decoded_token": one.decoded_token}
            for i, one in at.items()
        }
        for at in output.prompt_logprobs or []
    )


def finite(logprob: float) -> float:
    """JSON has no -infinity; OpenAI's stand-in is -9999."""
    return max(logprob, -9999.0)


def best(at: LogprobsOnePosition, top: int) -> list[tuple[int, float]]:
    """The top likeliest tokens as (id, log-probability); ties go to the lower id."""
    ranked = sorted((-value.logprob, token_id) for token_id, value in at.items())
    return [(token_id, -negated) for negated, token_id in ranked[:top]]
