"""What each idea is worth: the engine with and without it, on the real model, in one run.

The engines take turns, round by round, so that whatever else the machine does falls on both; what is
reported are medians of the rounds. Each comparison has its own function and the same driver of steps.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from octavo.assembly import Loaded
from octavo.beam_search import sampling_params
from octavo.bench.workload import percentile, random_prompts
from octavo.config import SchedulerConfig
from octavo.engine.admission import Admission
from octavo.engine.beams import BeamSearches
from octavo.engine.core import EngineCore
from octavo.engine.scheduler import Scheduler
from octavo.errors import OctavoError
from octavo.lab.baselines import ContiguousKV, StaticScheduler
from octavo.params import BeamSearchParams, SamplingParams
from octavo.sampling.beam import BeamSearch

SHORT, LONG = (4, 32), 256
"""Output tokens of the mix: 85 % evenly from SHORT, 15 % LONG."""
SLABS, SLAB_TOKENS = 8, 1024
"""Batching is compared in memory for so many sequences of this length."""


@dataclass(frozen=True, slots=True)
class Job:
    """One request: it arrives so many seconds after the run's beginning."""

    prompt: Sequence[int]
    new_tokens: int
    arrival_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Seen:
    """What a run's callers saw, by job, in seconds; prompts count from their arrival."""

    seconds: float
    tokens: int
    first: tuple[float, ...]
    gaps: tuple[tuple[float, ...], ...]

    @property
    def rate(self) -> float:
        """Wanted output tokens a second."""
        return self.tokens / self.seconds


def drive(loaded: Loaded, scheduler: Scheduler, jobs: Sequence[Job]) -> Seen:
    """Run jobs on an engine with this scheduler, greedy, end of text ignored, to their end.

    The runner is the same for all schedulers, and so are its pages: one scheduler at a time.

    Raises:
        OctavoError: a request failed.
    """
    core = EngineCore(Admission(scheduler.config), loaded.runner, scheduler=scheduler)
    first, last = [0.0] * len(jobs), [0.0] * len(jobs)
    gaps: list[list[float]] = [[] for _ in jobs]
    queue = sorted(range(len(jobs)), key=lambda number: jobs[number].arrival_s)
    tokens, place = 0, 0
    begin = time.perf_counter()
    while place < len(queue) or core.has_unfinished():
        now = time.perf_counter() - begin
        while place < len(queue) and jobs[queue[place]].arrival_s <= now:
            job = jobs[queue[place]]
            params = SamplingParams(temperature=0.0, max_tokens=job.new_tokens, ignore_eos=True, seed=0)
            core.add_request(str(queue[place]), job.prompt, params)
            place += 1
        if not core.has_unfinished():  # the next job has not arrived
            time.sleep(min(jobs[queue[place]].arrival_s - now, 0.001))
            continue
        updates = core.step()
        now = time.perf_counter() - begin
        for update in updates:
            if update.finish_reason == "error":
                raise OctavoError(f"a request failed: {update.stop_reason}")
            if not update.tokens:
                continue
            number = int(update.request_id)
            tokens += len(update.tokens)
            if last[number]:  # a prompt's time counts from its arrival, and is no gap
                gaps[number].append(now - last[number])
            else:
                first[number] = now - jobs[number].arrival_s
            last[number] = now
    return Seen(max(last), tokens, tuple(first), tuple(map(tuple, gaps)))


def config_of(loaded: Loaded, **changes: object) -> SchedulerConfig:
    """The loaded engine's numbers, some of them changed; the program's limits bound them."""
    config = loaded.config
    sliding = min(config.num_sliding_pages, int(str(changes.get("num_pages", config.num_pages))))
    # The fields differ in type; the dataclass checks their names.
    return replace(config, **{"num_sliding_pages": sliding, **changes})  # type: ignore[arg-type]


# --- continuous batching ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Batching:
    """Tokens a second of the mix. bound: longest over mean output, what padding alone can cost."""

    continuous: float
    static: float
    contiguous: float
    bound: float
    contiguous_rows: int

    @property
    def ratio(self) -> float:
        return self.continuous / self.static


