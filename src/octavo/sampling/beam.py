"""BeamSearch: which beams go on. The engine computes candidates and moves pages; here is the choice.

The bookkeeping of Freitag & Al-Onaizan 2017 in the form that transformers gives it, so that both
find the same beams on the same model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.params import MAX_LOGPROBS, BeamSearchParams, SampledToken, SamplingParams
from octavo.sampling.constraints import AllowedTokens, Constraint, Matcher

Candidate = tuple[float, int, SampledToken]


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A finished sequence. total: sum of its tokens' logprobs; score: that, normalized by length."""

    tokens: tuple[SampledToken, ...]
    total: float
    score: float
    finish_reason: str


@dataclass(frozen=True, slots=True)
class _Beam:
    tokens: tuple[SampledToken, ...]
    total: float


def normalized(total: float, length: int, length_penalty: float) -> float:
    """total / length ** length_penalty; above 0 it favours long sequences. length: generated tokens."""
    return float(total / length**length_penalty)


class Lineage:
    """A constraint (see constraints.Constraint) that the beams of one search share.

    Beams are equally long and begin anew with every token. One that is a token longer than a beam of the
    step before forks that one's matcher; only after a preemption is the whole output followed again.
    """

    def __init__(self, constraint: Constraint) -> None:
        self._constraint = constraint
        self._length = -1
        self._parents: dict[tuple[int, ...], Matcher] = {}
        self._beams: dict[tuple[int, ...], Matcher] = {}

    def start(self, output: Sequence[int]) -> Matcher:
        beam = tuple(output)
        if len(beam) != self._length:
            self._parents = self._beams if len(beam) == self._length + 1 else {}
            self._beams, self._length = {}, len(beam)
        parent = self._parents.get(beam[:-1]) if beam else None
        if parent is None:
            matcher = self._constraint.start(beam)
        else:
            matcher = parent.fork()
            matcher.append(beam[-1:])
        self._beams[beam] = matcher
        return matcher


class BeamSearch:
    """One search, B = beam_width beams. A step, given each beam's likeliest next tokens:

    0.  A beam offers what its limits allow (bias, penalties and masks have changed its log-probabilities
        before), which may be less than was asked for, or nothing: then it goes no further, and a search
        may find fewer than B.
    1.  The best 2B continuations of all beams are looked at, by the sum of logprobs (with E > 1 end
        tokens (1 + E) B, so that B of them can go on); equal ones: the earlier beam, the lower id.
    2.  Of the first B those that end (an end token, or the limit of length) are finished; one that
        ends further down is dropped. The best B finished ones are kept, by normalized score.
    3.  The best B that do not end are the new beams.
    4.  The search ends at the limit of length; or with B finished ones, if early_stopping is True or
        the best beam could not become better than the worst of them. For early_stopping False its
        score at the present length tells, for "never" the best that it could reach (the score at
        the limit of length, where length_penalty > 0).

    Args:
        end_ids: tokens that end a sequence.
        max_tokens: limit of generated tokens.
        num_logprobs: how many of the likeliest tokens to keep beside each chosen one.
    """

    def __init__(
        self, params: BeamSearchParams, end_ids: frozenset[int], max_tokens: int, num_logprobs: int = 0
    ) -> None:
        self._params, self._end_ids = params, end_ids
        self._max_tokens, self._num_logprobs = max_tokens, num_logprobs
        self._beams = [_Beam((), 0.0)]
        self._finished: list[Hypothesis] = []

    @staticmethod
    def candidates(params: BeamSearchParams, end_ids: frozenset[int]) -> int:
        """How many of each beam's likeliest tokens a step needs: B that end not are among them."""
        return min(max(2 * params.beam_width, params.beam_width + len(end_ids)), MAX_LOGPROBS)

    @staticmethod
    def following(params: SamplingParams) -> SamplingParams:
        """The same with limits that all beams of a search share: each goes on from its parent's place."""
        constraints: list[Constraint] = [Lineage(constraint) for constraint in params.constraints]
        if params.allowed_token_ids is not None:
            constraints.append(AllowedTokens(params.allowed_token_ids))
        return params.replace(allowed_token_ids=None, constraints=tuple(constraints))

    def advance(self, likeliest: Sequence[Sequence[tuple[int, float]]]) -> list[tuple[int, int]]:
        """One step.

        Args:
            likeliest: for each beam its next tokens (id, logprob), best first.

        Returns:
            (beam it continues, token) of each new beam, best first; none: the search is over.
        """
        width, length = self._params.beam_width, len(self._beams[0].tokens) + 1
        chosen: list[tuple[int, _Beam]] = []
        for place, (total, beam, token) in enumerate(self._best(likeliest)):
            tokens = (*self._beams[beam].tokens, token)
            ended = token.token_id in self._end_ids
            if ended or length == self._max_tokens:
                if place < width:
                    self._finish(tokens, total, "stop" if ended else "length")
            elif len(chosen) < width:
                chosen.append((beam, _Beam(tokens, total)))
        self._beams = [beam for _, beam in chosen]
        if self._over(length):
            return []
        return [(parent, beam.tokens[-1].token_id) for parent, beam in chosen]

    def _best(self, likeliest: Sequence[Sequence[tuple[int, float]]]) -> list[Candidate]:
        every: list[Candidate] = []
        for index, (beam, tokens) in enumerate(zip(self._beams, likeliest, strict=True)):
            shown = tuple(tokens[: self._num_logprobs])
            every += [
                (beam.total + logprob, index, SampledToken(token, logprob, rank, shown))
                for rank, (token, logprob) in enumerate(tokens, 1)
            ]
        every.sort(key=lambda candidate: (-candidate[0], candidate[1], candidate[2].token_id))
        return every[: max(2, 1 + len(self._end_ids)) * self._params.beam_width]

    def _finish(self, tokens: tuple[SampledToken, ...], total: float, reason: str) -> None:
        score = normalized(total, len(tokens), self._params.length_penalty)
        self._finished.append(Hypothesis(tokens, total, score, reason))
        self._finished.sort(key=lambda hypothesis: -hypothesis.score)  # stable: of equals the older one
        del self._finished[self._params.beam_width :]

    def _over(self, length: int) -> bool:
        if length == self._max_tokens or not self._beams:
            return True
        if len(self._finished) < self._params.beam_width:
            return False
        early, penalty = self._params.early_stopping, self._params.length_penalty
        if early is True:
            return True
        reach = self._max_tokens if early == "never" and penalty > 0 else length
        return normalized(self._beams[0].total, reach, penalty) <= self._finished[-1].score

    def hypotheses(self) -> list[Hypothesis]:
        """The finished sequences, best first; at most beam_width."""
        return list(self._finished)
