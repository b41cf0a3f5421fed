"""Grammars on llguidance: compiled once, followed by each row, as masks over the vocabulary.

llguidance reads a grammar (Lark, regular expressions, JSON schemas) and knows for every state which
tokens may come next, an end token only where the grammar may end. Its own limits bound the work of
compiling and of every mask, so a hostile grammar ends as an error and not as a stalled engine.
"""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.errors import GRAMMAR_FAILED, InvalidRequestError
from octavo.sampling.constraints import ALL, BatchedMatcher, ConstraintError, full_mask
from octavo.sampling.distribution import Ids
from octavo.sampling.logits import allowed
from octavo.sampling.sampling_batch import U32

ORIGINALS = 2
"""Of each grammar: so many threads at most compute its masks at once."""

KNOWN_TEXTS, KNOWN_BYTES = 4096, 64
"""Of so many of grammars' short texts the spelling in tokens is remembered: a few MB."""

MASK_S, CREDIT_S = 0.002, 0.5
"""Seconds that a grammar's rows are given for each token, and how much of that they can save up. A mask takes
some 50 microseconds; the limits below let a hostile one take 15 ms, and every other row of the step waits."""

# Units are llguidance's: 50 and 14 units of lexer fuel, or 20 Earley items, take about a microsecond.
LIMITS: dict[str, Any] = {
    "initial_lexer_fuel": 5_000_000,
    "step_lexer_fuel": 500_000,
    "step_max_items": 100_000,
    "max_items_in_row": 4_000,
    "max_lexer_states": 50_000,
    "max_grammar_size": 500_000,
    "verbose_errors": False,
}


_OF_JSON = frozenset([*b"\t\n\r", *range(0x20, 0x7F), *range(0x80, 0xC0), *range(0xC2, 0xF1), 0xF3, 0xF4])
"""Bytes that a grammar's JSON may be written with. Some vocabularies lack 0xF1 and 0xF2, which begin planes
of Unicode in which there is no character."""

_UNQUOTED = re.compile(rb'(?:[^"\\]|\\.)*', re.DOTALL)


class GrammarVocabulary:
    """The model's tokens as llguidance wants them: made once, some 0.1 s for 50,000 tokens.

    Args:
        tokens: bytes by id.
        special: ids that no text can produce.
        ends: ids that end an answer.
        encode: text to ids, for grammars' own texts.
        slices: sets of tokens of which masks are put together: they make masks fast and take half of
            the time. False: add_slices() comes later, before the first grammar.
    """

    def __init__(
        self,
        tokens: Sequence[bytes],
        special: Sequence[int],
        ends: Sequence[int],
        encode: Callable[[str], list[int]],
        slices: bool = True,
    ) -> None:
        import llguidance

        if not ends:
            raise InvalidRequestError(
                "this model has no end token, which structured outputs need", "structured_outputs"
            )
        wrapped: Any = _Wrapped(tokens, special, ends[0], encode)
        self.tokenizer = llguidance.LLTokenizer(wrapped, n_vocab=len(tokens), eos_token=list(ends), slices=[])
        if slices:
            self.add_slices()
        self.limits = llguidance.LLParserLimits(**LIMITS)
        self.control = frozenset((*special, *ends))
        self.tokens = tokens

    def add_slices(self) -> None:
        blank, ten, *longer = self.tokenizer.general_slices()
        # A string of bounded length that is nearly full fits the shorter ones only; 16 is most tokens' bound.
        sixteen = ten.replace("{1,10}", "{1,16}")
        self.tokenizer = self.tokenizer.with_slices([blank, ten, sixteen, *longer])

    def text(self, token_id: int) -> bytes:
        """What a token adds to an answer."""
        known = token_id < len(self.tokens) and token_id not in self.control
        return self.tokens[token_id] if known else b""

    @cached_property
    def quoted(self) -> dict[int, tuple[bytes, bytes]]:
        """Tokens with a quote: what stands before the first one that no backslash hides, and the rest."""
        found = {}
        for token, text in enumerate(self.tokens):
            if b'"' in text and token not in self.control:
                before = _UNQUOTED.match(text)
                end = before.end() if before else len(text)
                found[token] = text[:end], text[end:]
        return found

    @cached_property
    def listing(self) -> Ids:
        """The tokens that may open an array and go on behind its first item."""
        found = [i for i, t in enumerate(self.tokens) if b"[" in t and b"," in t and i not in self.control]
        return np.array(found, np.intp)

    @cached_property
    def longest(self) -> int:
        """Bytes of the longest token."""
        return max(map(len, self.tokens), default=0)

    @cached_property
    def single(self) -> list[int] | None:
        """By byte, the token that is that byte alone; None: some byte of JSON's texts has none."""
        found = {text[0]: i for i, text in enumerate(self.tokens) if len(text) == 1 and i not in self.control}
        return [found.get(byte, -1) for byte in range(256)] if found.keys() >= _OF_JSON else None

    @cached_property
    def _firsts(self) -> NDArray[np.int16]:
        """Each token's first byte; 256 for those that no text has."""
        return np.array(
            [256 if i in self.control or not t else t[0] for i, t in enumerate(self.tokens)], np.int16
        )

    def firsts_of(self, mask: U32) -> list[int]:
        """The bytes that a mask's tokens begin with."""
        found = np.bincount(self._firsts[allowed(mask, len(self.tokens))], minlength=257)
        firsts: list[int] = np.flatnonzero(found[:256]).tolist()
        return firsts

    @cached_property
    def of_bytes(self) -> GrammarVocabulary:
        """A token for each byte, and an end."""
        tokens = [bytes([byte]) for byte in range(256)] + [b"<end>"]
        return GrammarVocabulary(tokens, [256], [256], lambda text: list(text.encode()))


