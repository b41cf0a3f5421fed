"""The roofline: how fast this machine could run a model, from measured limits (Williams et al. 2009).

bytes a step = what the linears and the head read, as the file stores it + sum(context) x KV bytes;
               of an 8-bit head five bits, since greedy steps leave the others (kernels' bounds of logits)
MACs a step  = tokens x linears + sampled rows x head, and apart from these the attention's; what the last
               layer computes of sampled rows alone counts with the head
least time   = max(bytes / bandwidth, MACs / tile rate + attention's MACs / its rate)
bandwidth    = of a buffer as large as the step's bytes, read over and over: caches keep a part of both;
               between the steps, every few of them
rates        = of a step that decodes: what its tile does at as many rows, and its attention with a query a
               sequence, on weights and KV that stay in a cache (calibrate.rates_of_rows). Between the steps
               too, and before and after each prompt: others who share the cores slow them down for minutes

The work is counted from the recorded program of the model, so any family is.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from octavo.bench.calibrate import Machine
from octavo.bench.driver import Drawn, Driver, Run, Watch
from octavo.bench.workload import random_prompts
from octavo.checkpoints.base import Checkpoint
from octavo.errors import InvalidRequestError, OctavoError
from octavo.kernels.ops import AttentionSpec, Backend, KVSpec, Limits, PackedWeight, Rows
from octavo.kernels.program import Call, fuse, record
from octavo.kernels.weight import Layout
from octavo.models.registry import Model

DECODE_PROMPT = 16
"""Tokens of the prompts that batches decode after: short, so that weights are what is read."""
TURN = 8
"""Steps between two sweeps of the memory, whose rate changes within seconds."""
Sweep = Callable[[float], float]
"""Bytes -> the bytes a second that reading so many, over and over, gets now (calibrate.read_bandwidth)."""
Now = Callable[[Machine], Machine]
"""A machine -> the same with the rates that arithmetic has now (calibrate.Rates)."""


@dataclass(frozen=True, slots=True)
class Bound:
    """The least time of some work.

    Attributes:
        memory_s: of its bytes alone; compute_s: of its arithmetic alone.
    """

    memory_s: float
    compute_s: float

    @property
    def seconds(self) -> float:
        return max(self.memory_s, self.compute_s)

    @property
    def limit(self) -> str:
        """What the work waits for: "memory" or "compute"."""
        return "memory" if self.memory_s >= self.compute_s else "compute"


@dataclass(frozen=True, slots=True)
class ModelCost:
    """What a model costs.

    Attributes:
        linear_macs: of a token in all layers, of its own experts only; head_macs: of a
            sampled row, in the last layer behind its attention and in the head.
        weight_bytes: read by every step, counted as the file stores them.
        expert_bytes: of all experts; expert_share: the part of them that one token reads.
        kv_bytes: of a token in all layers.
        attention: (MACs per query and visible position, window or None) of each layer.
        bits: stored bits of a weight, scales included.
        layout: of most of the weights, as their backend holds them.
        spared_bytes: of weight_bytes, those of the head that a step of greedy rows does not read.
        width: numbers of a token between layers.
        ends: of the layers, how many at the end attend for sampled rows alone.
    """

    linear_macs: int
    head_macs: int
    weight_bytes: int
    kv_bytes: int
    attention: tuple[tuple[int, int | None], ...]
    bits: float
    layout: str = Layout.F32.value
    expert_bytes: int = 0
    expert_share: float = 0.0
    spared_bytes: int = 0
    width: int = 0
    ends: int = 0

    def decode(self, machine: Machine, batch: int, context: int, drafted: int = 0) -> Bound:
        """A step that draws one token for each of batch sequences of context tokens.

        Args:
            drafted: tokens of each sequence that it verifies beside; they read the same keys and values.
        """
        rows = batch * (1 + drafted)
        attention = rows * sum(macs * min(context, window or context) for macs, window in self.attention)
        moved = self.decode_bytes(batch, context) + self.step_bytes(rows) - self.step_bytes(batch)
        macs = rows * (self.linear_macs + self.head_macs)
        return Bound(moved / machine.bandwidth, macs / machine.tile_rate + attention / machine.attention_rate)

    def decode_bytes(self, batch: int, context: int) -> float:
        """What a greedy step for batch sequences of context tokens reads at least."""
        kv = batch * context * _visible_share(self.attention, context) * self.kv_bytes
        return self.step_bytes(batch) - self.spared_bytes + kv

    def prompt(self, machine: Machine, length: int, chunk: int) -> Bound:
        """A prompt of length tokens and its first new token, computed chunk tokens at a time."""
        attention = 0
        for layers_left, (macs, window) in zip(
            range(len(self.attention), 0, -1), self.attention, strict=True
        ):
            reach = min(length, window or length)  # position p sees min(p + 1, reach)
            every = reach * (reach + 1) // 2 + (length - reach) * reach
            attention += macs * (reach if layers_left <= self.ends else every)
        moved = -(-length // chunk) * self.step_bytes(min(length, chunk)) + length * self.kv_bytes
        macs = length * self.linear_macs + self.head_macs
        return Bound(moved / machine.bandwidth, macs / machine.tile_rate + attention / machine.attention_rate)

    def step_bytes(self, tokens: int) -> float:
        """Bytes of weights that a step of so many tokens reads, experts chosen without overlap."""
        return self.weight_bytes + self.expert_bytes * min(1.0, tokens * self.expert_share)

    def ridge(self, machine: Machine) -> float:
        """The batch at which a step over short contexts turns from memory to compute."""
        macs = self.linear_macs + self.head_macs
        return self.step_bytes(1) / machine.bandwidth / (macs / machine.tile_rate)


def _visible_share(layers: Sequence[tuple[int, int | None]], context: int) -> float:
    """Which part of the KV a query reads: layers with a window read only that."""
    if not layers or not context:
        return 1.0
    return sum(min(context, window or context) for _, window in layers) / (context * len(layers))


def cost_of(model: Model, backend: Backend, checkpoint: Checkpoint | None, kv_dtype: str) -> ModelCost:
    """Count a model's work from its recorded program. Its weights need not be there: shapes are enough.

    Args:
        checkpoint: whose file is read; None: weights count as they are packed.
        kv_dtype: as KVSpec names it: "f16", "int8".
    """
    specs = model.kv_specs(kv_dtype)
    cache = backend.kv_cache(specs, 1, 1)
    recorder, result = record(lambda ops, inputs: model.forward(ops, inputs, cache), Limits(1, 1, 1, 1))
    macs = dict.fromkeys(Rows, 0)
    dense: dict[int, PackedWeight] = {}
    experts: dict[int, PackedWeight] = {}
    attention, share, ends = [], 0.0, 0
    for call in fuse(recorder.calls, result.ref):
        rows, args = recorder.buffers[call.output].rows, call.args
        if call.name == "linear":  # (by identity: a tied head is a table too, and is read whole)
            dense[id(args["weight"])] = args["weight"]
            macs[rows] += _elements([args["weight"]])
        elif call.name == "moe":  # all experts lie in memory, a token meets top_k of them
            every = [*args["experts"].gate_up, *args["experts"].down]
            experts |= {id(weight): weight for weight in every}
            share = args["top_k"] / len(args["experts"].down)
            macs[rows] += round(share * _elements(every))
        elif call.name == "attention":
            spec = args["spec"]
            attention.append((spec.num_heads * (spec.head_dim + spec.v_head_dim), spec.window))
            ends += "sampled_only" in args
    packed = sum(weight.nbytes for weight in (dense | experts).values())
    total = packed if checkpoint is None else _file_bytes(checkpoint, recorder.calls, dense)
    of_experts = round(total * sum(weight.nbytes for weight in experts.values()) / packed)
    return ModelCost(
        macs[Rows.TOKENS],
        macs[Rows.SAMPLED],
        total - of_experts,
        sum(spec.bytes_per_token for spec in specs),
        tuple(attention),
        8 * packed / _elements(list((dense | experts).values())),
        layout_of(list((dense | experts).values())).value,
        of_experts,
        share,
        sum(getattr(weight, "spared_bytes", 0) for weight in dense.values()),
        next(recorder.buffers[c.output].width for c in recorder.calls if c.name.startswith("embed")),
        ends,
    )


def attention_of(model: Model, backend: Backend, kv_dtype: str) -> tuple[AttentionSpec, KVSpec]:
    """What the model's first layer with attention computes, and what its pages hold."""
    specs = model.kv_specs(kv_dtype)
    cache = backend.kv_cache(specs, 1, 1)
    recorder, _ = record(lambda ops, inputs: model.forward(ops, inputs, cache), Limits(1, 1, 1, 1))
    return next(call.args["spec"] for call in recorder.calls if call.name == "attention"), specs[0]


