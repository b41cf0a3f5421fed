"""Requests enter and leave a running batch, beside batches that enter and leave together."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass

from octavo.assembly import Loaded
from octavo.bench.workload import random_prompts
from octavo.config import SchedulerConfig
from octavo.engine.scheduler import Scheduler
from octavo.lab.ablations import Found, Setting, Technique
from octavo.lab.baselines import StaticScheduler
from octavo.lab.drive import Job, config_of, drive

SHORT, LONG = (4, 32), 256
"""Output tokens of the mix: 85 % evenly from SHORT, 15 % LONG."""
SLABS, SLAB_TOKENS = 8, 1024
"""Batching is compared in memory for so many sequences of this length."""
PROMPT_TOKENS = 32


@dataclass(frozen=True, slots=True)
class Mix:
    """count requests, rows of which run at once. long: tokens of the longest answers."""

    count: int
    rows: int
    prompt_tokens: int = PROMPT_TOKENS
    long: int = LONG


@dataclass(frozen=True, slots=True)
class Batching:
    """Tokens a second of the mix. bound: longest over mean output, what padding alone can cost."""

    continuous: float
    static: float
    bound: float

    @property
    def ratio(self) -> float:
        return self.continuous / self.static


def mix(wanted: Mix, vocab_size: int, seed: int) -> list[Job]:
    """85 % short answers, 15 % long ones, in random order; no two prompts alike."""
    draw = random.Random(f"mix {wanted.count} {seed}")
    few = round(0.15 * wanted.count)
    lengths = [wanted.long] * few + [draw.randint(*SHORT) for _ in range(wanted.count - few)]
    draw.shuffle(lengths)
    prompts = random_prompts(wanted.count, wanted.prompt_tokens, vocab_size, seed)
    return [Job(prompt, length) for prompt, length in zip(prompts, lengths, strict=True)]


def mix_config(loaded: Loaded, wanted: Mix) -> SchedulerConfig:
    """An engine in memory for SLABS sequences of SLAB_TOKENS."""
    return config_of(
        loaded,
        num_pages=min(SLABS * SLAB_TOKENS // loaded.config.page_size, loaded.config.num_pages),
        max_model_len=min(SLAB_TOKENS, loaded.config.max_model_len),
        max_num_seqs=wanted.rows,
        enable_prefix_caching=False,
        max_waiting=wanted.count,
    )


def rates(
    loaded: Loaded, makers: dict[str, Callable[[], Scheduler]], wanted: Mix, rounds: int
) -> tuple[dict[str, float], float]:
    """Median tokens a second of the mix by each scheduler, in turns; and the bound of padding."""
    found: dict[str, list[float]] = {name: [] for name in makers}
    lengths: list[int] = []
    for seed in range(rounds):
        jobs = mix(wanted, loaded.model.vocab_size, seed)
        lengths += [job.new_tokens for job in jobs]
        for name, make in makers.items():
            found[name].append(drive(loaded, make(), jobs).rate)
    medians = {name: statistics.median(values) for name, values in found.items()}
    return medians, max(lengths) / statistics.mean(lengths)


def batching(loaded: Loaded, wanted: Mix, rounds: int) -> Batching:
    """Continuous batching, and static batches."""
    config = mix_config(loaded, wanted)
    makers: dict[str, Callable[[], Scheduler]] = {
        "continuous": lambda: Scheduler(config),
        "static": lambda: StaticScheduler(config),
    }
    medians, bound = rates(loaded, makers, wanted, rounds)
    return Batching(**medians, bound=bound)


def measure(setting: Setting) -> Found:
    found = batching(setting.loaded, wanted_of(setting), setting.rounds)
    return Found(
        "tokens/s",
        (("continuous", found.continuous), ("static", found.static)),
        True,
        f"a static batch computes until its longest answer ends: padding alone can cost {found.bound:.1f} x",
        {"batching": asdict(found)},
        {"continuous over static": found.ratio},
    )


def wanted_of(setting: Setting) -> Mix:
    """The mix that batching and paging are compared on."""
    rows = min(32, setting.loaded.config.max_num_seqs)
    return Mix(setting.size(192, 40), rows, long=setting.size(LONG, LONG // 2))


def needs(setting: Setting) -> None:
    setting.need(LONG + PROMPT_TOKENS)


TECHNIQUE = Technique(
    "continuous-batching",
    "requests that enter and leave at each step keep the batch full: several times the throughput",
    "Yu et al. 2022, Orca, section 3",
    measure,
    needs,
)
