"""Long prompts cut into chunks beside streams that decode, beside each prompt in one step."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass

from octavo.assembly import Loaded
from octavo.bench.workload import percentile, random_prompts
from octavo.engine.scheduler import Scheduler
from octavo.errors import UnsupportedError
from octavo.lab.ablations import Found, Setting, Technique
from octavo.lab.drive import Job, config_of, drive


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Streams that decode, and the prompts that arrive meanwhile."""

    streams: int = 8
    prompt_tokens: int = 4000
    count: int = 4
    new_tokens: int = 240


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


def chunking(loaded: Loaded, wanted: Arrivals, rounds: int = 3) -> Chunking:
    """Streams that decode while prompts arrive. The buffers must hold prompt_tokens in one step."""
    chunked = config_of(loaded, enable_prefix_caching=False, max_num_batched_tokens=512)
    whole = config_of(
        loaded,
        enable_prefix_caching=False,
        max_num_batched_tokens=wanted.prompt_tokens + wanted.streams,
        step_target_s=None,
    )
    vocab = loaded.model.vocab_size
    found: dict[str, list[float]] = {"quiet": [], "chunked": [], "whole": []}
    for seed in range(rounds):
        prompts = random_prompts(wanted.streams, 16, vocab, seed)
        decoding = [Job(prompt, wanted.new_tokens) for prompt in prompts]
        quiet = drive(loaded, Scheduler(chunked), decoding)
        gap = percentile([g for gaps in quiet.gaps for g in gaps], 0.5)
        found["quiet"].append(gap)
        # They arrive while everybody decodes, one after another.
        long = random_prompts(wanted.count, wanted.prompt_tokens, vocab, seed)
        spacing = gap * wanted.new_tokens / (wanted.count + 2)
        late = [Job(p, 1, spacing * (n + 1)) for n, p in enumerate(long)]
        for name, config in (("chunked", chunked), ("whole", whole)):
            seen = drive(loaded, Scheduler(config), [*decoding, *late])
            found[name].append(percentile([g for gaps in seen.gaps[: wanted.streams] for g in gaps], 0.99))
    quiet_p50, chunked_p99, whole_p99 = (1e3 * statistics.median(times) for times in found.values())
    target_ms = 1e3 * (chunked.step_target_s or 0.0)
    return Chunking(quiet_p50, chunked_p99, whole_p99, target_ms, wanted.prompt_tokens)


def arrivals_of(setting: Setting) -> Arrivals:
    return Arrivals(8, setting.size(4000, 1000), setting.size(4, 2), setting.size(240, 48))


def measure(setting: Setting) -> Found:
    found = chunking(setting.loaded, arrivals_of(setting), setting.rounds)
    return Found(
        "ms between tokens (p99)",
        (("chunked", found.chunked_p99), ("whole prompts", found.whole_p99)),
        False,
        f"streams wait for a step of about {found.allowed_ms:.0f} ms, not for a prompt of "
        f"{found.prompt_tokens}; while nothing arrives they wait {found.quiet_p50:.1f} ms",
        {"chunking": asdict(found)},
        {"chunks are held": found.held},
    )


def needs(setting: Setting) -> None:
    wanted = arrivals_of(setting)
    setting.need(wanted.prompt_tokens + 1)
    config = setting.loaded.config
    step = wanted.prompt_tokens + wanted.streams
    pages = (wanted.streams + 1) * (wanted.new_tokens + 16) + wanted.count * wanted.prompt_tokens
    if config.max_num_batched_tokens < step:
        raise UnsupportedError(f"it needs --max-num-batched-tokens of {step}, for whole prompts")
    if config.num_pages * config.page_size < pages:
        raise UnsupportedError(f"it needs KV pages for {pages} tokens: see --num-pages")


TECHNIQUE = Technique(
    "chunked-prefill",
    "a long prompt in chunks delays the streams beside it by a step, not by its whole length",
    "Agrawal et al. 2023, SARATHI, section 4",
    measure,
    needs,
)