def layout_of(weights: Sequence[PackedWeight]) -> Layout:
    """The one that most of the numbers lie in; of a backend that does not say, F32."""
    counts: Counter[Layout] = Counter()
    for weight in weights:
        for layout in getattr(weight, "layouts", ()):
            counts[layout] += weight.shape[0] * weight.shape[1]
    return max(counts, key=counts.__getitem__, default=Layout.F32)


def _elements(weights: Sequence[PackedWeight]) -> int:
    return sum(weight.shape[0] * weight.shape[1] for weight in weights)


def _file_bytes(checkpoint: Checkpoint, calls: Sequence[Call], streamed: Mapping[int, PackedWeight]) -> int:
    """Bytes of the file's tensors without the tables that are only looked up."""
    tables = {id(c.args["table"]): c.args["table"] for c in calls if c.name.startswith("embed")}
    looked_up = [table.shape for key, table in tables.items() if key not in streamed]
    total = 0
    for name, tensor in checkpoint.tensors.items():
        if tuple(tensor.shape) in looked_up and not any(word in name for word in ("output", "head")):
            looked_up.remove(tuple(tensor.shape))
            continue
        total += tensor.data.nbytes
    return total


# --- beside what is measured --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Line:
    """One measured piece of work beside its bound.

    Attributes:
        work: "prompt" or "decode".
        size: tokens of the prompt, or sequences decoding.
        context: mean tokens that a query saw.
        rate: tokens a second: the median of a turn's steps, or of the prompts.
        share: least time over the measured one, 0..1.
        bandwidth_share: bytes that had to be read over the time, as a part of the bandwidth.
        bandwidth: bytes a second that reading as many bytes gets; the mean of before and after.
        bound_spread: by how much the bounds of all turns lie apart (apart): the machine changed meanwhile.

    The turn whose share is the middle one: a prompt, or a few steps between two looks at memory and cores.
    """

    work: str
    size: int
    context: int
    rate: float
    bound_rate: float
    share: float
    limit: str
    bandwidth_share: float
    bandwidth: float
    bound_spread: float = 1.0


