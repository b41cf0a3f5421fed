"""Random crowds: engines and requests of every kind, each of which must say what it says alone."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from octavo.config import pages_at_a_time
from octavo.engine.core import EngineCore
from octavo.engine.groups.sliding_pages import SlidingPages
from octavo.errors import InvalidRequestError
from octavo.params import BeamSearchParams, SamplingParams, StructuredOutputsParams
from octavo.spec import Proposer, Wanted, method, methods
from octavo.structured import ConstraintCompiler
from support.grammars import WordTokenizer
from support.late_device import Queue
from support.modelled import Modelled, first_layer_of
from support.page_parts import part
from support.scripted import Scripted
from support.tiny_engine import VOCAB_SIZE, Answer, Answers, run, tiny_engine

MAX_LENGTH = 96
KV_DTYPES = ("f32", "f16", "int8", "int16")
QUANTIZATIONS = (*[None] * 9, "int8", "int4", "fp8")
"""Mostly none, so that enough crowds find what others of their kind left on disk."""
SAMPLED = {"temperature": 0.9, "ignore_eos": True, "logprobs": 2}

COMPILER, TEXT = ConstraintCompiler(WordTokenizer()), "(abc|ba|the |[0-9]{2}-){12,60}"
PARAMS: tuple[SamplingParams, ...] = (
    SamplingParams(temperature=0, max_tokens=16, ignore_eos=True, logprobs=2),
    SamplingParams(seed=1, max_tokens=24, **SAMPLED),
    SamplingParams(seed=2, max_tokens=12, n=3, top_p=0.9, **SAMPLED),
    SamplingParams(seed=3, max_tokens=20, n=2, top_k=20, repetition_penalty=1.2, **SAMPLED),
    SamplingParams(seed=4, max_tokens=24, temperature=1.0, logprobs=0),
    SamplingParams(seed=5, max_tokens=8, min_p=0.05, presence_penalty=0.5, prompt_logprobs=0, **SAMPLED),
    SamplingParams(max_tokens=10, n=3, logprobs=0, beam_search=BeamSearchParams(3, 10)),
    # Without logprobs, so that alone they are drawn before their masks, and among others after them.
    COMPILER.compile(
        SamplingParams(seed=6, max_tokens=20, n=2, structured_outputs=StructuredOutputsParams(regex=TEXT))
    ),
    COMPILER.compile(SamplingParams(seed=7, max_tokens=16, bad_words=["a", "the"], ignore_eos=True)),
)


@cache
def prompts() -> tuple[tuple[int, ...], ...]:
    """Cut from three books, so that many share a beginning, in and across pages."""
    rng = random.Random(11)
    books = [[rng.randrange(3, VOCAB_SIZE) for _ in range(64)] for _ in range(3)]
    return tuple(tuple(book[:length]) for book in books for length in (1, 9, 16, 33, 47, 64))


@cache
def alone(
    folder: Path, kv_dtype: str, quantization: str | None, prompt: tuple[int, ...], params: int
) -> tuple[Answer, ...]:
    """What a request says with an engine to itself: whole prompts, pages of 16, one thread, no cache."""
    engine = quiet_engine(folder, kv_dtype, quantization)
    return tuple(run(engine, list(prompt), PARAMS[params]))


@cache
def quiet_engine(folder: Path, kv_dtype: str, quantization: str | None) -> EngineCore:
    return tiny_engine(
        folder,
        kv_dtype=kv_dtype,
        quantization=quantization,
        max_model_len=MAX_LENGTH,
        max_num_batched_tokens=MAX_LENGTH,
        enable_prefix_caching=False,
    )


def random_engine(
    folder: Path,
    rng: random.Random,
    kv_dtype: str,
    late: Queue | None = None,
    window: int | None = None,
    sliding: int | None = None,
    drafts: tuple[Proposer | Modelled, int, int] | None = None,
    quantization: str | None = None,
) -> EngineCore:
    """Pages and chunks of any size, pools so tight that requests are preempted, one thread or two, any number
    of drafted tokens from 0 to 8.

    Args:
        drafts: who proposes them, how many for a row, and rows of logits of a step beyond one for each row.
    """
    page_size, tokens = rng.choice((1, 3, 4, 8, 16, 32)), rng.choice((7, 16, 40, 200))
    least = pages_at_a_time(MAX_LENGTH, page_size, window, tokens)
    caching = rng.random() < 0.7
    on_disk = caching and rng.random() < 0.5 and late is None  # (a GPU's pages are not kept on disk)
    options: dict[str, Any] = dict(  # noqa: C408
        kv_dtype=kv_dtype,
        threads=rng.choice((1, 2)),
        depth=2 if late else rng.choice((1, 2)),
        late=late,
        page_size=page_size,
        num_pages=least + rng.choice((0, 1, least // 2, 4 * least)),
        max_model_len=MAX_LENGTH,
        max_num_seqs=rng.randint(1, 8),
        max_num_batched_tokens=tokens,
        window=window,
        scheduling_policy=rng.choice(("fcfs", "lpm")),
        num_swap_pages=rng.choice((0, least // 2, 2 * least)),
        enable_prefix_caching=caching,
        # What the crowds before it have left there is found again.
        pages_folder=folder / f"pages-{kv_dtype}-{quantization}-{page_size}" if on_disk else None,
        quantization=quantization,
    )
    if sliding is not None:
        few = pages_at_a_time(MAX_LENGTH, page_size, sliding, tokens) + rng.choice((0, 0, 1, 4, least))
        options |= {"sliding_window": sliding, "num_sliding_pages": min(few, options["num_pages"])}
    if drafts is not None:
        proposer, most, more_rows = drafts
        options |= {"speculate": (proposer, most)}
        options["max_sampled_rows"] = options["max_num_seqs"] + more_rows
    engine = tiny_engine(folder, **options)
    if rng.random() < 0.5:  # reckless admission, so that requests are preempted
        engine.scheduler.growth_pages = 0
    return engine


def random_proposer(chance: random.Random, folder: Path) -> Proposer | Modelled:
    """One of those that there are, or one that knows the answers and spoils some of its drafts.

    A model that drafts is the target itself, its first layer as a model, or its first layer.
    """
    name = chance.choice((*methods(), *["scripted"] * 5))
    if name == "draft":
        return Modelled(chance.choice((folder, first_layer_of(folder))))
    if name == "self":
        return Modelled(layers=1)
    if name == "scripted":
        return Scripted(chance, VOCAB_SIZE, chance.choice((0.0, 0.5, 0.9, 1.0)), chance.random() < 0.5)
    found = method(name)
    return found.make(Wanted(8, MAX_LENGTH, trees=True, options=found.settings({})))


class Crowd:
    """Some requests that meet in one engine, arrive at any time, and some of which are aborted.

    Attributes:
        happened: what the engine did, by name.
        differing: requests that did not say what they say alone.
        quantization: what the model's numbers became when it was loaded.

    Args:
        late: the engine's device does nothing before somebody waits.
        window: the model's; pages behind it are given back, which those who are alone do not do.
        sliding: the same of those of its layers that have one.
    """

    def __init__(
        self,
        folder: Path,
        seed: int,
        late: Queue | None = None,
        window: int | None = None,
        sliding: int | None = None,
    ) -> None:
        self._rng = random.Random(seed)
        self._folder, self._kv_dtype = folder, self._rng.choice(KV_DTYPES)
        chance = random.Random(-seed)
        self.proposer: Proposer | Modelled | None = None
        drafts = None
        if chance.random() < 0.6:
            self.proposer = random_proposer(chance, folder)
            drafts = self.proposer, chance.randint(0, 8), chance.choice((0, 2, 30))
        self.quantization = random.Random(f"{seed}").choice(QUANTIZATIONS)
        if isinstance(self.proposer, Modelled):  # which drafts as well as it does for being the model
            self.quantization = None
        options = window, sliding, drafts, self.quantization
        self.engine = random_engine(folder, self._rng, self._kv_dtype, late, *options)
        self.happened: Counter[str] = Counter()
        self.differing: list[str] = []
        self._answers = Answers()
        self._asked: dict[str, tuple[tuple[int, ...], int]] = {}
        self._aborted: set[str] = set()

    def meet(self) -> Crowd:
        """Run to the end and compare everything."""
        rng, left = self._rng, self._rng.randint(1, 7)
        while left or self.engine.has_unfinished():
            while left and (rng.random() < 0.4 or not self.engine.has_unfinished()):
                left -= 1
                self._add(f"r{left}")
            if self.engine.has_unfinished():
                self._answers.take(self.engine.step())
                swap = self.engine.scheduler.kv.swap.pool
                self.happened["steps with pages swapped out"] += swap.num_free < swap.num_pages
                self._count_sliding()
                gone = [r.kv.num_released_pages for r in self.engine.scheduler.running]
                self.happened["steps with pages behind a window gone"] += any(gone)
            if self._asked and rng.random() < 0.01:
                name = rng.choice(list(self._asked))
                self._aborted.add(name)
                self._answers.take(self.engine.abort(name))
        self.engine.check_integrity()
        self.engine.close()
        for name in self._asked.keys() - self._aborted:
            self._compare(name)
        stats = self.engine.stats()
        self.happened["drafted tokens accepted"] += stats.drafts.accepted_tokens
        self.happened["drafted tokens rejected"] += stats.drafts.draft_tokens - stats.drafts.accepted_tokens
        self.happened["preempted"] += stats.preemptions
        self.happened["tokens from the cache"] += stats.prefix_hits
        self.happened["tokens from disk"] += stats.external_prefix_hits
        return self

    def _count_sliding(self) -> None:
        sliding, running = part(self.engine.scheduler.kv, SlidingPages), self.engine.scheduler.running
        if sliding is not None:
            gone = any(sliding.num_whole(r.kv.page_table) < len(r.kv.page_table) for r in running)
            self.happened["steps with sliding pages gone"] += gone

    def _add(self, name: str) -> None:
        prompt, params = self._rng.choice(prompts()), self._rng.randrange(len(PARAMS))
        priority = self._rng.choice((-1, 0, 0, 1))
        try:
            self.engine.add_request(name, prompt, PARAMS[params], priority=priority)
        except InvalidRequestError as error:
            if error.param != "beam_width":  # not so many rows or pages
                raise
            return
        self._asked[name] = prompt, params
        if isinstance(self.proposer, Scripted) and PARAMS[params].beam_search is None:
            answers = alone(self._folder, self._kv_dtype, self.quantization, prompt, params)
            self.proposer.texts += [[*prompt, *tokens] for tokens, _, _ in answers]

    def _compare(self, name: str) -> None:
        prompt, params = self._asked[name]
        wanted = alone(self._folder, self._kv_dtype, self.quantization, prompt, params)
        found = tuple(self._answers.of(name, index) for index in range(PARAMS[params].n))
        self.happened["compared"] += 1
        if found != wanted:
            self.differing.append(name)


def crowds(
    folder: Path,
    seeds: range,
    until: Callable[[Crowd], Any] = lambda crowd: None,
    window: int | None = None,
    sliding: int | None = None,
) -> list[Crowd]:
    """Crowds of these seeds; ends early when `until` says so."""
    met: list[Crowd] = []
    for seed in seeds:
        met.append(Crowd(folder, seed, window=window, sliding=sliding).meet())
        if until(met[-1]):
            break
    return met
