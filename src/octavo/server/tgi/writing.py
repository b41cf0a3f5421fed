"""What came of a request, as TGI's clients read it: tokens with texts and log-probabilities, and details."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from octavo.params import CompletionOutput, RequestOutput
from octavo.server.engine import ServedTokenizer
from octavo.server.openai.logprobs import LogprobsOnePosition, best, finite
from octavo.tokenizer import Tokenizer
from octavo.tokenizer.tokenizer import IncrementalDetokenizer

Token = dict[str, Any]


class TokenWriter:
    """Tokens of one completion, in order: {"id", "text", "logprob", "special"}.

    The texts of those that are not special add up to the completion's text: a character that several
    tokens make stands with its last one, and what a stop string cuts off is missing from the last text.

    Args:
        before: ids that the text goes on from.
        top: how many likeliest tokens stand beside each.

    Attributes:
        text: what was written.
    """

    def __init__(self, tokenizer: ServedTokenizer, before: Sequence[int], top: int) -> None:
        self._tokenizer, self._top = tokenizer, top
        self._texts = IncrementalDetokenizer(cast(Tokenizer, tokenizer), before)  # of it, what is served
        self.text = ""

    def add(
        self, ids: Sequence[int], logprobs: Sequence[LogprobsOnePosition], whole: str | None
    ) -> list[tuple[Token, list[Token]]]:
        """(token, the likeliest in its place) of each of these.

        Args:
            whole: the completion's text, where these are its last.
        """
        texts = [self._texts.push(each) for each in ids]
        if whole is not None:
            self._end(ids, texts, whole)
        self.text += "".join(texts)
        return [
            (self._token(token_id, at[token_id].logprob, text), self._likeliest(at))
            for token_id, at, text in zip(ids, logprobs, texts, strict=True)
        ]

    def _end(self, ids: Sequence[int], texts: list[str], whole: str) -> None:
        """The last text is what is left of the whole one."""
        shown = [at for at, each in enumerate(ids) if not self._tokenizer.is_special(each)]
        if shown:
            before = self.text + "".join(texts[: shown[-1]])
            texts[shown[-1]] = whole[len(before) :]

    def _token(self, token_id: int, logprob: float, text: str) -> Token:
        special = self._tokenizer.is_special(token_id)
        written = self._written(token_id) if special else text
        return {"id": token_id, "text": written, "logprob": finite(logprob), "special": special}

    def _likeliest(self, at: LogprobsOnePosition) -> list[Token]:
        return [self._token(i, value, self._written(i)) for i, value in best(at, self._top)]

    def _written(self, token_id: int) -> str:
        return self._tokenizer.token_bytes(token_id).decode("utf-8", errors="replace")


def finish_reason(completion: CompletionOutput) -> str:
    """length, eos_token or stop_sequence."""
    if completion.finish_reason == "length":
        return "length"
    return "stop_sequence" if isinstance(completion.stop_reason, str) else "eos_token"


def ending(completion: CompletionOutput, generated: int, seed: int | None) -> dict[str, Any]:
    """What details begin with. seed: None of a greedy answer."""
    return {"finish_reason": finish_reason(completion), "generated_tokens": generated, "seed": seed}


def sequence(
    tokenizer: ServedTokenizer,
    completion: CompletionOutput,
    before: Sequence[int],
    prefill: list[Token],
    seed: int | None,
    top: int,
) -> dict[str, Any]:
    """The details of one completion; its tokens have log-probabilities."""
    writer = TokenWriter(tokenizer, before, top)
    written = writer.add(completion.token_ids, completion.logprobs or [], completion.text)
    details = ending(completion, len(completion.token_ids), seed) | {
        "prefill": prefill,
        "tokens": [token for token, _ in written],
    }
    return details | ({"top_tokens": [likeliest for _, likeliest in written]} if top else {})


def prefill(tokenizer: ServedTokenizer, output: RequestOutput) -> list[Token]:
    """The prompt's tokens: {"id", "text", "logprob"}; the first one has none, and is not said to have one."""
    if output.prompt_logprobs is None:
        return []
    ids = output.prompt_token_ids
    return [
        {
            "id": token_id,
            "text": tokenizer.token_bytes(token_id).decode("utf-8", errors="replace"),
            "logprob": None if at is None else finite(at[token_id].logprob),
        }
        for token_id, at in zip(ids, output.prompt_logprobs, strict=True)
    ]


def likeliest_first(completions: Iterable[CompletionOutput]) -> list[CompletionOutput]:
    """By their mean log-probability, the highest first."""

    def mean(completion: CompletionOutput) -> float:
        return -(completion.cumulative_logprob or 0.0) / max(len(completion.token_ids), 1)

    return sorted(completions, key=mean)


def times(start: float, end: float, output: RequestOutput, generated: int) -> Mapping[str, str]:
    """The headers of an answer; milliseconds, but for x-compute-time, which is seconds.

    Args:
        start, end: seconds of time.monotonic(), when the request was there and when it was answered.
    """
    arrival = scheduled = start
    if output.metrics is not None:
        arrival = output.metrics.arrival_time
        scheduled = arrival if (first := output.metrics.first_scheduled_time) is None else first
    spans = {
        "total": end - start,
        "validation": arrival - start,
        "queue": scheduled - arrival,
        "inference": end - scheduled,
    }
    found = {f"x-{name}-time": f"{1000 * max(seconds, 0.0):.0f}" for name, seconds in spans.items()}
    return found | {
        "x-compute-time": f"{end - start:.6f}",
        "x-time-per-token": f"{1000 * max(end - scheduled, 0.0) / max(generated, 1):.0f}",
        "x-prompt-tokens": str(output.num_prompt_tokens),
        "x-generated-tokens": str(generated),
    }
