"""From an EngineConfig to a loaded model: the one place where all rooms meet, in phases.

resolve   alias or path -> files            checkpoints.sources
device    a GPU, or why the CPU             kernels
tokenizer metadata -> Tokenizer, template   tokenizer
weights   tensors -> packed weights         quant, kernels, models
draft model  the same of a model that drafts, where one is named
memory    what is free -> pages             assembly.memory
program   forward -> captured program       runtime.model_runner
compile   its kernels, where there is a GPU  runtime.overlap
step costs  of steps that verify drafts     runtime.step_costs

What ends later, in the background (captures), is told as a phase too.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.assembly.engine import limits_of, states_of
from octavo.config import EngineConfig, SchedulerConfig
from octavo.errors import CheckpointError

if TYPE_CHECKING:
    from octavo.assembly.memory import Budget
    from octavo.checkpoints.base import Checkpoint, StoredTensor
    from octavo.kernels.ops import Backend
    from octavo.models.registry import Model
    from octavo.runtime.model_runner import ModelRunner
    from octavo.runtime.page_file import PrefixFile
    from octavo.runtime.speculation import Speculation
    from octavo.tokenizer import Tokenizer
    from octavo.tokenizer.chat import ChatTemplate

FLOATS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
Progress = Callable[[str, float], None]
"""Called with (phase, seconds it took) as each phase ends."""


@dataclass(frozen=True, slots=True, eq=False)
class Loaded:
    """Everything that answers. Whoever drives it makes an engine of it: core_of()."""

    user: EngineConfig
    config: SchedulerConfig
    path: Path
    tokenizer: Tokenizer
    template: ChatTemplate
    backend: Backend
    model: Model
    memory: Budget
    runner: ModelRunner
    phases: dict[str, float]
    decoder_prompt: tuple[int, ...] = ()  # of an encoder-decoder model: what its decoder begins with
    generation: Mapping[str, Any] = field(default_factory=dict)  # generation_config.json over config.json
    page_file: PrefixFile | None = None  # the prefix cache's tier on disk
    facts: Mapping[str, str] = field(default_factory=dict)  # what the lines of a start should say
    speculation: Speculation | None = None  # who proposes drafts

    @property
    def embedding_size(self) -> int | None:
        """Members of an embedding; None: the model gives none."""
        from octavo.models.registry import Embedder

        return self.model.hidden_size if isinstance(self.model, Embedder) else None


class _Phases:
    def __init__(self, progress: Progress | None) -> None:
        self.seconds: dict[str, float] = {}
        self._progress, self._since = progress, time.perf_counter()

    def done(self, name: str) -> None:
        now = time.perf_counter()
        since, self._since = self._since, now
        self.tell(name, now - since)

    def tell(self, name: str, seconds: float) -> None:
        """A phase that somebody else has timed, on any thread."""
        self.seconds[name] = seconds
        if self._progress is not None:
            self._progress(name, seconds)


def load(user: EngineConfig, progress: Progress | None = None) -> Loaded:
    """Load the model that the user named.

    Raises:
        OctavoError: one line that names what is wrong; nothing keeps running.
    """
    from octavo.assembly.drafting import drafter_of
    from octavo.assembly.memory import Shape, budget_of, free_memory_of, page_specs, shortened
    from octavo.assembly.pages import cache_of, content_hash, page_file_of
    from octavo.assembly.speculation import choose_policy, kinds_of, speculation_of
    from octavo.assembly.tokenizer import tokenizer_and_template
    from octavo.checkpoints import open_checkpoint
    from octavo.models.load import load_model
    from octavo.runtime.free_memory import seconds_to_copy
    from octavo.runtime.heaps import return_freed
    from octavo.runtime.overlap import make_runner
    from octavo.runtime.page_moves import PageMoves

    phases = _Phases(progress)
    path = _found(user)
    phases.done("resolve")
    checkpoint = open_checkpoint(path)
    content = content_hash(user, checkpoint)
    backend, facts = _backend(user, checkpoint)
    backend.report(phases.tell)
    phases.done("device")
    # Before the weights, not beside them: what it takes to make a tokenizer is gone again when they come.
    tokenizer, template = tokenizer_and_template(user, checkpoint, path)
    checkpoint.forget_tokenizer()
    return_freed()
    phases.done("tokenizer")
    model, weight_bytes = load_model(checkpoint, backend, user.dtype, user.max_model_len, user.quantization)
    phases.done("weights")
    check_vocabulary(tokenizer, model)
    drafter = drafter_of(user, backend, model, tokenizer, phases.done)
    generation, begin = _generation(path, model)
    specs = [*page_specs(model, backend, user), *drafter.specs]
    free, shape = free_memory_of(user, model, backend), Shape.of(model, backend, specs)
    memory, config = budget_of(user, shape, weight_bytes + drafter.weights, free)
    facts |= {**drafter.facts, **shortened(user, shape, config), "dtype": weights_format(user, checkpoint)}
    cache = cache_of(memory, config, backend, specs, drafter.pages(config.max_num_seqs))
    if swap := memory.num_swap_pages:  # the scheduler weighs a copy against computing the pages again
        each = seconds_to_copy(cache.kv, cache.first_block)
        config = replace(config, num_swap_pages=swap, swap_page_s=each)
    pages = page_file_of(user, backend, cache.kv, specs, content, drafter.content)
    phases.done("memory")
    limits, states, ends = limits_of(config), states_of(config, cache.spare), tokenizer.stop_token_ids
    speculation = speculation_of(user, config, model, backend, drafter, cache)
    moves, kinds = PageMoves(cache.kv, cache.first_block, pages), kinds_of(speculation)
    runner = make_runner(model, backend, moves, limits, states, ends, kinds)
    return_freed()
    phases.done("program")
    if runner.prepare():  # (a CPU has nothing to compile, and its start should not tell of it)
        phases.done("compile")
    if speculation is not None and choose_policy(user, config, speculation, runner):
        phases.done("step costs")
    return Loaded(
        user, config, path, tokenizer, template, backend, model, memory, runner, phases.seconds, begin,
        generation, pages, facts, speculation,
    )  # fmt: skip


def _found(user: EngineConfig) -> Path:
    """The model's file or folder. That of one that drafts is looked for, too, before anything is read."""
    from octavo.assembly.drafting import find_drafter
    from octavo.checkpoints.sources import resolve

    path = resolve(user.model)
    find_drafter(user)
    return path


