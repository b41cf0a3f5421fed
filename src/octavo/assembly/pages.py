"""Where pages lie: the KV cache, and the file in which the prefix cache outlives the process."""

from __future__ import annotations

from collections.abc import Sequence

from octavo import __version__
from octavo.assembly.memory import Budget
from octavo.checkpoints.base import Checkpoint
from octavo.checkpoints.content import ContentHash
from octavo.config import DISK_SPACE, EngineConfig
from octavo.errors import UnsupportedError
from octavo.kernels.ops import Backend, KVCache, KVSpec
from octavo.kernels.select import kernels_hash
from octavo.kernels.split_kv import SplitKVCache
from octavo.runtime.page_file import PrefixFile, check_folder
from octavo.runtime.page_moves import page_bytes


def kv_cache_of(
    budget: Budget, backend: Backend, specs: Sequence[KVSpec], first_block: int
) -> tuple[KVCache, int]:
    """The cache, and its page that stands in for those behind a window. Swap blocks begin at first_block."""
    size, swap = budget.page_size, budget.num_swap_pages
    if budget.sliding is None:
        return backend.kv_cache(specs, first_block, size, swap), budget.num_pages
    kv = SplitKVCache(backend, specs, budget.num_pages, budget.num_sliding_pages, size, swap)
    return kv, kv.spare


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
    user: EngineConfig, backend: Backend, kv: KVCache, specs: Sequence[KVSpec], content: ContentHash | None
) -> PrefixFile | None:
    """Where the prefix cache outlives the process: a file of this model and this way to compute its pages.

    Raises:
        InvalidRequestError, CapacityError: the folder is no folder, or its space holds no page.
        UnsupportedError: pages lie in a GPU's memory.
    """
    if user.prefix_cache_dir is None or content is None:
        return None
    size = page_bytes(kv)
    if size is None:
        raise UnsupportedError(
            "prefix_cache_dir works on a CPU only: a GPU's pages are not written to disk", "prefix_cache_dir"
        )
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
    return PrefixFile.open(user.prefix_cache_dir, made_by, size, int(space * 2**30))
