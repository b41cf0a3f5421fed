"""What `octavo bench speculate` prints: what drafts were worth, what they cost, and what that makes.

Each prompt is answered by an engine without drafts and by one with them, in turns. Their answers must be the
same, unless drafts are put to the p/q test; their times say the gain. From steps of the second engine, by the
number n of tokens that they verified:

    tau(n) = tokens that such a step gave: 1 + accepted
    c_v(n) = its time, the proposer's left out, beside that of a step of the engine without drafts
    c_d    = the proposer's time for one step beside the same; a model's, prompts apart, for one that verifies
    gain   = tokens of all steps / (sum of c_v of all steps + c_d * steps), predicted; and the one measured
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from octavo.bench.driver import Driver
from octavo.config.speculation import read_speculation
from octavo.engine.request import EngineRequest
from octavo.errors import InvalidRequestError, OctavoError
from octavo.params import SampledToken, SamplingParams
from octavo.runtime.model_drafts import ModelDrafts
from octavo.runtime.model_speculation import ModelSpeculation
from octavo.spec import Begin, Proposer, Wanted

EXAMPLES = (
    "Rename the function area to surface. Answer with the whole code.\n\n```python\n"
    "def area(width, height):\n"
    '    """Area of a rectangle, or 0 where a side is negative."""\n    if width < 0 or height < 0:\n'
    "        return 0\n    return width * height\n\n\nprint(area(3, 4))\nprint(area(-1, 4))\n```",
    "Repeat this text word for word: The library opens at nine in the morning and closes at six in the "
    "evening. Books can be kept for four weeks. Whoever keeps them longer pays ten cents a day.",
    "Write a short story about a lighthouse.",
)
"""What is answered where no file is given: an edit, a copy, and a story that no one can guess."""


@dataclass(frozen=True, slots=True)
class Verified:
    """One step of decoding: its seconds, the tokens that it drew, and how many drafted ones it verified."""

    seconds: float
    tokens: int
    drafted: int


@dataclass(frozen=True, slots=True)
class Answers:
    """What one engine answered, and its steps after all prompts were computed.

    Attributes:
        seconds: of all steps, those of the prompts too.
    """

    token_ids: tuple[tuple[int, ...], ...]
    steps: tuple[Verified, ...]
    seconds: float


class Answering(Driver):
    """A Driver whose answers end where they end, and whose steps say what they verified."""

    def answer(self, prompts: Sequence[Sequence[int]], params: SamplingParams) -> Answers:
        """Answer prompts side by side. What earlier ones left with the prefix cache and the proposer stays.

        Raises:
            InvalidRequestError: a prompt or the parameters are wrong.
            OctavoError: a request failed.
        """
        names = [f"answer-{self._next_id + i}" for i in range(len(prompts))]
        self._next_id += len(names)
        drawn: dict[str, list[SampledToken]] = {name: [] for name in names}
        for name, prompt in zip(names, prompts, strict=True):
            request = EngineRequest(name, list(prompt), params)
            self._core.check(request)
            self._core.add(request, time.monotonic())
        counts, begun = self._core.scheduler.drafts.counts, 0
        steps: list[tuple[float, int, int]] = []
        start = before = time.perf_counter()
        while self._core.has_unfinished():
            known = counts.draft_tokens
            updates = self._core.step()
            now, tokens = time.perf_counter(), 0
            for update in updates:
                if update.finish_reason == "error":
                    raise OctavoError(f"a request failed: {update.stop_reason}")
                tokens += len(update.tokens)
                drawn[update.request_id] += update.tokens
            # No Verified yet: what is done between steps counts as the host's time.
            steps.append((now - before, tokens, counts.draft_tokens - known))
            before = now
            if not begun and all(drawn.values()):
                begun = len(steps)
        ids = tuple(tuple(token.token_id for token in drawn[name]) for name in names)
        return Answers(ids, tuple(Verified(*step) for step in steps[begun:]), before - start)


@dataclass(frozen=True, slots=True)
class StepLine:
    """Steps that verified as many drafted tokens: their share, tokens (tau), and time (c_v)."""

    drafted: int
    share: float
    tau: float
    c_v: float


@dataclass(frozen=True, slots=True)
class Speculated:
    """All figures of one engine with drafts.

    Attributes:
        step_ms: of a step without drafts. c_d: the proposer's time for a step, beside it.
        accepted_at: by place, of the drafts that had a token there the share where it was accepted. A tree's
            tokens count as a place each, so of trees it is at least so much.
        drafting: share of steps that verified any drafted token. tau: tokens a step, over these.
        predicted, measured: tokens a second with drafts over those without, while decoding.
        unrepeated: the same as measured, over the prompts whose answers do not repeat themselves; None: all
            do.
    """

    prompts: int
    tokens: int
    step_ms: float
    c_d: float
    accepted_at: tuple[float, ...]
    drafting: float
    tau: float
    predicted: float
    measured: float
    unrepeated: float | None
    steps: tuple[StepLine, ...] = field(default=())


def repeats(tokens: Sequence[int], length: int = 8, times: int = 3) -> bool:
    """Whether an answer loops: the same run of `length` tokens stands `times` times in it."""
    seen: dict[tuple[int, ...], int] = {}
    for end in range(length, len(tokens) + 1):
        run = tuple(tokens[end - length : end])
        seen[run] = seen.get(run, 0) + 1
        if seen[run] >= times:
            return True
    return False


def proposer_seconds(proposer: Proposer, prompt: Sequence[int], answer: Sequence[int], most: int) -> float:
    """Seconds that a proposer takes beside a request whose tokens are drawn alone, start and end included."""
    begin = time.perf_counter()
    proposer.start(0, Begin(prompt, len(prompt)))
    for token in answer:
        proposer.observe(0, (token,))
        proposer.propose({0: most})
    proposer.remove(0)
    return time.perf_counter() - begin


def figures(
    pairs: Sequence[tuple[Answers, Answers]], proposing_s: float, always: bool = True, same: bool = True
) -> Speculated:
    """Of pairs of answers without and with drafts to the same prompts.

    Args:
        proposing_s: seconds of the proposer, of all steps together.
        always: every step takes as much of them; False: those alone that verify drafts.
        same: their answers must be equal.

    Raises:
        OctavoError: an answer differs, which would be an error of Octavo's; or none has a second token.
    """
    if same and any(plain.token_ids != drafted.token_ids for plain, drafted in pairs):
        raise OctavoError("an answer with drafts is not the one without: please report it")
    alone = [step.seconds for plain, _ in pairs for step in plain.steps]
    steps = [step for _, drafted in pairs for step in drafted.steps]
    if not alone or not steps:
        raise OctavoError("no answer has a second token, so nothing was decoded")
    plain_s = statistics.median(alone)
    drafting = [step for step in steps if step.drafted]
    proposed = steps if always else drafting
    c_d_s = proposing_s / max(len(proposed), 1)
    lines = _lines(steps, plain_s, c_d_s, always)
    costs = {line.drafted: line.c_v for line in lines}
    tokens = sum(step.tokens for step in steps)
    spent = sum(costs[step.drafted] for step in steps) + c_d_s / plain_s * len(proposed)
    fresh = [pair for pair in pairs if not any(repeats(answer) for answer in pair[0].token_ids)]
    return Speculated(
        prompts=len(pairs),
        tokens=tokens,
        step_ms=1e3 * plain_s,
        c_d=c_d_s / plain_s,
        accepted_at=_accepted_at(drafting),
        drafting=len(drafting) / len(steps),
        tau=statistics.mean(step.tokens for step in drafting) if drafting else 1.0,
        predicted=tokens / spent,
        measured=_gain(pairs),
        unrepeated=_gain(fresh) if fresh else None,
        steps=lines,
    )


def _accepted_at(drafting: Sequence[Verified]) -> tuple[float, ...]:
    return tuple(
        statistics.fmean(step.tokens > place + 1 for step in drafting if step.drafted > place)
        for place in range(max((step.drafted for step in drafting), default=0))
    )


def _gain(pairs: Sequence[tuple[Answers, Answers]]) -> float:
    plain = _token_seconds([one for one, _ in pairs])
    drafted = _token_seconds([one for _, one in pairs])
    return plain / drafted if drafted else 0.0


def _token_seconds(answers: Sequence[Answers]) -> float:
    """Of a decoded token."""
    steps = [step for answer in answers for step in answer.steps]
    return sum(step.seconds for step in steps) / max(sum(step.tokens for step in steps), 1)


def _lines(steps: Sequence[Verified], plain_s: float, c_d_s: float, always: bool) -> tuple[StepLine, ...]:
    sizes: dict[int, list[Verified]] = {}
    for step in steps:
        sizes.setdefault(step.drafted, []).append(step)
    return tuple(
        StepLine(
            drafted,
            len(alike) / len(steps),
            statistics.mean(step.tokens for step in alike),
            (statistics.median(step.seconds for step in alike) - c_d_s * (always or drafted > 0)) / plain_s,
        )
        for drafted, alike in sorted(sizes.items())
    )


class Speculating:
    """Two engines of one model, without drafts and with them.

    Args:
        options: of both engines. config: speculative_config of the second.
    """

    def __init__(self, model: str, options: Mapping[str, Any], config: Mapping[str, Any]) -> None:
        self.asked = read_speculation(config)  # an error before a model is loaded
        self.plain = Answering(model, **options)
        self.drafted = Answering(model, **options, speculative_config=config)

    @property
    def drafts(self) -> ModelDrafts | None:
        """The second engine's, where a model drafts."""
        speculation = self.drafted.loaded.speculation
        return speculation.drafts if isinstance(speculation, ModelSpeculation) else None

    def proposer(self) -> Proposer:
        """Another one like the second engine's, whose drafts come from tables."""
        limits = self.drafted.loaded.config
        wanted = Wanted(limits.max_num_seqs, limits.max_model_len, True, self.asked.options)
        return self.asked.proposer.make(wanted)


