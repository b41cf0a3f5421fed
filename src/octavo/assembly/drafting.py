"""A model that drafts: loaded beside the target, or outlined for a plan; checked against it, and placed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from octavo.errors import CheckpointError, InvalidRequestError, OctavoError, UnsupportedError

if TYPE_CHECKING:
    from octavo.checkpoints.content import ContentHash
    from octavo.config import EngineConfig
    from octavo.kernels.ops import Backend, KVSpec
    from octavo.models.registry import Model
    from octavo.spec.base import Drafting
    from octavo.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, eq=False)
class Drafter:
    """What a model's drafts add to an engine; without such drafts nothing.

    Attributes:
        drafting: what drafts; None: no model does.
        specs: of the layers that it adds to the cache.
        weights: bytes of them.
        most: tokens of a row's draft.
        loose: pages of each row that are no request's (runtime.draft_pages).
        content: names the model in the prefix cache's file.
        method: who drafts, a model or not; "": nobody. cut: Checkpoint.cut of the model's file.
    """

    drafting: Drafting | None = None
    specs: Sequence[KVSpec] = ()
    weights: int = 0
    most: int = 0
    loose: int = 0
    content: ContentHash | None = field(default=None, repr=False)
    method: str = ""
    cut: tuple[int, int] | None = None

    @property
    def facts(self) -> dict[str, str]:
        """What the lines of a start should say of it."""
        return {"drafts": self.method} if self.method else {}

    def pages(self, max_num_seqs: int) -> int:
        """Pages that are no request's, of all rows."""
        return self.loose * max_num_seqs


def drafter_of(
    user: EngineConfig,
    backend: Backend,
    target: Model,
    tokenizer: Tokenizer | None,
    done: Callable[[str], None] = lambda phase: None,
    planned: bool = False,
) -> Drafter:
    """What the speculative_config asks for, on the backend that computes the target.

    Args:
        tokenizer: the target's; None: of a plan whose model has none.
        done: is told when a model has been loaded.
        planned: of shapes alone, on a backend that plans.

    Raises:
        InvalidRequestError: the model that it names cannot be loaded, or is none for this target.
        UnsupportedError: the target has an encoder, or its own layers cannot draft.
    """
    if user.speculative_config is None:
        return Drafter()
    from octavo.assembly.memory import page_specs
    from octavo.config.speculation import NAME, read_speculation
    from octavo.models.registry import EncoderDecoder
    from octavo.runtime.draft_pages import loose_pages

    if isinstance(target, EncoderDecoder):
        raise UnsupportedError("speculative_config: a model with an encoder is not drafted for", NAME)
    asked = read_speculation(user.speculative_config)
    find = asked.proposer.drafting
    if find is None:
        return Drafter(method=asked.method)
    named = _Named(user, backend, asked.model, planned) if asked.model is not None else None
    model = None if named is None else named.load(tokenizer)
    drafting = find(target, model, asked.options)
    if named is not None:
        done("draft model")
    # The target's pages behind a window are let go of when its own windows have passed them.
    specs = [replace(spec, window=None) for spec in page_specs(model, backend, user)] if model else []
    return Drafter(
        drafting,
        specs,
        0 if named is None else named.nbytes,
        asked.most,
        loose_pages(asked.most, user.page_size),
        None if named is None else named.content,
        asked.method,
        None if named is None else named.cut,
    )


def find_drafter(user: EngineConfig) -> None:
    """Find the files of the model that drafts, where one is named: before the target's weights are read.

    Raises:
        InvalidRequestError: it is not there.
    """
    from octavo.checkpoints.sources import resolve as find
    from octavo.config.speculation import read_speculation

    if user.speculative_config is None:
        return
    asked = read_speculation(user.speculative_config)
    if asked.model is None:
        return
    with _said_of(asked.model):
        find(asked.model)


@contextmanager
def _said_of(name: str) -> Iterator[None]:
    """What goes wrong is the draft model's fault."""
    try:
        yield
    except (CheckpointError, UnsupportedError, OSError) as error:
        raise _wrong(f"model {name!r}: {error}") from None


class _Named:
    """The model that speculative_config names.

    Attributes:
        nbytes: of its weights. content: where the prefix cache is kept on disk. cut: Checkpoint.cut.
    """

    def __init__(self, user: EngineConfig, backend: Backend, name: str, planned: bool) -> None:
        self._user, self._backend, self._name, self._planned = user, backend, name, planned
        self.nbytes = 0
        self.content: ContentHash | None = None
        self.cut: tuple[int, int] | None = None

    def load(self, tokenizer: Tokenizer | None) -> Model:
        """
        Raises:
            InvalidRequestError: it cannot be loaded, has an encoder, or another tokenizer.
        """
        with _said_of(self._name):
            return self._load(tokenizer)

    def _load(self, tokenizer: Tokenizer | None) -> Model:
        from octavo.assembly.pages import content_hash
        from octavo.assembly.tokenizer import tokenizer_and_template
        from octavo.checkpoints import open_checkpoint
        from octavo.checkpoints.sources import resolve as find
        from octavo.models.load import load_model, outline_model
        from octavo.models.registry import EncoderDecoder

        # A plan of a machine, which has no tokenizer, pulls no weights of a hub id.
        user, path = self._user, find(self._name, weights=tokenizer is not None or not self._planned)
        checkpoint = open_checkpoint(path, headers=self._planned)
        self.content = None if self._planned else content_hash(user, checkpoint)
        self.cut = checkpoint.cut
        if tokenizer is not None:
            own = replace(user, tokenizer=None, chat_template=None)
            check_same_words(tokenizer, tokenizer_and_template(own, checkpoint, path)[0], self._name)
            checkpoint.forget_tokenizer()
        load = outline_model if self._planned else load_model
        model, self.nbytes = load(checkpoint, self._backend, user.dtype)
        if isinstance(model, EncoderDecoder):
            raise _wrong(f"model {self._name!r} has an encoder: it cannot draft")
        return model


def check_same_words(target: Tokenizer, drafter: Tokenizer, name: str) -> None:
    """
    Raises:
        InvalidRequestError: an id is not the same token to both, or is special to one of them alone.
    """
    counts = target.vocab_size, drafter.vocab_size
    if counts[0] != counts[1]:
        raise _wrong(f"model {name!r} has another tokenizer: of {counts[1]} tokens, not {counts[0]}")
    for token in range(counts[0]):
        words = target.token_bytes(token), drafter.token_bytes(token)
        if words[0] != words[1]:
            raise _wrong(
                f"model {name!r} has another tokenizer: token {token} is {words[1]!r} to it, not {words[0]!r}"
            )
        if target.is_special(token) != drafter.is_special(token):
            raise _wrong(
                f"model {name!r} has another tokenizer: {words[0]!r} is a special token to one of both alone"
            )


def _wrong(what: str) -> OctavoError:
    return InvalidRequestError(f"speculative_config: {what}", "speculative_config")