def mix(count: int, prompt_tokens: int, vocab_size: int, seed: int) -> list[Job]:
    """85 % short answers, 15 % long ones, in random order; no two prompts alike."""
    draw = random.Random(f"mix {count} {seed}")
    long = round(0.15 * count)
    lengths = [LONG] * long + [draw.randint(*SHORT) for _ in range(count - long)]
    draw.shuffle(lengths)
    prompts = random_prompts(count, prompt_tokens, vocab_size, seed)
    return [Job(prompt, length) for prompt, length in zip(prompts, lengths, strict=True)]


def batching(
    loaded: Loaded, count: int = 192, rows: int = 32, prompt_tokens: int = 32, rounds: int = 3
) -> Batching:
    """Continuous batching, static batches, and continuous batching over contiguous slabs."""
    config = config_of(
        loaded,
        num_pages=min(SLABS * SLAB_TOKENS // loaded.config.page_size, loaded.config.num_pages),
        max_model_len=min(SLAB_TOKENS, loaded.config.max_model_len),
        max_num_seqs=rows,
        enable_prefix_caching=False,
        max_waiting=count,
    )
    slabs = ContiguousKV(config)
    makers: dict[str, Callable[[], Scheduler]] = {
        "continuous": lambda: Scheduler(config),
        "static": lambda: StaticScheduler(config),
        "contiguous": lambda: Scheduler(config, ContiguousKV(config)),
    }
    rates: dict[str, list[float]] = {name: [] for name in makers}
    lengths: list[int] = []
    for seed in range(rounds):
        jobs = mix(count, prompt_tokens, loaded.model.vocab_size, seed)
        lengths += [job.new_tokens for job in jobs]
        for name, make in makers.items():
            rates[name].append(drive(loaded, make(), jobs).rate)
    medians = {name: statistics.median(found) for name, found in rates.items()}
    bound = max(lengths) / statistics.mean(lengths)
    return Batching(**medians, bound=bound, contiguous_rows=min(rows, config.num_pages // slabs.slab_pages))


# --- prefix cache -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """Milliseconds to the first token of prompts that begin alike, with and without the cache."""

    shared_tokens: int
    cached_ms: float
    computed_ms: float

    @property
    def ratio(self) -> float:
        return self.computed_ms / self.cached_ms


def prefix_hit(loaded: Loaded, shared: int = 1500, own: int = 12, rounds: int = 5) -> PrefixHit:
    """One request at a time: a shared prompt and a few tokens of its own."""
    vocab = loaded.model.vocab_size
    head = random_prompts(1, shared, vocab, seed=1)[0]
    warm, cold = (config_of(loaded, enable_prefix_caching=on) for on in (True, False))
    cached, computed = [], []
    for seed in range(rounds):
        first, second = random_prompts(2, own, vocab, seed)
        # A fresh cache in each round: the other engine writes to the same pages.
        scheduler = Scheduler(warm)
        drive(loaded, scheduler, [Job([*head, *first], 1)])
        cached.append(1e3 * drive(loaded, scheduler, [Job([*head, *second], 1)]).first[0])
        computed.append(1e3 * drive(loaded, Scheduler(cold), [Job([*head, *second], 1)]).first[0])
    return PrefixHit(shared, statistics.median(cached), statistics.median(computed))


# --- chunked prefill ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Chunking:
    """Milliseconds between two tokens of those who decode.

    Attributes:
        quiet_p50: median while nothing arrives; target_ms: the step target (0: none).
        chunked_p99, whole_p99: while long prompts arrive, in chunks and each in one step.
    """

    quiet_p50: float
    chunked_p99: float
    whole_p99: float
    target_ms: float
    prompt_tokens: int

    @property
    def allowed_ms(self) -> float:
        """Twice the quiet median, or the step target where that is more."""
        return max(2 * self.quiet_p50, self.target_ms)

    @property
    def held(self) -> bool:
        return self.chunked_p99 <= self.allowed_ms


def chunking(
    loaded: Loaded,
    streams: int = 8,
    prompt_tokens: int = 4000,
    arrivals: int = 4,
    new_tokens: int = 240,
    rounds: int = 3,
) -> Chunking:
    """Streams that decode while prompts arrive. The buffers must hold prompt_tokens in one step."""
    chunked = config_of(loaded, enable_prefix_caching=False, max_num_batched_tokens=512)
    whole = config_of(
        loaded,
        enable_prefix_caching=False,
        max_num_batched_tokens=prompt_tokens + streams,
        step_target_s=None,
    )
    vocab = loaded.model.vocab_size
    found: dict[str, list[float]] = {"quiet": [], "chunked": [], "whole": []}
    for seed in range(rounds):
        decoding = [Job(prompt, new_tokens) for prompt in random_prompts(streams, 16, vocab, seed)]
        quiet = drive(loaded, Scheduler(chunked), decoding)
        gap = percentile([g for gaps in quiet.gaps for g in gaps], 0.5)
        found["quiet"].append(gap)
        # They arrive while everybody decodes, one after another.
        long = random_prompts(arrivals, prompt_tokens, vocab, seed)
        late = [Job(p, 1, gap * new_tokens * (n + 1) / (arrivals + 2)) for n, p in enumerate(long)]
        for name, config in (("chunked", chunked), ("whole", whole)):
            seen = drive(loaded, Scheduler(config), [*decoding, *late])
            found[name].append(percentile([g for gaps in seen.gaps[:streams] for g in gaps], 0.99))
    quiet_p50, chunked_p99, whole_p99 = (1e3 * statistics.median(times) for times in found.values())
    return Chunking(quiet_p50, chunked_p99, whole_p99, 1e3 * (chunked.step_target_s or 0.0), prompt_tokens)


# --- copy-on-write --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sharing:
    """Pages of a beam search whose beams share what they have in common, and with a copy for each.

    At the step that needs most, median over the prompts.
    """

    beams: int
    shared_pages: float
    copied_pages: float

    @property
    def saved(self) -> float:
        return 1 - self.shared_pages / self.copied_pages


def sharing(
    loaded: Loaded, beams: int = 4, prompt_tokens: int = 128, new_tokens: int = 128, rounds: int = 3
) -> Sharing:
    """Beam searches on the real engine, one prompt at a time; distinct pages are counted after each step."""
    config = config_of(loaded, enable_prefix_caching=False)
    wish = sampling_params(BeamSearchParams(beam_width=beams, max_tokens=new_tokens, ignore_eos=True))
    shared, copied = [], []
    for prompt in random_prompts(rounds, prompt_tokens, loaded.model.vocab_size, seed=3):
        core = EngineCore(Admission(config, beam_search=BeamSearches(BeamSearch)), loaded.runner)
        core.add_request("beams", prompt, wish)
        most = (0, 0)
        while core.has_unfinished():
            core.step()
            tables = [request.kv.page_table for request in core.scheduler.running]
            most = max(most, (len(set().union(*tables)), sum(map(len, tables))))
        shared.append(most[0])
        copied.append(most[1])
    return Sharing(beams, statistics.median(shared), statistics.median(copied))


# --- all of it ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ablation:
    batching: Batching
    prefix: PrefixHit
    chunking: Chunking
    sharing: Sharing


ENGINE = {"max_model_len": 4608, "max_num_seqs": 32, "max_num_batched_tokens": 4096, "num_pages": 1536}
"""What the model is loaded with: a prompt of 4,000 fits into one step."""


def ablate(loaded: Loaded, rounds: int = 3, progress: Callable[[str], None] = lambda name: None) -> Ablation:
    """All comparisons, one after the other.

    Args:
        loaded: an engine with ENGINE's numbers.
        progress: called with a comparison's name before it begins.
    """
    progress("continuous batching")
    batches = batching(loaded, rounds=rounds)
    progress("prefix cache")
    prefix = prefix_hit(loaded, rounds=max(rounds, 5))
    progress("chunked prefill")
    chunks = chunking(loaded, rounds=rounds)
    progress("copy-on-write")
    return Ablation(batches, prefix, chunks, sharing(loaded, rounds=rounds))