def conversations(path: Path | None) -> list[list[dict[str, Any]]]:
    """Messages of each line of a file; None: EXAMPLES.

    Raises:
        InvalidRequestError: the file cannot be read, or a line holds none of `prompt`, `messages`, `turns`;
            it is named.
    """
    if path is None:
        return [[{"role": "user", "content": text}] for text in EXAMPLES]
    found: list[list[dict[str, Any]]] = []
    try:
        with path.open(encoding="utf-8") as file:
            for number, text in enumerate(file, 1):
                if text.strip():
                    found.append(_messages(text, f"{path.name}, line {number}"))
    except UnicodeDecodeError:
        raise InvalidRequestError(f"{path} is no text in UTF-8") from None
    except OSError as error:
        raise InvalidRequestError(f"{path} cannot be read: {error.strerror}") from None
    if not found:
        raise InvalidRequestError(f"{path} holds no prompts")
    return found


def _messages(text: str, where: str) -> list[dict[str, Any]]:
    """Of one line. where: which it is."""
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidRequestError(f"{where} is not JSON") from None
    if not isinstance(line, dict):
        raise InvalidRequestError(f"{where} is no JSON object")
    if "messages" in line:
        messages = line["messages"]
        if not isinstance(messages, list) or not messages or not all(map(_is_message, messages)):
            raise InvalidRequestError(f"{where}: messages must be a list of objects with role and content")
        return messages
    if "prompt" not in line and "turns" not in line:
        raise InvalidRequestError(f"{where} has none of prompt, messages, turns")
    turns = [line["prompt"]] if "prompt" in line else line["turns"]
    if not isinstance(turns, list) or not turns or not isinstance(turns[0], str):
        wrong = "prompt must be a text" if "prompt" in line else "turns must be a list of texts"
        raise InvalidRequestError(f"{where}: {wrong}")
    return [{"role": "user", "content": turns[0]}]


