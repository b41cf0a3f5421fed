"""CrossPages: the pages of encoder outputs, written once and shared while anybody reads them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from octavo.config.scheduler import SchedulerConfig
from octavo.engine.page_group import AdmitStatus, EncoderOutput, PageGroup
from octavo.engine.page_pool import PagePool, ensure

if TYPE_CHECKING:
    from octavo.engine.prefix_cache import PrefixCache
    from octavo.engine.request import Request
    from octavo.engine.step_builder import StepBuilder


class CrossPages(PageGroup):
    """Pages of the encoder outputs that running requests read, by the key of the encoder's input.

    An output is computed once for the n samples of a request and for equal inputs that run together. It
    lives from its first user to its last. Its pages have one reference, the output's, and are written in
    its first step only.
    """

    def __init__(self, pool: PagePool, page_size: int) -> None:
        self._pool, self._page_size = pool, page_size
        self._outputs: dict[str | None, EncoderOutput] = {}

    def find(self, key: str | None) -> EncoderOutput | None:
        return self._outputs.get(key)

    def outputs(self) -> Sequence[EncoderOutput]:
        return tuple(self._outputs.values())

    def share(self, key: str | None, pages: Sequence[int]) -> EncoderOutput:
        """Count one user more of the output with this key; the first user brings its pages."""
        output = self._outputs.get(key)
        if output is None:
            output = self._outputs[key] = EncoderOutput(key, tuple(pages))
        output.users += 1
        return output

    def quit(self, output: EncoderOutput) -> None:
        """One user less; the last one frees the pages."""
        output.users -= 1
        if output.users == 0:
            del self._outputs[output.key]
            self._pool.release(output.pages)

    # --- of the group -----------------------------------------------------------------------------

    def admit_status(self, request: Request, step: StepBuilder) -> AdmitStatus:
        """By the state of the encoder's input: new, in use, or being computed by a step in flight."""
        shared = self.find(request.cache_key)
        if shared is None:
            return AdmitStatus.NOW if step.can_encode(len(request.encoder_token_ids)) else AdmitStatus.NO_ROOM
        return AdmitStatus.NOW if shared.written or shared in step.encoder_outputs else AdmitStatus.LATER

    def need(self, request: Request) -> int:
        """Pages of the encoder's output, unless an equal input is in use."""
        if self.find(request.cache_key) is not None:
            return 0
        return -(-len(request.encoder_token_ids) // self._page_size)

    def begin(self, request: Request, pages: Sequence[int] = ()) -> None:
        request.kv.cross = self.share(request.cache_key, pages)

    def enter(self, request: Request, step: StepBuilder) -> None:
        """The encoder computes the input in this step, unless it has been or will be."""
        output = self._outputs[request.cache_key]
        if not output.written and output not in step.encoder_outputs:
            step.encode(request, output)

    def fork(self, parent: Request) -> None:
        self.share(parent.cache_key, ())

    def leave(self, request: Request) -> None:
        if request.kv.cross is not None:  # (a new beam has not joined)
            self.quit(request.kv.cross)

    def owned(self) -> Mapping[int, int]:
        return {page: 1 for output in self._outputs.values() for page in output.pages}

    def check(self, running: Sequence[Request]) -> None:
        counted = Counter(request.kv.cross for request in running)
        ensure(counted[None] == 0, "a running request reads no encoder output")
        ensure(set(counted) == set(self._outputs.values()), "an encoder output is lost or nobody's")
        for key, output in self._outputs.items():
            ensure(output.key == key and output.users == counted[output], "an encoder output is miscounted")


def group_of(config: SchedulerConfig, pool: PagePool, cache: PrefixCache) -> CrossPages | None:
    """Where the model has an encoder."""
    return CrossPages(pool, config.page_size) if config.max_encoder_len else None
