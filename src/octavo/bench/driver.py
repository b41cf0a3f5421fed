"""Driver: an LLM that says how long its steps took. The engine is the one that generate() uses."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from octavo.assembly import Loaded
from octavo.engine.request import EngineRequest
from octavo.errors import OctavoError
from octavo.llm import LLM
from octavo.params import SampledToken, SamplingParams


@dataclass(frozen=True, slots=True)
class StepTime:
    """One step: how long it took, and how many tokens it drew."""

    seconds: float
    tokens: int


@dataclass(frozen=True, slots=True)
class Drawn:
    """What a step gave one request: its place among the prompts, new tokens, and whether it has ended."""

    place: int
    tokens: int
    is_last: bool


Watch = Callable[[Sequence[Drawn]], None]
"""Told after each step what it gave."""


@dataclass(frozen=True, slots=True)
class Run:
    """Prompts computed side by side, and the tokens that followed.

    The prompt phase ends with the step in which the last request gets its first token; only steps
    after it count as decoding.

    Attributes:
        prompt: the steps of the prompt phase; decode: the others.
        first_token_s: of each request, in the order of the prompts, from the start of the run.
        token_ids: what each request drew.
    """

    prompt_tokens: int
    prompt: tuple[StepTime, ...]
    decode: tuple[StepTime, ...]
    first_token_s: tuple[float, ...]
    token_ids: tuple[tuple[int, ...], ...]

    @property
    def prompt_s(self) -> float:
        return sum(step.seconds for step in self.prompt)

    @property
    def decode_s(self) -> float:
        return sum(step.seconds for step in self.decode)

    @property
    def prompt_rate(self) -> float:
        """Prompt tokens a second."""
        return self.prompt_tokens / self.prompt_s

    @property
    def decode_rate(self) -> float | None:
        """Tokens a second of all requests together while none is in its prompt; None: no step was so."""
        return sum(step.tokens for step in self.decode) / self.decode_s if self.decode else None


class Driver(LLM):
    """LLM(model, **options), driven step by step."""

    @property
    def loaded(self) -> Loaded:
        """The parts that it is made of."""
        return self._loaded

    @property
    def vocab_size(self) -> int:
        return self._loaded.model.vocab_size

    @property
    def max_step_tokens(self) -> int:
        """Tokens that one step computes at most."""
        return self._loaded.config.max_num_batched_tokens

    def run(
        self,
        prompts: Sequence[Sequence[int]],
        new_tokens: int | Sequence[int],
        last: Mapping[str, Any] | None = None,
        watch: Watch | None = None,
        **sampling: Any,
    ) -> Run:
        """Compute the prompts and draw new_tokens for each: greedy, end of text ignored.

        Args:
            new_tokens: for all, or for each.
            last: fields that the last prompt has beside them; None: none.
            sampling: fields of SamplingParams, for other draws. structured_outputs end where they must,
                so let them need more than new_tokens.

        Nothing of it is left in the prefix cache that was not there: none of earlier runs is used.

        Raises:
            InvalidRequestError: a prompt is wrong or too long.
            OctavoError: a request failed.
        """
        self.reset_prefix_cache()
        ends = sampling.get("structured_outputs") is not None
        always = {"ignore_eos": not ends, "detokenize": False}
        fields = {"temperature": 0.0, **sampling, **always}
        lengths = [new_tokens] * len(prompts) if isinstance(new_tokens, int) else new_tokens
        # (each its own, as callers do: equal ones would share a grammar's matcher)
        params = [self._compiler.compile(SamplingParams(**fields, max_tokens=n)) for n in lengths]
        if last:  # one row that asks for more, among others that do not
            params[-1] = self._compiler.compile(
                SamplingParams(**{**fields, "max_tokens": lengths[-1], **last})
            )
        names = [f"run-{self._next_id + i}" for i in range(len(prompts))]
        self._next_id += len(names)
        requests = [
            EngineRequest(name, list(prompt), each)
            for name, prompt, each in zip(names, prompts, params, strict=True)
        ]
        for request in requests:
            self._core.check(request)
        try:
            for request in requests:
                self._core.add(request, time.monotonic())
            return self._drive(names, sum(map(len, prompts)), watch)
        except BaseException:  # Ctrl-C too: the next run must find an empty engine
            for name in names:
                self._core.abort(name)
            raise

    def _drive(self, names: list[str], prompt_tokens: int, watch: Watch | None) -> Run:
        """Step until all have ended."""
        steps: list[StepTime] = []
        first: dict[str, float] = {}
        drawn: dict[str, list[SampledToken]] = {name: [] for name in names}
        places = {name: place for place, name in enumerate(names)}
        prompt_steps = 0
        start = before = time.perf_counter()
        while self._core.has_unfinished():
            updates = self._core.step()
            now = time.perf_counter()
            tokens = 0
            for update in updates:
                if update.finish_reason == "error":
                    raise OctavoError(f"a request failed: {update.stop_reason}")
                if update.tokens:
                    tokens += len(update.tokens)
                    drawn[update.request_id] += update.tokens
                    first.setdefault(update.request_id, now - start)
            steps.append(StepTime(now - before, tokens))
            before = now
            if watch is not None:
                ends = [update.finish_reason is not None for update in updates]
                watch(
                    [
                        Drawn(places[u.request_id], len(u.tokens), e)
                        for u, e in zip(updates, ends, strict=True)
                    ]
                )
            if not prompt_steps and len(first) == len(names):
                prompt_steps = len(steps)
        return Run(
            prompt_tokens,
            tuple(steps[:prompt_steps]),
            tuple(steps[prompt_steps:]),
            tuple(first[name] for name in names),
            tuple(tuple(token.token_id for token in drawn[name]) for name in names),
        )