def _is_message(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("role"), str) and "content" in value


def speculate(
    engines: Speculating, talks: Sequence[Sequence[Mapping[str, Any]]], sampling: Mapping[str, Any]
) -> Speculated:
    """Answer each conversation with both engines, in turns; the first once more before, to warm up.

    Args:
        sampling: fields of SamplingParams.
    """
    plain, drafted, model = engines.plain, engines.drafted, engines.drafts
    proposer = engines.proposer() if model is None else None
    params = SamplingParams(**{"seed": 0, **sampling, "detokenize": False})
    prompts = [plain.render_chat(list(messages)) for messages in talks]
    for engine in (plain, drafted):
        engine.answer(prompts[:1], params)
        engine.reset_prefix_cache()
    proposing = 0.0 if model is None else -model.seconds
    pairs: list[tuple[Answers, Answers]] = []
    for turn, prompt in enumerate(prompts):
        arms = (plain, drafted) if turn % 2 == 0 else (drafted, plain)
        found = {id(arm): arm.answer([prompt], params) for arm in arms}
        pairs.append((found[id(plain)], found[id(drafted)]))
        if proposer is not None:
            answer = found[id(plain)].token_ids[0]
            proposing += proposer_seconds(proposer, prompt, answer, engines.asked.most)
    proposing += 0.0 if model is None else model.seconds
    return figures(pairs, proposing, always=model is None, same=not engines.asked.rejecting)