class _Wrapped:
    """The attributes that LLTokenizer reads.

    What a grammar forces it draws as this tokenizer would have written it, so the ids must spell the text
    exactly. Many tokenizers do not: they begin with a space of their own, or change characters. Then the text
    is encoded behind another one, or if that does not help either, by the longest tokens from the left.
    """

    is_tokenizer_wrapper = True
    bos_token_id: int | None = None

    def __init__(
        self, tokens: Sequence[bytes], special: Sequence[int], end: int, encode: Callable[[str], list[int]]
    ) -> None:
        self.tokens, self.special_token_ids, self.eos_token_id = list(tokens), list(special), end
        self._encode = encode
        self._known = lru_cache(KNOWN_TEXTS)(self._ids)

    def __call__(self, text: str | bytes) -> list[int]:
        spelled = text.encode() if isinstance(text, str) else text
        # A grammar's few texts are asked for again at every token of theirs.
        return self._known(spelled) if len(spelled) <= KNOWN_BYTES else self._ids(spelled)

    def _ids(self, spelled: bytes) -> list[int]:
        plain = spelled.decode("utf-8", errors="replace")
        for before in ("", "\n"):
            ids = self._encode(before + plain)[len(self._encode(before)) if before else 0 :]
            if b"".join(self.tokens[i] for i in ids) == spelled:
                return ids
        return self._longest(spelled)

    def _longest(self, text: bytes) -> list[int]:
        ids, at = list[int](), 0
        while at < len(text):
            ends = range(min(len(text), at + self._most), at, -1)
            end = next((end for end in ends if text[at:end] in self._by_bytes), None)
            if end is None:
                return ids  # nothing spells this byte: the grammar finds no token for it either
            ids.append(self._by_bytes[text[at:end]])
            at = end
        return ids

    @cached_property
    def _by_bytes(self) -> dict[bytes, int]:
        special = set(self.special_token_ids)
        return {token: i for i, token in enumerate(self.tokens) if token and i not in special}

    @cached_property
    def _most(self) -> int:
        return max(map(len, self._by_bytes), default=1)


class Allowance:
    """Time that a grammar may still take, for all of its rows together, whichever requests they are of."""

    def __init__(self) -> None:
        self.left_s = CREDIT_S

    def spend(self, seconds: float) -> None:
        """A token of a row took so long."""
        self.left_s = min(CREDIT_S, self.left_s + MASK_S - seconds)


