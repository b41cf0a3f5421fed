"""Where pages lie: the KV cache, and the file in which the prefix cache outlives the process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo import __version__
from octavo.assembly.memory import Budget
from octavo.checkpoints.base import Checkpoint
from octavo.checkpoints.content import ContentHash
from octavo.config import DISK_SPACE, EngineConfig, SchedulerConfig
from octavo.errors import UnsupportedError
from octavo.kernels.ops import Backend, KVCache, KVSpec
from octavo.kernels.select import kernels_hash
from octavo.kernels.split_kv import SplitKVCache
from octavo.runtime.page_file import PrefixFile, check_folder
from octavo.runtime.page_moves import page_bytes


def kv_cache_of(
    budget: Budget, backend: Backend, specs: Sequence[KVSpec], first_block: int, loose: int = 0
) -> tuple[KVCache, int]:
    """The cache, and its page that stands in for those behind a window.

    Args:
        first_block: the swap space begins there. loose: pages before it that no request holds.
    """
    size, swap = budget.page_size, budget.num_swap_pages
    if budget.sliding is None:
        return backend.kv_cache(specs, first_block, size, swap), budget.num_pages
    kv = SplitKVCache(backend, specs, first_block, budget.num_sliding_pages + loose, size, swap)
    return kv, kv.spare


@dataclass(frozen=True, slots=True, eq=False)
class Cache:
    """The pages, and what lies behind those of requests.

    Attributes:
        spare: stands in for pages behind a window.
        first_loose: of those that no request holds. first_block: of the swap space, which comes after them.
    """

    kv: KVCache
    spare: int
    first_loose: int
    first_block: int


def cache_of(
    budget: Budget, config: SchedulerConfig, backend: Backend, specs: Sequence[KVSpec], loose: int
) -> Cache:
    """Memory for the pages of a budget, and for `loose` ones beside them."""
    first = budget.num_pages + (config.window is not None)
    return Cache(*kv_cache_of(budget, backend, specs, first + loose, loose), first, first + loose)


def content_hash(user: EngineConfig, checkpoint: Checkpoint) -> ContentHash | None:
    """What names the prefix cache's file, if there is to be one: begun here, beside the weights.

    Raises:
        InvalidRequestError: the folder is no folder.
    """
    if user.prefix_cache_dir is None:
        return None
    check_folder(user.prefix_cache_dir)
    return ContentHash(checkpoint)


def page_file_of(
    user: EngineConfig,
    backend: Backend,
    kv: KVCache,
    specs: Sequence[KVSpec],
    content: ContentHash | None,
    drafter: ContentHash | None = None,
) -> PrefixFile | None:
    """Where the prefix cache outlives the process: a file of this model and this way to compute its pages.

    Args:
        drafter: names the model whose layers are the last ones of a page; None: all are the model's.

    Raises:
        InvalidRequestError, CapacityError: the folder is no folder, or its space holds no page.
        UnsupportedError: pages cannot be taken out of this cache.
    """
    if user.prefix_cache_dir is None or content is None:
        return None
    size = page_bytes(kv)
    if size is None:
        raise UnsupportedError("prefix_cache_dir: these pages cannot be written to disk", "prefix_cache_dir")
    made_by: dict[str, object] = {
        "model": content.result(),
        "octavo": __version__,
        "kernels": [backend.name, backend.isa, kernels_hash(backend.name)],
        "dtype": [user.dtype, user.quantization],
        "context": user.max_model_len,  # scaled rotary embeddings may depend on it
        "pages": [user.page_size, [repr(spec) for spec in specs]],
    }
    if user.bit_exact or user.round_activations:  # a GPU computes other bits then
        made_by["rounding"] = [user.bit_exact, user.round_activations]
    if drafter is not None:
        made_by["drafter"] = drafter.result()
    if isinstance(kv, SplitKVCache):
        made_by["local"] = True  # a page on disk is both of its parts
    space = DISK_SPACE if user.prefix_cache_disk_space is None else user.prefix_cache_disk_space
    return PrefixFile.open(user.prefix_cache_dir, made_by, size, int(space * 2**30))