def _generation(path: Path, model: Model) -> tuple[Mapping[str, Any], tuple[int, ...]]:
    """What generation_config.json says over config.json, and what a decoder beside an encoder begins with."""
    from octavo.checkpoints.generation import decoder_prompt, read_generation
    from octavo.models.registry import EncoderDecoder

    generation = read_generation(path)
    return generation, decoder_prompt(generation) if isinstance(model, EncoderDecoder) else ()


def _backend(user: EngineConfig, checkpoint: Checkpoint) -> tuple[Backend, dict[str, str]]:
    """Where it runs, and what is to be said of it."""
    from octavo.kernels.cuda.device import choose
    from octavo.kernels.select import WantedBackend, make_backend
    from octavo.runtime.hardware import usable_threads

    weights = partial(least_bytes, checkpoint, user.dtype)
    choice = choose(user.device, user.backend, weights=weights, share=gpu_share(user))
    wanted = WantedBackend(
        user.threads or usable_threads(),
        user.isa,
        user.dtype,
        choice.device,
        bit_exact=user.bit_exact,
        round_activations=user.round_activations,
        enforce_eager=user.enforce_eager,
    )
    backend = make_backend(user.backend, wanted)
    facts = {} if choice.why is None else {"device": f"cpu: {choice.why}"}
    return backend, {**facts, **backend.facts()}


def gpu_share(user: EngineConfig) -> float:
    """Of a GPU's memory, that everything together may take."""
    from octavo.kernels.cuda.device import SHARE

    return SHARE if user.gpu_memory_utilization is None else user.gpu_memory_utilization


def check_vocabulary(tokenizer: Tokenizer, model: Model) -> None:
    """Raise CheckpointError where the tokenizer has words that the model lacks."""
    if tokenizer.vocab_size > model.vocab_size:
        raise CheckpointError(
            f"the tokenizer has {tokenizer.vocab_size} tokens, the model's vocabulary {model.vocab_size}"
        )


def least_bytes(checkpoint: Checkpoint, dtype: str) -> int:
    """What the weights take on a GPU at least: as stored, or in 16 bits where they are wider.

    By their shapes: a file that was opened for its headers may hold none of their bytes.
    """
    widest = 4 if dtype == "float32" else 2
    total = 0
    for name in checkpoint.tensors:
        try:
            tensor = checkpoint.tensors[name]
        except CheckpointError:  # of a type that nobody reads; whoever needs it will say so
            continue
        total += min(_stored_bytes(tensor), widest * prod(tensor.shape))
    return total


def weights_format(user: EngineConfig, checkpoint: Checkpoint) -> str:
    """What the weights are: a dtype or a method that the user asked for, the method of their files, or the
    number format that most of their bytes have."""
    from octavo.quant.on_load import made_on_load
    from octavo.quant.scheme import method_of

    if user.dtype == "float32":
        return user.dtype
    if (made := made_on_load(user.quantization, checkpoint)) is not None:
        return made.names[0]
    if (method := method_of(checkpoint.config)) is not None:
        return method
    sizes = Counter[str]()
    for name in checkpoint.tensors:
        with suppress(CheckpointError):  # of a type that nobody reads, and this model does not need
            tensor = checkpoint.tensors[name]
            sizes[tensor.format] += tensor.data.nbytes
    ((most, _),) = sizes.most_common(1)
    if most not in FLOATS:
        return most
    return FLOATS[most] if user.dtype == "auto" else user.dtype


def _stored_bytes(tensor: StoredTensor) -> int:
    from octavo.quant.registry import get_format, names

    if tensor.format not in names():  # codes of a method (safetensors), whose files are never cut
        return tensor.data.nbytes
    format_ = get_format(tensor.format)
    return prod(tensor.shape) // format_.block * format_.block_bytes