class Grammar:
    """A compiled grammar: a constraint (see sampling.constraints.Constraint).

    Args:
        source: in llguidance's format (grammar_source.py makes it).
        param: which field of the request to name when it is wrong.
        originals: threads that may work on its masks at once.

    Raises:
        InvalidRequestError: it does not parse, exceeds the limits, or allows nothing at all.
    """

    def __init__(
        self, source: str, vocabulary: GrammarVocabulary, param: str, originals: int = ORIGINALS
    ) -> None:
        import llguidance

        self._vocabulary, self._allowance = vocabulary, Allowance()

        def original() -> Any:
            return llguidance.LLMatcher(vocabulary.tokenizer, source, log_level=0, limits=vocabulary.limits)

        self._original = original
        first = original()
        problem = first.get_error() or "; ".join(first.get_grammar_warnings())
        if problem:
            raise InvalidRequestError(f"{param}: {_said(problem)}", param)
        # Copies of a matcher share what they have learned, and a lock on it: several originals, given out in
        # turn, let several threads work. One is enough for a grammar's first row (see widen).
        self._originals, self._wanted = [first], originals
        self._turns = itertools.count()
        self._widening, self._begun = threading.Lock(), False
        # The first mask tells whether anything may come, and builds what later masks share. Its time is the
        # compiling's, not the rows'.
        mask = full_mask(1, vocabulary.tokenizer.vocab_size)[0]
        try:
            self.start(()).restrict(mask)
        except ConstraintError as error:
            raise InvalidRequestError(f"{param}: {error}", param) from None
        if not mask.any():
            raise InvalidRequestError(f"{param} allows no answer at all", param)
        self._allowance.left_s = CREDIT_S

    def start(self, output: Sequence[int]) -> GrammarMatcher:
        number = next(self._turns) % len(self._originals)
        prototype = self._originals[number]
        matcher = GrammarMatcher(prototype.deep_copy(), self._vocabulary, number, self._allowance)
        if output:
            matcher.append(output)
        return matcher

    @property
    def is_wide(self) -> bool:
        """Whether all originals are there."""
        return len(self._originals) >= self._wanted

    def begin_widening(self) -> bool:
        """Whether the caller is to have widen() called: the first one that asks is, if there is need."""
        begun, self._begun = self._begun, True
        return not begun and not self.is_wide

    def widen(self) -> None:
        """Make the other originals, each in the time that the grammar took to compile: it is used again."""
        with self._widening:
            while not self.is_wide:
                self._originals.append(self._original())


