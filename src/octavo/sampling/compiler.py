"""ConstraintCompiler: a request's bad words and structured outputs, compiled before the engine sees it."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from importlib import import_module
from typing import Protocol

from octavo.errors import InvalidRequestError, OverloadedError
from octavo.params import SamplingParams, StructuredOutputsParams
from octavo.sampling.bad_words import BadWords, Vocabulary
from octavo.sampling.grammar import Grammar, GrammarVocabulary
from octavo.sampling.grammar_source import PARAM, cache_key, grammar_source

CACHED = 256
WORKERS = 2
MAX_PENDING = 64
TIMEOUT_S = 10.0


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

    Compiling happens on the caller's thread (compile) or in a small pool (compile_async), never on
    the engine's: a grammar that takes long delays nobody but who sent it.
    """

    def __init__(self, tokenizer: Tokens) -> None:
        self._tokenizer = tokenizer
        self._cache: OrderedDict[str, Grammar] = OrderedDict()
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(WORKERS, "grammar")
        self._pending = 0
        self._making = threading.Lock()
        self._steps = self._make_table()
        self._table: GrammarVocabulary | None = None

    def compile(self, params: SamplingParams) -> SamplingParams:
        """The params with their constraints.

        Raises:
            InvalidRequestError, UnsupportedError: a grammar that is wrong or too large.
        """
        if not _needs(params):
            return params
        constraints: list[BadWords | Grammar] = []
        if params.bad_words:
            constraints.append(BadWords(params.bad_words, self._vocabulary))
        if params.structured_outputs is not None:
            constraints.append(self._grammar(params.structured_outputs))
        return params.replace(constraints=tuple(constraints))

    async def compile_async(self, params: SamplingParams) -> SamplingParams:
        """The same without blocking the event loop.

        Raises:
            OverloadedError: too many grammars are being compiled already.
        """
        if not _needs(params):
            return params
        if self._pending >= MAX_PENDING:
            raise OverloadedError(f"{MAX_PENDING} grammars are being compiled already; try again later")
        self._pending += 1
        work = asyncio.get_running_loop().run_in_executor(self._pool, self.compile, params)
        work.add_done_callback(self._done)
        try:
            return await asyncio.wait_for(asyncio.shield(work), TIMEOUT_S)
        except TimeoutError:
            raise InvalidRequestError(
                f"the grammar took longer than {TIMEOUT_S:g} s to compile: simplify it", PARAM
            ) from None

    def _done(self, work: asyncio.Future[SamplingParams]) -> None:
        self._pending -= 1
        if not work.cancelled():
            work.exception()  # looked at, in case that nobody waits any more

    def _grammar(self, wanted: StructuredOutputsParams) -> Grammar:
        key = cache_key(wanted)
        with self._lock:
            if (known := self._cache.get(key)) is not None:
                self._cache.move_to_end(key)
                return known
        made = self._guarded(lambda: Grammar(grammar_source(wanted), self._grammar_vocabulary, PARAM))
        with self._lock:
            self._cache[key] = made
            while len(self._cache) > CACHED:
                self._cache.popitem(last=False)
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


def _needs(params: SamplingParams) -> bool:
    return bool(params.bad_words or params.structured_outputs is not None) and not params.constraints
