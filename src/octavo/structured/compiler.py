"""ConstraintCompiler: a request's bad words and structured outputs, compiled before the engine sees it."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

from octavo.confined import Confined, JobKilledError, UnavailableError
from octavo.engine.request import EngineRequest
from octavo.errors import InvalidRequestError, OverloadedError
from octavo.params import SamplingParams, StructuredOutputsParams
from octavo.params.structured import PARAM
from octavo.sampling.constraints import ConstraintError
from octavo.structured.bad_words import BadWords, Vocabulary
from octavo.structured.compile_pool import MAX_ABANDONED, CompilePool, GrammarStats, SlowError
from octavo.structured.grammar import ORIGINALS, Grammar, GrammarVocabulary

if TYPE_CHECKING:  # what reads schemas is imported in the background (_make_table), or for the first one
    from octavo.structured.distinct import Distinct

CACHED = 256
CACHED_BYTES = 256 << 20
"""Of all grammars that are kept, as the trial measured them, or _weight() estimates."""
REFUSED = 1_024
"""So many of the last refusals are remembered: who asks again is told again, for nothing."""

QUICK_S, PATIENT_S = 0.25, 4.0
"""Of a processor, for the first attempt at a grammar and for the second one: most take 5 to 60 ms."""
TRIALS = "octavo.structured.trial:prepare"
TRIAL_BYTES = 512 << 20
"""Of memory, for one attempt."""


_TOO_MUCH = (
    f"{PARAM} takes more than {PATIENT_S:g} s of a processor, or too much memory, to compile: simplify it"
)


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
    engine's. Cached grammars wait for nobody; bad words have a thread of their own; of the other grammars
    the shorter goes first (see CompilePool). What compile_async() compiles has passed a trial under limits of
    time and memory in a confined process, which starts with the first grammar (see trial.py).
    """

    def __init__(self, tokenizer: Tokens) -> None:
        self._tokenizer = tokenizer
        self._cache: OrderedDict[str, tuple[Grammar | Distinct, int]] = OrderedDict()
        self._cached_bytes = 0
        self._refused: OrderedDict[bytes, InvalidRequestError] = OrderedDict()
        self._trials = Confined(TRIALS, self._for_trials, TRIAL_BYTES)
        self._lock = threading.Lock()
        self._grammars = CompilePool("grammars", PARAM)
        self._words = CompilePool("bad_words", "bad_words", workers=1)
        # One thread, apart from the event loop's: originals that nobody waits for keep nobody waiting.
        self._widening = ThreadPoolExecutor(1, "grammars")
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
        constraints: list[BadWords | Grammar | Distinct] = []
        if params.bad_words:
            constraints.append(self._bad_words(params.bad_words))
        if (wanted := params.structured_outputs) is not None:
            key = _key(wanted)
            known = self._known(key)
            made = known or self._keep(key, self._guarded(wanted), _weight(key))
            if known or params.n > 1:  # it will have several rows
                made.widen()
            constraints.append(made)
        return params.replace(constraints=tuple(constraints))

    async def compile_async(self, params: SamplingParams, salt: str | None = None) -> SamplingParams:
        """The same without blocking the event loop, each grammar on trial before.

        Args:
            salt: the request's (Namespace.salt). Each salt has grammars of its own: nobody can tell by
                the time what those of other salts have asked for.

        Raises:
            InvalidRequestError, UnsupportedError: as compile(), or it takes too long.
            OverloadedError: too much is being compiled already, or no process can be started for trials.
            ShuttingDownError: after close().
        """
        if not params.needs_compiling:
            return params
        constraints: list[BadWords | Grammar | Distinct] = []
        salt = salt or ""
        owner = salt.partition("/")[0]  # whose key it was: a server's salts begin so
        if words := params.bad_words:
            size = sum(map(len, words))
            constraints.append(await self._words.run(size, partial(self._bad_words, words), owner=owner))
        if (wanted := params.structured_outputs) is not None:
            key = _key(wanted, salt)
            known = self._known(key)
            quick, patient = (partial(self._tried, wanted, key, cpu_s) for cpu_s in (QUICK_S, PATIENT_S))
            made = known or await self._grammars.run(len(key), quick, patient, owner)
            if (known or params.n > 1) and made.begin_widening():
                with suppress(RuntimeError):  # after close()
                    self._widening.submit(made.widen)
            constraints.append(made)
        return params.replace(constraints=tuple(constraints))

    def stats(self) -> GrammarStats:
        """Of the grammars that compile_async() was asked for."""
        stats = self._grammars.stats()
        stuck = stats.abandoned >= MAX_ABANDONED
        return replace(stats, available=self._trials.available and not stuck)

    def close(self) -> None:
        """End what compile_async() waits for with ShuttingDownError, and take nothing new there."""
        self._grammars.close()
        self._words.close()
        self._widening.shutdown(wait=False, cancel_futures=True)
        self._trials.close()

    def _bad_words(self, words: Sequence[str]) -> BadWords:
        return BadWords(words, self._vocabulary)

    def _known(self, key: str) -> Grammar | Distinct | None:
        """The grammar, if it was compiled before.

        Raises:
            InvalidRequestError: it was refused before.
        """
        with self._lock:
            if (known := self._cache.get(key)) is not None:
                self._cache.move_to_end(key)
                return known[0]
            refused = self._refused.get(_digest(key)) if self._refused else None
        if refused is not None:
            raise type(refused)(str(refused), refused.param)
        return None

    def _tried(self, wanted: StructuredOutputsParams, key: str, cpu_s: float) -> Grammar | Distinct:
        """A grammar that passes its trial, compiled.

        Raises:
            SlowError: the trial took more than cpu_s of a processor, or too much memory.
        """
        from octavo.structured.distinct import constraint_of

        if (known := self._known(key)) is not None:  # made while this one waited
            return known
        vocabulary = self._grammar_vocabulary  # whose own mistakes are told first
        job = {"kind": wanted.kind, "value": getattr(wanted, wanted.kind)}
        try:
            tried = self._trials.run(job, cpu_s)
            made = constraint_of(tried["source"], vocabulary, PARAM, later=self._widening.submit)
        except JobKilledError:
            if cpu_s == PATIENT_S:
                self._refuse(key, InvalidRequestError(_TOO_MUCH, PARAM))
            raise SlowError from None
        except UnavailableError:
            raise OverloadedError("no grammars are compiled at the moment; try again later") from None
        except InvalidRequestError as error:
            self._refuse(key, error)
            raise
        return self._keep(key, made, max(_weight(tried["source"]), tried["bytes"] * ORIGINALS))

    def _refuse(self, key: str, error: InvalidRequestError) -> None:
        with self._lock:
            self._refused[_digest(key)] = error.with_traceback(None)
            if len(self._refused) > REFUSED:
                self._refused.popitem(last=False)

    def _keep(self, key: str, made: Grammar | Distinct, weight: int) -> Grammar | Distinct:
        with self._lock:
            if key not in self._cache:
                self._cache[key] = made, weight
                self._cached_bytes += weight
            while len(self._cache) > CACHED or self._cached_bytes > CACHED_BYTES:
                _, (_, gone) = self._cache.popitem(last=False)
                self._cached_bytes -= gone
        return made

    def _guarded(self, wanted: StructuredOutputsParams) -> Grammar | Distinct:
        from octavo.structured.distinct import constraint_of
        from octavo.structured.grammar_source import grammar_source

        try:
            source = grammar_source(wanted)
            return constraint_of(source, self._grammar_vocabulary, PARAM, later=self._widening.submit)
        except RecursionError:
            raise InvalidRequestError("structured_outputs is nested too deeply", PARAM) from None

    def _for_trials(self) -> dict[str, object]:
        """What trial.prepare() takes."""
        tokens = [token.decode("latin-1") for token in self._written]
        return {"tokens": tokens, "special": self._special, "ends": list(self._tokenizer.stop_token_ids)}

    @cached_property
    def _written(self) -> list[bytes]:
        """Bytes by id, control tokens' names among them."""
        return [self._tokenizer.token_bytes(i) for i in range(self._tokenizer.vocab_size)]

    @cached_property
    def _special(self) -> list[int]:
        """Ids that no text produces, and those that end an answer."""
        t = self._tokenizer
        return [i for i in range(t.vocab_size) if t.is_special(i) or i in t.stop_token_ids]

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
        t, special = self._tokenizer, self._special
        yield
        tokens = self._written
        yield
        for name in ("octavo.structured.distinct", "octavo.structured.grammar_source", "llguidance"):
            import_module(name)  # some 20, 1 and 50 ms
            yield
        table = GrammarVocabulary(
            tokens, special, t.stop_token_ids, lambda text: t.encode(text, False), slices=False
        )
        yield
        table.add_slices()
        self._table = table


def _weight(text: str) -> int:
    """Bytes that a grammar takes, about: large ones took up to 400 for each character of their text."""
    return 100_000 + 400 * len(text)


def _key(wanted: StructuredOutputsParams, salt: str = "") -> str:
    from octavo.structured.grammar_source import cache_key

    return f"{salt}\0{cache_key(wanted)}"


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", errors="surrogatepass")).digest()


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
