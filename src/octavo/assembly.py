"""From an EngineConfig to a loaded model: the one place where all rooms meet, in phases.

resolve   alias or path -> files            checkpoints.hub
device    a GPU, or why the CPU             kernels
tokenizer metadata -> Tokenizer, template   tokenizer
weights   tensors -> packed weights         quant, kernels, models
memory    what is free -> pages             runtime.memory
program   forward -> captured program       runtime.runner
compile   its kernels, where there is a GPU  runtime.pipeline

What ends later, in the background (captures), is told as a phase too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.config import (
    DISK_SPACE,
    MAX_IN_FLIGHT,
    EngineConfig,
    SchedulerConfig,
    context_length,
    encoder_length,
    pages_at_a_time,
    resolve,
    tokens_of_a_step,
)
from octavo.errors import CheckpointError, InvalidRequestError, UnsupportedError

if TYPE_CHECKING:
    from octavo.checkpoints.base import Checkpoint
    from octavo.checkpoints.content import ContentHash
    from octavo.kernels.ops import Backend, KVCache, KVSpec, Limits
    from octavo.models.registry import Model
    from octavo.runtime.division import LocalNeed
    from octavo.runtime.memory import MemoryPlan
    from octavo.runtime.page_file import MappedPages
    from octavo.runtime.runner import ModelRunner
    from octavo.runtime.states import RequestStates
    from octavo.tokenizer import Tokenizer
    from octavo.tokenizer.chat import ChatTemplate

Progress = Callable[[str, float], None]
"""Called with (phase, seconds it took) as each phase ends."""


@dataclass(frozen=True, slots=True, eq=False)
class Loaded:
    """Everything that answers. The engine itself is made by whoever drives it (llm.py)."""

    user: EngineConfig
    config: SchedulerConfig
    path: Path
    tokenizer: Tokenizer
    template: ChatTemplate
    backend: Backend
    model: Model
    memory: MemoryPlan
    runner: ModelRunner
    phases: dict[str, float]
    decoder_prompt: tuple[int, ...] = ()  # of an encoder-decoder model: what its decoder begins with
    generation: Mapping[str, Any] = field(default_factory=dict)  # generation_config.json over config.json
    page_file: MappedPages | None = None  # the prefix cache's tier on disk
    facts: Mapping[str, str] = field(default_factory=dict)  # what the lines of a start should say

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


def load(user: EngineConfig, progress: Progress | None = None, planned: bool = False) -> Loaded:
    """Load the model that the user named.

    Args:
        planned: weights, pages and buffers get their sizes, but weights are not written: for
            bench.plan, which weighs what comes back. It must not run.

    Raises:
        OctavoError: one line that names what is wrong; nothing keeps running.
    """
    from octavo.checkpoints import open_checkpoint
    from octavo.checkpoints.generation import decoder_prompt, read_generation
    from octavo.checkpoints.hub import resolve as find
    from octavo.models.load import load_model
    from octavo.models.registry import EncoderDecoder
    from octavo.runtime.memory import page_specs, return_freed, seconds_to_copy
    from octavo.runtime.pipeline import make_runner

    phases = _Phases(progress)
    path = find(user.model)
    phases.done("resolve")
    checkpoint = open_checkpoint(path)
    content = None if planned else _content_hash(user, checkpoint)
    backend, facts = _backend(user, planned, checkpoint)
    backend.report(phases.tell)
    phases.done("device")
    # Before the weights, not beside them: what it takes to make a tokenizer is gone again when they come.
    tokenizer, template = _words(user, checkpoint, path)
    checkpoint.forget_words()
    return_freed()
    phases.done("tokenizer")
    model, weight_bytes = load_model(checkpoint, backend, user.dtype, context=user.max_model_len)
    phases.done("weights")
    if tokenizer.vocab_size > model.vocab_size:
        raise CheckpointError(
            f"the tokenizer has {tokenizer.vocab_size} tokens, the model's vocabulary {model.vocab_size}"
        )
    generation = read_generation(path)
    begin = decoder_prompt(generation) if isinstance(model, EncoderDecoder) else ()
    specs = page_specs(model, backend, user.kv_dtype, user.kv_cache_dtype != "auto")
    memory, config = _memory(user, model, backend, specs, weight_bytes, planned)
    first_slot = memory.num_pages + (config.window is not None)
    kv, spare = _kv_cache(config, memory, backend, specs, first_slot)
    if swap := memory.num_swap_pages:
        page_s = 0.0 if planned else seconds_to_copy(kv, first_slot)
        config = replace(config, num_swap_pages=swap, swap_page_s=page_s)
    pages = _page_file(user, backend, kv, specs, content)
    phases.done("memory")
    limits, states = limits_of(config), states_of(config, spare)
    stop_ids = tokenizer.stop_token_ids
    runner = make_runner(model, backend, kv, limits, states, stop_ids, first_slot, pages)
    return_freed()
    phases.done("program")
    if not planned and runner.prepare():
        phases.done("compile")
    return Loaded(
        user, config, path, tokenizer, template, backend, model, memory, runner, phases.seconds, begin,
        generation, pages, facts,
    )  # fmt: skip


def _backend(user: EngineConfig, planned: bool, checkpoint: Checkpoint) -> tuple[Backend, dict[str, str]]:
    """Where it runs, and what is to be said of it. Only what a CPU will take can be planned."""
    from octavo.kernels.cuda.device import SHARE, Choice, choose
    from octavo.kernels.select import make_backend
    from octavo.runtime.hardware import usable_threads

    choice = Choice("cpu")
    if not planned:
        share = SHARE if user.gpu_memory_utilization is None else user.gpu_memory_utilization
        weights = partial(least_bytes, checkpoint, user.dtype)
        choice = choose(user.device, user.backend, weights=weights, share=share)
    threads = user.threads or usable_threads()
    backend = make_backend(
        user.backend, user.isa, threads, planned, choice.device, user.dtype, user.bit_exact,
        user.round_activations, not user.enforce_eager,
    )  # fmt: skip
    facts = {} if choice.why is None else {"device": f"cpu: {choice.why}"}
    return backend, {**facts, **backend.facts()}


def least_bytes(checkpoint: Checkpoint, dtype: str) -> int:
    """What the weights take on a GPU at least: as stored, or in 16 bits where they are wider."""
    widest = 4 if dtype == "float32" else 2
    total = 0
    for name in checkpoint.tensors:
        try:
            tensor = checkpoint.tensors[name]
        except CheckpointError:  # of a type that nobody reads; whoever needs it will say so
            continue
        total += min(tensor.data.nbytes, widest * prod(tensor.shape))
    return total


def _memory(
    user: EngineConfig,
    model: Model,
    backend: Backend,
    specs: Sequence[KVSpec],
    weight_bytes: int,
    planned: bool,
) -> tuple[MemoryPlan, SchedulerConfig]:
    """The pages that fit, and the engine's numbers with them."""
    from octavo.models.registry import EncoderDecoder
    from octavo.runtime.memory import activation_reserve, available_memory, free_after, plan_memory, window_of

    source = model.max_source if isinstance(model, EncoderDecoder) else 0
    encoder = encoder_length(user, source)
    of_encoder = -(-encoder // user.page_size) * user.page_size
    length = context_length(user, model.max_position) + of_encoder
    share, free = user.gpu_memory_utilization, free_after(weight_bytes) if planned else None
    own = backend.page_budget(share, activation_reserve(user.max_num_seqs, model.vocab_size))
    system = None
    if own is not None:
        share, free, system = 1.0, own, available_memory()
    tokens = tokens_of_a_step(user, encoder, backend.step_tokens)
    local = local_need(specs, length, user.max_num_seqs, user.page_size, tokens)
    if local is None and user.num_local_pages is not None:
        raise InvalidRequestError(
            "num_local_pages is for models some of whose layers have a window; here all layers share pages, "
            "since all have one, or none, or the context is no longer than the window and two steps of "
            f"max_num_batched_tokens ({tokens})",
            "num_local_pages",
        )
    memory = plan_memory(
        specs, weight_bytes, length, user.max_num_seqs, user.page_size, user.num_pages, share, free,
        user.swap_space, system, local, user.num_local_pages,
    )  # fmt: skip
    return memory, resolve(
        user, model.max_position, memory.num_pages, source, backend.step_tokens, window_of(specs),
        None if local is None else local.window, memory.num_local_pages,
    )  # fmt: skip


def _kv_cache(
    config: SchedulerConfig, memory: MemoryPlan, backend: Backend, specs: Sequence[KVSpec], first_slot: int
) -> tuple[KVCache, int]:
    """The cache, and its page that stands in for those behind a window. Swap slots begin at first_slot."""
    from octavo.kernels.split_kv import SplitKVCache

    size, swap = config.page_size, memory.num_swap_pages
    if config.local_window is None:
        return backend.kv_cache(specs, first_slot, size, swap), memory.num_pages
    kv = SplitKVCache(backend, specs, memory.num_pages, config.num_local_pages, size, swap)
    return kv, kv.spare


def local_need(
    specs: Sequence[KVSpec], length: int, max_num_seqs: int, page_size: int, step_tokens: int
) -> LocalNeed | None:
    """What layers with a window need for themselves; None: they share pages with the others.

    They do where all layers have a window or none has, and where a sequence is not longer than what it
    needs at a time anyway.

    Args:
        length: of the longest sequence.
        step_tokens: of all sequences in a step.
    """
    from octavo.runtime.division import LocalNeed

    windows = [spec.window for spec in specs if spec.window is not None]
    if not windows or len(windows) == len(specs):
        return None
    window = max(windows)
    most = pages_at_a_time(length, page_size, window, step_tokens)
    if most >= -(-length // page_size):
        return None
    # Steps in flight write so many tokens in all; beyond them each sequence sees what one token sees.
    each, written = (
        pages_at_a_time(length, page_size, window, 1),
        -(-MAX_IN_FLIGHT * step_tokens // page_size),
    )
    size = sum(spec.bytes_per_token for spec in specs if spec.window is not None)
    return LocalNeed(window, most, max(most, max_num_seqs * each + written), size)


def _content_hash(user: EngineConfig, checkpoint: Checkpoint) -> ContentHash | None:
    """What names the prefix cache's file, if there is to be one: begun here, beside the weights.

    Raises:
        InvalidRequestError: the folder is no folder.
    """
    if user.prefix_cache_dir is None:
        return None
    from octavo.checkpoints.content import ContentHash
    from octavo.runtime.page_file import check_folder

    check_folder(user.prefix_cache_dir)
    return ContentHash(checkpoint)


def _page_file(
    user: EngineConfig, backend: Backend, kv: KVCache, specs: Sequence[KVSpec], content: ContentHash | None
) -> MappedPages | None:
    """Where the prefix cache outlives the process: a file of this model and this way to compute its pages.

    Raises:
        InvalidRequestError, CapacityError: the folder is no folder, or its space holds no page.
        UnsupportedError: pages lie in a GPU's memory.
    """
    if user.prefix_cache_dir is None or content is None:
        return None
    from octavo import __version__
    from octavo.kernels.select import kernels_hash
    from octavo.kernels.split_kv import SplitKVCache
    from octavo.runtime.page_file import MappedPages
    from octavo.runtime.page_moves import page_bytes

    size = page_bytes(kv)
    if size is None:
        raise UnsupportedError("prefix_cache_dir is for a CPU: pages stay on a GPU", "prefix_cache_dir")
    made_by = {
        "model": content.result(),
        "octavo": __version__,
        "kernels": [backend.name, backend.isa, kernels_hash()],
        "dtype": [user.dtype, user.quantization],
        "context": user.max_model_len,  # scaled rotary embeddings may depend on it
        "pages": [user.page_size, [repr(spec) for spec in specs]],
    }
    if isinstance(kv, SplitKVCache):
        made_by["local"] = True  # a page on disk is both of its parts
    space = DISK_SPACE if user.prefix_cache_disk_space is None else user.prefix_cache_disk_space
    return MappedPages.open(user.prefix_cache_dir, made_by, size, int(space * 2**30))


def states_of(config: SchedulerConfig, spare_page: int) -> RequestStates:
    """The runner's memory of its rows.

    Args:
        spare_page: stands in for pages, or local ones, that a window has passed.
    """
    from octavo.runtime.states import RequestStates

    return RequestStates(
        config.max_num_seqs,
        config.max_model_len,
        config.page_size,
        config.max_encoder_len,
        config.window if config.local_window is None else config.local_window,
        spare_page,
        local=config.local_window is not None,
    )


def limits_of(config: SchedulerConfig) -> Limits:
    """Of one batch, the decoder's or the encoder's."""
    from octavo.kernels.ops import Limits

    return Limits(
        max_tokens=max(config.max_num_batched_tokens, config.max_num_seqs),
        max_sequences=config.max_num_seqs,
        max_sampled=config.max_num_seqs,
        max_pages_per_sequence=-(-max(config.max_model_len, config.max_encoder_len) // config.page_size),
        local=config.local_window is not None,
    )


def _words(user: EngineConfig, checkpoint: Checkpoint, path: Path) -> tuple[Tokenizer, ChatTemplate]:
    """The tokenizer and the chat template: the model's own, or what the user gave."""
    from octavo.checkpoints import open_checkpoint
    from octavo.checkpoints.hub import default_cache_dir
    from octavo.checkpoints.hub import resolve as find
    from octavo.tokenizer.chat import ChatTemplate
    from octavo.tokenizer.folder import from_folder
    from octavo.tokenizer.gguf import from_gguf

    if user.tokenizer is not None:
        try:
            path = find(user.tokenizer, weights=False)
        except CheckpointError as error:
            text = str(error).replace("unknown model", "unknown tokenizer")
            raise InvalidRequestError(f"--tokenizer: {text}", "tokenizer") from None
        checkpoint = checkpoint if path.is_dir() else open_checkpoint(path)
    if path.is_dir():
        tokenizer = from_folder(path)
    else:
        tokenizer = from_gguf(checkpoint.config, default_cache_dir() / "merges")
    source = tokenizer.chat_template if user.chat_template is None else _template(user.chat_template)
    template = ChatTemplate(source, tokenizer.special_tokens)
    if user.chat_template is not None:
        template.compile()  # whoever starts the engine hears of a mistake in it, not who chats
    return tokenizer, template


def _template(given: str) -> str:
    """A template's text, given as such or as a file's path. Jinja has braces, paths seldom do."""
    if "{" in given:
        return given
    try:
        return Path(given).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequestError(
            f"chat template {given!r} cannot be read: {error}", "chat_template"
        ) from None