def between(before: Machine, after: Machine) -> Machine:
    """The mean of both in all that changes from one minute to the next."""
    names = ("bandwidth", "tile_rate", "attention_rate")
    return replace(before, **{name: (getattr(before, name) + getattr(after, name)) / 2 for name in names})


def apart(values: Sequence[float]) -> float:
    """The highest over the lowest; of ten and more without the highest and the lowest tenth."""
    ordered = sorted(values)
    return ordered[-1 - len(ordered) // 10] / ordered[len(ordered) // 10]


def middle(turns: Sequence[Line]) -> Line:
    """The turn whose share is the middle one, and how far the bounds of all lie apart."""
    taken = sorted(turns, key=lambda turn: turn.share)[len(turns) // 2]
    return replace(taken, bound_spread=apart([turn.bound_rate for turn in turns]))


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be measured, to be checked before anything is.

    Attributes:
        prompts: lengths. batches: sequences that decode at once. contexts: tokens that one decodes after.
        new_tokens: that are decoded in a run.
    """

    prompts: Sequence[int]
    batches: Sequence[int]
    contexts: Sequence[int]
    new_tokens: int

    def check_length(self, max_model_len: int) -> None:
        """
        Raises:
            InvalidRequestError: a sequence may not be as long as a prompt, or as a batch's are.
        """
        least, longest = DECODE_PROMPT + self.new_tokens, max(self.prompts)
        if max_model_len < least:
            why = f"batches decode {self.new_tokens} tokens after {DECODE_PROMPT}"
            raise InvalidRequestError(
                f"max_model_len must be at least {least} ({why}), not {max_model_len}", "max_model_len"
            )
        if longest >= max_model_len:
            raise InvalidRequestError(
                f"--prompt-tokens {longest}: max_model_len {max_model_len} leaves room for at most "
                f"{max_model_len - 1}",
                "max_model_len",
            )

    def check_batches(self, max_num_seqs: int, num_pages: int | None = None, page_size: int = 1) -> None:
        """
        Args:
            num_pages: of the KV cache; None: nobody knows yet.

        Raises:
            InvalidRequestError: a batch's sequences are never computed at once.
        """
        most = max(self.batches)
        if most > max_num_seqs:
            said = f"--batch-sizes {most}: max_num_seqs {max_num_seqs} allows no more at once"
            raise InvalidRequestError(said, "max_num_seqs")
        needed = most * -(-(DECODE_PROMPT + 1) // page_size)
        if num_pages is not None and needed > num_pages:
            said = f"--batch-sizes {most}: their prompts take {needed} pages of KV, and there are {num_pages}"
            raise InvalidRequestError(said, "num_pages")

    def contexts_within(self, max_model_len: int) -> list[int]:
        """Those that leave room for what is decoded."""
        return [each for each in self.contexts if each <= max_model_len - self.new_tokens]


@dataclass(frozen=True, slots=True)
class Meter:
    """Runs work, and puts it beside its bound; figures are medians over the repetitions.

    Attributes:
        new_tokens: that are decoded in a run, at least 3. repeat: runs of each piece of work, after one that
            warms up.
        sweep: measures the bandwidth for each decoding line's bytes; None: the machine's holds for all.
        prompting: measures the rates of prompts; decoding: of a line's rows; None: the machine's hold.
    """

    driver: Driver
    work: ModelCost
    machine: Machine
    new_tokens: int = 32
    repeat: int = 3
    sweep: Sweep | None = None
    prompting: Now | None = None
    decoding: Callable[[int], Now] | None = None

    def lines(
        self, prompts: Sequence[int], batches: Sequence[int], contexts: Sequence[int] = ()
    ) -> Iterator[Line]:
        """Prompts of these lengths, batches of these sizes, one sequence after so many tokens; one by one."""
        yield from (self._prompt_line(length) for length in prompts)
        decodes = [*((batch, DECODE_PROMPT) for batch in batches), *((1, context) for context in contexts)]
        yield from (self._decode_line(batch, prompt) for batch, prompt in decodes)

    def _prompt_line(self, length: int) -> Line:
        look = self.prompting or (lambda machine: machine)
        self._run(0, 1, length, 1)  # warms up
        lines, before = [], look(self.machine)
        for seed in range(1, self.repeat + 1):
            seconds = self._run(seed, 1, length, 1).prompt_s
            after = look(self.machine)
            here = between(before, after)
            bound = self.work.prompt(here, length, self.driver.max_step_tokens)
            lines.append(_line("prompt", length, length // 2, length, seconds, bound, here))
            before = after
        return middle(lines)

    def _decode_line(self, batch: int, prompt: int) -> Line:
        context = prompt + self.new_tokens // 2
        moved = self.work.decode_bytes(batch, context)
        rates = self.decoding(batch) if self.decoding else (lambda machine: machine)
        sweep = self.sweep or (lambda _: self.machine.bandwidth)
        lines = []
        for seconds, here in self._turns(
            batch, prompt, lambda: rates(replace(self.machine, bandwidth=sweep(moved)))
        ):
            bound = self.work.decode(here, batch, context)
            lines.append(_line("decode", batch, context, batch, seconds, bound, here))
        if not lines:
            raise OctavoError(f"{batch} sequences never drew at once: is there too little room for their KV?")
        return middle(lines)

    def _turns(self, batch: int, prompt: int, look: Callable[[], Machine]) -> list[tuple[float, Machine]]:
        """Of each turn of all runs the seconds of a step, and the machine beside it."""
        every = [self._turns_of_run(seed, batch, prompt, look) for seed in range(self.repeat + 1)]
        return [turn for turns in every[1:] for turn in turns]  # the first run warmed up

    def _turns_of_run(
        self, seed: int, batch: int, prompt: int, look: Callable[[], Machine]
    ) -> list[tuple[float, Machine]]:
        """Others share memory and cores, so what these give now is looked at between steps.

        The first step after a look is left out: its time has the look in it, and caches are full of what
        that has read.
        """
        steps, full = 0, 0
        seen: list[tuple[int, Machine]] = []  # after so many steps

        def after_step(drawn: Sequence[Drawn]) -> None:
            nonlocal steps, full
            steps += 1
            # Only steps in which everybody draws: with long prompts some start earlier and end earlier.
            if sum(each.tokens for each in drawn) == batch:
                full += 1
                if full % TURN == 1:
                    seen.append((steps, look()))

        run = self._run(seed, batch, prompt, self.new_tokens, after_step)
        if seen and seen[-1][0] < steps:
            seen.append((steps, look()))
        timed, turns = (*run.prompt, *run.decode), []
        for (begin, before), (end, behind) in pairwise(seen):
            seconds = [step.seconds for step in timed[begin + 1 : end] if step.tokens == batch]
            if seconds:
                turns.append((statistics.median(seconds), between(before, behind)))
        return turns

    def _run(self, seed: int, count: int, length: int, new_tokens: int, watch: Watch | None = None) -> Run:
        prompts = random_prompts(count, length, self.driver.vocab_size, seed)
        return self.driver.run(prompts, new_tokens, watch=watch)


def _line(
    work: str, size: int, context: int, tokens: int, seconds: float, bound: Bound, machine: Machine
) -> Line:
    return Line(
        work,
        size,
        context,
        tokens / seconds,
        tokens / bound.seconds,
        bound.seconds / seconds,
        bound.limit,
        bound.memory_s / seconds,
        machine.bandwidth,
    )