class GrammarMatcher(BatchedMatcher):
    """One row's place in a grammar.

    Attributes:
        original: matchers of equal numbers may share a lock.
        allowance: its grammar's; who works on it spends of it.
    """

    def __init__(
        self, matcher: Any, vocabulary: GrammarVocabulary, original: int, allowance: Allowance
    ) -> None:
        self._matcher, self._vocabulary = matcher, vocabulary
        self.original, self.allowance = original, allowance
        self._size: int = vocabulary.tokenizer.vocab_size
        self._own = np.zeros(-(-self._size // 32), np.uint32)

    @property
    def inner(self) -> Any:
        """llguidance's own matcher."""
        return self._matcher

    @property
    def vocabulary(self) -> GrammarVocabulary:
        return self._vocabulary

    @property
    def words(self) -> int:
        """Of a mask over the tokenizer's vocabulary."""
        return len(self._own)

    def restrict(self, mask: U32, ahead: Sequence[int] = ()) -> None:
        began = time.perf_counter()
        taken = self._matcher.try_consume_tokens(list(ahead)) if ahead else 0
        if taken == len(ahead):
            self._matcher.unsafe_compute_mask_ptr(self._own.ctypes.data, self._own.nbytes)
            _clear(mask, self._own)
        if taken:
            self._matcher.rollback(taken)
        self.allowance.spend(time.perf_counter() - began)
        self.check()

    def masks(self, threads: int) -> GrammarMasks:
        return GrammarMasks(threads)

    def fill(self, mask: U32, pointer: int) -> None:
        began = time.perf_counter()
        if len(mask) == len(self._own):
            self._matcher.unsafe_compute_mask_ptr(pointer, self._own.nbytes)
        else:
            self._matcher.unsafe_compute_mask_ptr(self._own.ctypes.data, self._own.nbytes)
            mask.fill(ALL)
            _clear(mask, self._own)
        self.allowance.spend(time.perf_counter() - began)
        self.check()

    def allows(self, token_id: int) -> bool:
        if token_id >= self._size:
            return False
        if token_id in self._vocabulary.control:  # of these llguidance's two answers differ at times
            mask = full_mask(1, self._size)[0]
            self.restrict(mask)
            return bool(allowed(mask, self._size)[token_id])
        if self._matcher.validate_tokens([token_id]) != 1:
            return False
        # Where one text must follow, the mask holds the one token that begins it as the tokenizer would.
        forced = self._matcher.compute_ff_tokens()
        return not forced or forced[0] == token_id

    def take(self, token_id: int) -> bool:
        if self.allowance.left_s < 0:
            return False  # the mask that is asked for instead says why
        began = time.perf_counter()
        if taken := self.allows(token_id):
            self._matcher.consume_token(token_id)
        self.allowance.spend(time.perf_counter() - began)
        return taken

    def check(self) -> None:
        """Raise ConstraintError if the last mask means nothing."""
        if self._matcher.is_error():
            raise ConstraintError(f"{GRAMMAR_FAILED}: {_said(self._matcher.get_error())}")
        if self.allowance.left_s < 0:
            raise ConstraintError(
                f"{GRAMMAR_FAILED}: working out what may come next takes too long: simplify it"
            )

    def append(self, token_ids: Sequence[int]) -> None:
        # A token that the grammar forbids leaves an error, which the next restrict() reports.
        self._matcher.consume_tokens(list(token_ids))

    def fork(self) -> GrammarMatcher:
        return GrammarMatcher(self._matcher.deep_copy(), self._vocabulary, self.original, self.allowance)


class GrammarMasks:
    """Masks of many rows: a few here, the rest in one call, on threads of llguidance's own.

    Each return to the interpreter may cost a switch interval (5 ms) where another thread is busy, so many
    masks leave it once and not once a row.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._executor: Any = None  # its threads start with its first use
        self._singly = False  # the last call was slow: in this one each row's time is taken by itself

    def fill(self, matchers: Mapping[int, GrammarMatcher], mask: U32, alone_s: float) -> dict[int, str]:
        words = next(iter(matchers.values())).words
        if words == mask.shape[1]:
            self._compute(matchers, mask, alone_s)
        else:
            own = np.zeros((len(mask), words), np.uint32)
            self._compute(matchers, own, alone_s)
            for row in matchers:
                _clear(mask[row], own[row])
        errors: dict[int, str] = {}
        for row, matcher in matchers.items():
            try:
                matcher.check()
            except ConstraintError as error:
                errors[row] = str(error)
        return errors

    def _compute(self, matchers: Mapping[int, GrammarMatcher], masks: U32, alone_s: float) -> None:
        left = dict(matchers)
        size, pointer = 4 * masks.shape[1], masks.ctypes.data
        now = time.perf_counter()
        enough = now + alone_s
        for row, matcher in matchers.items():
            if self._threads > 1 and len(left) > 1 and now > enough and not self._singly:
                break
            matcher.inner.unsafe_compute_mask_ptr(pointer + row * size, size)
            began, now = now, time.perf_counter()
            matcher.allowance.spend(now - began)
            del left[row]
        self._singly = False
        if not left:
            return
        if self._executor is None:
            import llguidance

            self._executor = llguidance.LLExecutor(num_threads=self._threads)
        # Threads take neighbours: those that share a lock stand together.
        order = sorted(left, key=lambda row: left[row].original)
        pairs = [(left[row].inner, row) for row in order]
        self._executor.unsafe_compute_mask_ptr(pairs, pointer, size, len(masks))
        # Together they do not tell whose time it was, and nobody pays for his neighbour.
        self._singly = time.perf_counter() - now > MASK_S * len(pairs)


def _clear(mask: U32, allowed: U32) -> None:
    """Clear what is not allowed; tokens beyond the tokenizer's are padding, and never are."""
    mask[: len(allowed)] &= allowed
    mask[len(allowed) :] = 0


_WORDS = {
    "NoExtensionBias": "nothing can begin it: a rule that only leads back to itself has no end",
    "Current row has": f"more than {LIMITS['max_items_in_row']} alternatives are open in one place",
    "symbols.len()": "it has more than 65,000 rules",
}
"""What llguidance says, in words for whoever wrote the grammar."""


def _said(problem: str) -> str:
    return next((words for sign, words in _WORDS.items() if sign in problem), _one_line(problem))


def _one_line(text: str, limit: int = 300) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 3] + "..."
