"""What load() would allocate, without loading: shapes come from config.json or a GGUF header."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from octavo.assembly.drafting import drafter_of
from octavo.assembly.engine import limits_of, states_of
from octavo.assembly.loading import check_vocabulary, gpu_share, least_bytes
from octavo.assembly.memory import Budget, Shape, budget_of, free_after, free_memory_of, page_specs
from octavo.assembly.pages import cache_of
from octavo.assembly.speculation import drafts_of, proposer_bytes
from octavo.assembly.tokenizer import tokenizer_and_template
from octavo.checkpoints import open_checkpoint
from octavo.checkpoints.base import Checkpoint
from octavo.checkpoints.sources import resolve as find
from octavo.config import EngineConfig, SchedulerConfig
from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.kernels.cuda.device import choose
from octavo.kernels.ops import Backend
from octavo.kernels.select import WantedBackend, make_backend
from octavo.models.filled import FilledLoader
from octavo.models.load import load_model, outline_model
from octavo.models.registry import EncoderDecoder, Model
from octavo.runtime.hardware import usable_threads
from octavo.runtime.heaps import return_freed
from octavo.runtime.overlap import make_runner
from octavo.runtime.page_moves import PageMoves
from octavo.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Planned:
    """What a start would have made.

    Attributes:
        budget: of weights, pages and swap space. config: the engine's numbers with them.
        activations: bytes of a step's buffers. rows: of the running requests' tokens and tables, and of
            what drafts are proposed from.
        tokenizer: the model's, where its files are there; what the process holds includes it.
        cut: Checkpoint.cut of the model's file, or of that of the one that drafts.
    """

    budget: Budget
    config: SchedulerConfig
    activations: int
    rows: int
    tokenizer: Tokenizer | None
    cut: tuple[int, int] | None


def plan(user: EngineConfig, free: int | None = None) -> Planned:
    """Plan what load(user) would allocate on a CPU. Nothing that it weighs takes memory of that size.

    Args:
        free: bytes that a machine without the model has left; None asks this one.

    Raises:
        UnsupportedError: it would run on a GPU, or without the native kernels.
        CapacityError: the weights or a page do not fit.
        OctavoError: the model or an option is wrong, as in load().
    """
    path = find(user.model)
    checkpoint = open_checkpoint(path, headers=True)
    refuse_gpu(user, partial(_least, user, checkpoint))
    tokenizer = _tokenizer(user, checkpoint, path)
    model, weights, backend = _outline(user, checkpoint)
    if tokenizer is not None:
        check_vocabulary(tokenizer, model)
    drafter = drafter_of(user, backend, model, tokenizer, planned=True)
    weights += drafter.weights
    specs = [*page_specs(model, backend, user), *drafter.specs]
    free_memory = free_memory_of(user, model, backend, free_after(weights, free))
    budget, config = budget_of(user, Shape.of(model, backend, specs), weights, free_memory)
    config = replace(config, num_swap_pages=budget.num_swap_pages)
    one = replace(budget, num_pages=1, num_swap_pages=0, num_sliding_pages=min(budget.num_sliding_pages, 1))
    cache = cache_of(one, config, backend, specs, 0)  # programs are as large, however many pages there are
    runner = make_runner(
        model, backend, PageMoves(cache.kv), limits_of(config), states_of(config, cache.spare)
    )
    drafts = drafts_of(drafter, config, backend, cache)
    activations = runner.activation_bytes + (0 if drafts is None else drafts.activation_bytes)
    rows = runner.state_bytes + proposer_bytes(user, config, drafter, specs)
    cut = checkpoint.cut or drafter.cut
    return Planned(budget, config, activations, rows, tokenizer, cut)


@dataclass(frozen=True, slots=True)
class Outlined:
    """A model's weights as they would be kept, and its keys and values of one token, both in bytes.

    A model that drafts for it is counted in both.

    Attributes:
        parameters: of the model alone.
        model: without its numbers. backend: that would pack them. kv_dtype: as KVSpec names it.
    """

    weights: int
    parameters: int
    bytes_per_token: int
    model: Model
    backend: Backend
    kv_dtype: str

    @property
    def needs_encoder(self) -> bool:
        """Whether its decoder reads what an encoder made of another input."""
        return isinstance(self.model, EncoderDecoder)


def outline(user: EngineConfig) -> Outlined:
    """What a model takes of any machine, from its config or headers: of a hub id no weights are pulled.

    Raises:
        OctavoError: there is no such model, or its architecture is unknown.
    """
    checkpoint = open_checkpoint(find(user.model, weights=False), headers=True)
    model, weights, backend = _outline(user, checkpoint)
    parameters = _outline(replace(user, dtype="float32", quantization=None), checkpoint)[1] // 4
    drafter = drafter_of(user, backend, model, None, planned=True)
    weights += drafter.weights
    specs = [*page_specs(model, backend, user), *drafter.specs]
    per_token = sum(spec.bytes_per_token for spec in specs)
    return Outlined(weights, parameters, per_token, model, backend, specs[0].dtype)


def stand_in(user: EngineConfig) -> tuple[Model, Backend]:
    """The model with arbitrary numbers in place of its weights, and a backend that computes: to be timed. It
    takes the memory that load() would take for weights.

    Raises:
        OctavoError: as outline().
    """
    checkpoint = open_checkpoint(find(user.model, weights=False), headers=True)
    wanted = WantedBackend(user.threads or usable_threads(), user.isa, user.dtype)
    backend = make_backend(user.backend, wanted)
    window, method = user.max_model_len, user.quantization
    return load_model(checkpoint, backend, user.dtype, window, method, FilledLoader)[0], backend


def refuse_gpu(user: EngineConfig, weights: Callable[[], int]) -> None:
    """Raise UnsupportedError where load() would take a GPU, whose memory is divided while it runs."""
    device, why = user.device, ""
    try:
        device = choose(device, user.backend, weights=weights, share=gpu_share(user)).device
    except InvalidRequestError as error:
        why = f"; and here {error}"
    if device != "cpu":
        raise UnsupportedError(
            f"octavo plan cannot plan for device {device} yet, only for a CPU: "
            f"--device cpu plans for the CPU{why}",
            "device",
        )


def _outline(user: EngineConfig, checkpoint: Checkpoint) -> tuple[Model, int, Backend]:
    """The model without its numbers, the bytes of its weights, and the backend that would pack them."""
    wanted = WantedBackend(user.threads or usable_threads(), user.isa, user.dtype, planned=True)
    backend = make_backend(user.backend, wanted)
    window, method = user.max_model_len, user.quantization
    return *outline_model(checkpoint, backend, user.dtype, window, method), backend


def _least(user: EngineConfig, checkpoint: Checkpoint) -> int:
    """What load() would compare with a GPU's memory; of config.json alone, what a CPU would pack."""
    if checkpoint.tensors:
        return least_bytes(checkpoint, user.dtype)
    return _outline(user, checkpoint)[1]


def _tokenizer(user: EngineConfig, checkpoint: Checkpoint, path: Path) -> Tokenizer | None:
    """As load() makes it; None: nobody has named one, and beside config.json alone there is none either."""
    named = user.tokenizer is not None or user.chat_template is not None
    alone = path.is_dir() and not checkpoint.tensors
    if alone and not named and not (path / "tokenizer.json").exists():
        return None
    tokenizer, _ = tokenizer_and_template(user, checkpoint, path)
    checkpoint.forget_tokenizer()
    return_freed()
    return tokenizer
