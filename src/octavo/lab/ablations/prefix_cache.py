"""Prompts that begin alike: the common beginning taken from the cache, beside computing it again."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass

from octavo.assembly import Loaded
from octavo.bench.workload import random_prompts
from octavo.engine.scheduler import Scheduler
from octavo.lab.ablations import Found, Setting, Technique
from octavo.lab.drive import Job, config_of, drive

OWN = 12
"""Tokens of a prompt after what it shares."""


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """Milliseconds to the first token of prompts that begin alike, with and without the cache."""

    shared_tokens: int
    cached_ms: float
    computed_ms: float

    @property
    def ratio(self) -> float:
        return self.computed_ms / self.cached_ms


def prefix_hit(loaded: Loaded, shared: int = 1500, own: int = OWN, rounds: int = 5) -> PrefixHit:
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


def measure(setting: Setting) -> Found:
    rounds = max(setting.rounds, setting.size(5, 2))
    found = prefix_hit(setting.loaded, shared_of(setting), rounds=rounds)
    return Found(
        "ms to the first token",
        (("cached", found.cached_ms), ("computed", found.computed_ms)),
        False,
        f"of {found.shared_tokens + OWN} tokens of a prompt only {OWN} are computed",
        {"prefix": asdict(found)},
        {"cached over computed": found.ratio},
    )


def shared_of(setting: Setting) -> int:
    """Tokens that prompts have in common."""
    return setting.size(1500, 750)


def needs(setting: Setting) -> None:
    setting.need(shared_of(setting) + OWN + 1)


TECHNIQUE = Technique(
    "prefix-cache",
    "a prompt whose beginning is cached waits for its own part alone",
    "Zheng et al. 2024, SGLang (RadixAttention), section 3",
    measure,
    needs,
)
