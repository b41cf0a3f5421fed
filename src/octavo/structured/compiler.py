"""ConstraintCompiler: a request's bad words and structured outputs, compiled before the engine sees it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from importlib import import_module
from typing import Protocol

from octavo.engine.request import EngineRequest
from octavo.errors import InvalidRequestError
from octavo.params import SamplingParams, StructuredOutputsParams
from octavo.sampling.constraints import ConstraintError
from octavo.structured.bad_words import BadWords, Vocabulary
from octavo.structured.compile_pool import CompilePool
from octavo.structured.grammar import Grammar, GrammarVocabulary
from octavo.structured.grammar_source import PARAM, cache_key, grammar_source

CACHED = 256
CACHED_BYTES = 256 << 20
"""Of all grammars that are kept, as _weight() estimates them."""


class Tokens(Protocol):
    """What is needed of a tokenizer."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def stop_token_ids(self) -> tuple[int, ...]: ...
    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]: ...
    def token_bytes(self, token_id: int) -> bytes: ...
    def is_special(self, token_id: int) -> bool: ...


class ConstraintCompiler:
    """Fills SamplingParams.constraints. Thread-safe; grammars are cached, least recently used goes.

    Compiling happens on the caller's thread (compile) or in small pools (compile_async), never on the
    engine's. Cached grammars wait for nobody; bad words have threads of their own; of the other grammars
    the shorter goes first (see CompilePool).
    """

    def __init__(self, tokenizer: Tokens) -> None:
        self._tokenizer = tokenizer
        self._cache: OrderedDict[str, Grammar] = OrderedDict()
        self._cached_bytes = 0
        self._lock = threading.Lock()
        self._grammars = CompilePool("grammars", PARAM)
        self._words = CompilePool("bad_words", "bad_words")
        self._making = threading.Lock()
        self._steps = self._make_table()
        self._table: GrammarVocabulary | None = None

    def compile(self, params: SamplingParams) -> SamplingParams:
        """The params with their constraints.

        Raises:
            InvalidRequestError, UnsupportedError: a grammar that is wrong or too large.
        """
        if not params.needs_compiling:
            return params
        constraints: list[BadWords | Grammar] = []
        if params.bad_words:
            constraints.append(self._bad_words(params.bad_words))
        if (wanted := params.structured_outputs) is not None:
            key = cache_key(wanted)
            constraints.append(self._known(key) or self._grammar(wanted, key))
        return params.replace(constraints=tuple(constraints))

    async def compile_async(self, params: SamplingParams) -> SamplingParams:
        """The same without blocking the event loop.

        Raises:
            InvalidRequestError, UnsupportedError: as compile(), or it takes too long.
            OverloadedError: too much is being compiled already. ShuttingDownError: after close().
        """
        if not params.needs_compiling:
            return params
        constraints: list[BadWords | Grammar] = []
        if words := params.bad_words:
            size = sum(map(len, words))
            constraints.append(await self._words.run(size, partial(self._bad_words, words)))
        if (wanted := params.structured_outputs) is not None:
            key = cache_key(wanted)
            known = self._known(key)
            make = partial(self._grammar, wanted, key)
            constraints.append(known or await self._grammars.run(len(key), make))
        return params.replace(constraints=tuple(constraints))

    def close(self) -> None:
        """End what compile_async() waits for with ShuttingDownError, and take nothing new there."""
        self._grammars.close()
        self._words.close()

    def _bad_words(self, words: Sequence[str]) -> BadWords:
        return BadWords(words, self._vocabulary)

    def _known(self, key: str) -> Grammar | None:
        with self._lock:
            if (known := self._cache.get(key)) is not None:
                self._cache.move_to_end(key)
            return known

    def _grammar(self, wanted: StructuredOutputsParams, key: str) -> Grammar:
        if (known := self._known(key)) is not None:  # made while this one waited
            return known
        made = self._guarded(lambda: Grammar(grammar_source(wanted), self._grammar_vocabulary, PARAM))
        with self._lock:
            if key not in self._cache:
                self._cache[key] = made
                self._cached_bytes += _weight(key)
            while len(self._cache) > CACHED or self._cached_bytes > CACHED_BYTES:
                gone, _ = self._cache.popitem(last=False)
                self._cached_bytes -= _weight(gone)
        return made

    @staticmethod
    def _guarded(make: Callable[[], Grammar]) -> Grammar:
        try:
            return make()
        except RecursionError:
            raise InvalidRequestError("structured_outputs is nested too deeply", PARAM) from None

    @cached_property
    def _tokens(self) -> Sequence[bytes]:
        """Bytes by id, as they appear in an answer: control tokens have none."""
        t = self._tokenizer
        return [b"" if t.is_special(i) else t.token_bytes(i) for i in range(t.vocab_size)]

    @cached_property
    def _vocabulary(self) -> Vocabulary:
        return Vocabulary(self._tokens)

    def prepare(self, may_go_on: Callable[[], bool]) -> None:
        """Make what the first grammar would wait for, step by step: some hold the interpreter for 60 ms.

        Args:
            may_go_on: asked before each step; it may wait for a good moment. False: leave the rest.
        """
        while self._table is None and may_go_on():
            with self._making:
                try:
                    self._advance()
                except Exception:  # the first grammar meets it again, and its sender is told
                    return

    @property
    def _grammar_vocabulary(self) -> GrammarVocabulary:
        with self._making:
            while self._table is None:
                self._advance()
            return self._table

    def _advance(self) -> None:
        try:
            next(self._steps, None)
        except BaseException:
            self._steps = self._make_table()
            raise

    def _make_table(self) -> Iterator[None]:
        """Fill in the table, with rests."""
        t = self._tokenizer
        ends = t.stop_token_ids
        special = [i for i in range(t.vocab_size) if t.is_special(i) or i in ends]
        yield
        tokens = [t.token_bytes(i) for i in range(t.vocab_size)]
        yield
        import_module("llguidance")  # some 50 ms
        yield
        table = GrammarVocabulary(tokens, special, ends, lambda text: t.encode(text, False), slices=False)
        yield
        table.add_slices()
        self._table = table


def _weight(key: str) -> int:
    """Bytes that a grammar takes, about: large schemas took up to 400 for each character of their text."""
    return 100_000 + 400 * len(key)


def compiled(request: EngineRequest, params: SamplingParams) -> EngineRequest:
    """The request with params that bring their constraints, its generated tokens held against them.

    Raises:
        InvalidRequestError: one of the tokens that were generated before is forbidden where it stands.
    """
    if params is request.params:
        return request
    for constraint in params.constraints if request.generated else ():
        matcher = constraint.start(())
        for place, token in enumerate(request.generated):
            try:
                allowed = matcher.allows(token.token_id)
            except ConstraintError:
                allowed = False
            if not allowed:
                raise InvalidRequestError(
                    f"generated_token_ids[{place}], token {token.token_id}, is not allowed there by "
                    "structured_outputs or bad_words",
                    "generated_token_ids",
                )
            matcher.append((token.token_id,))
    return replace(request, params=params)
