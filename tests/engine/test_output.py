"""TextStream: text, stop strings, logprobs, n completions, three kinds of output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.engine.output import Completion, OutputProcessor, TextStream
from octavo.engine.request import EngineRequest, RequestUpdate
from octavo.params import (
    Logprob,
    RequestMetrics,
    RequestOutput,
    RequestOutputKind,
    SampledToken,
    SamplingParams,
)
from octavo.tokenizer.stop import StopStrings

KINDS = list(RequestOutputKind)


class Letters:
    """Token 0..25 is a letter; 30 is the first half of "é", which appears with the next token."""

    def __init__(self, prompt: Sequence[int], params: SamplingParams) -> None:
        self.open = False

    def push(self, token_id: int) -> str:
        begun, self.open = self.open, token_id == 30
        if token_id == 30:
            return "\ufffd" if begun else ""
        return "é" if begun else chr(97 + token_id)

    def flush(self) -> str:
        begun, self.open = self.open, False
        return "\ufffd" if begun else ""


def processor() -> OutputProcessor:
    return OutputProcessor(
        Letters,
        lambda params: StopStrings(params.stop, params.include_stop_str_in_output),
        lambda i: chr(97 + i),
    )


def stream(params: SamplingParams) -> TextStream:
    return processor().open(EngineRequest("r", [1], params))


def letters(text: str) -> list[SampledToken]:
    return [SampledToken(ord(char) - 97) for char in text]


def news(
    tokens: Sequence[SampledToken] = (),
    finish: str | None = None,
    *,
    index: int = 0,
    stop_reason: int | str | None = None,
    cached: int = 0,
    metrics: RequestMetrics | None = None,
) -> RequestUpdate:
    return RequestUpdate("r", index, tokens, finish, stop_reason, cached, metrics or RequestMetrics(0.0))


def outputs_of(updates: Sequence[RequestUpdate], **changes: object) -> tuple[list[RequestOutput], list[int]]:
    """All outputs when they are taken after each update, and the completions that were to be aborted."""
    found, stopped = list[RequestOutput](), list[int]()
    params = SamplingParams(max_tokens=99, **changes)  # type: ignore[arg-type]
    text = processor().open(EngineRequest("r", [1, 2], params, prompt="text"))
    text.begin(7)
    for update in updates:
        if text.take(update):
            stopped.append(update.index)
        if (output := text.output()) is not None:
            found.append(output)
    assert text.finished is found[-1].finished
    return found, stopped


def test_cumulative_delta_and_final() -> None:
    updates = [news(letters("ab")), news(letters("c")), news(letters("d"), "length")]
    for kind, texts in zip(KINDS, (["ab", "abc", "abcd"], ["ab", "c", "d"], ["abcd"]), strict=True):
        found, _ = outputs_of(updates, output_kind=kind)
        assert [output.outputs[0].text for output in found] == texts
        assert [output.finished for output in found] == [False] * (len(texts) - 1) + [True]
        assert [o.outputs[0].token_ids for o in found] == [[ord(c) - 97 for c in text] for text in texts]
        assert found[-1].outputs[0].finish_reason == "length"
        last = found[-1]
        assert (last.request_id, last.prompt, last.prompt_token_ids, last.seed) == ("r", "text", [1, 2], 7)


def test_news_that_nobody_takes_merge() -> None:
    text = stream(SamplingParams(output_kind=RequestOutputKind.DELTA))
    assert text.output() is None
    for char in "abc":
        text.take(news(letters(char)))
    output = text.output()
    assert output is not None
    assert (output.outputs[0].text, output.outputs[0].token_ids) == ("abc", [0, 1, 2])
    assert text.output() is None


@pytest.mark.parametrize(
    ("stop", "text", "counts"), [("cd", "ab", (3, 3)), ("f", "abcde", (4, 2)), ("x", "abcdef", (4, 2))]
)
def test_drafted_tokens_behind_a_stop_string_count_as_rejected(
    stop: str, text: str, counts: tuple[int, int]
) -> None:
    """One token comes with the prompt, then five of a step that has accepted four of six drafted ones."""
    first, verified, late = news(letters("a")), news(letters("bcdef")), news(letters("ghijk"))
    verified.drafted, verified.accepted = 6, 4
    late.drafted, late.accepted = 4, 4
    first.metrics = late.metrics = verified.metrics
    found, stopped = outputs_of([first, verified, *([late] if stop != "x" else [])], stop=[stop])
    assert found[-1].outputs[0].text == text
    assert bool(stopped) is (stop != "x")
    metrics = found[-1].metrics
    assert metrics is not None
    assert (metrics.accepted_prediction_tokens, metrics.rejected_prediction_tokens) == counts


def test_n_completions_come_under_one_id() -> None:
    updates = [
        news(letters("a"), index=1),
        news(letters("b"), "length", index=0),
        news(letters("c"), "stop", index=1, stop_reason=2),
    ]
    found, _ = outputs_of(updates, n=2, output_kind=RequestOutputKind.DELTA)
    assert [[(c.index, c.text) for c in o.outputs] for o in found] == [[(1, "a")], [(0, "b")], [(1, "")]]
    assert [output.finished for output in found] == [False, False, True]
    found, _ = outputs_of(updates, n=2)
    assert [[(c.index, c.text) for c in o.outputs] for o in found] == [
        [(0, ""), (1, "a")],
        [(0, "b"), (1, "a")],
        [(0, "b"), (1, "a")],
    ]
    (final,), _ = outputs_of(updates, n=2, output_kind=RequestOutputKind.FINAL_ONLY)
    assert [c.finish_reason for c in final.outputs] == ["length", "stop"]


def test_the_stop_token_counts_but_has_no_text() -> None:
    update = news(letters("abz"), "stop", stop_reason=25)
    (output,), _ = outputs_of([update])
    completion = output.outputs[0]
    assert (completion.text, len(completion.token_ids), completion.stop_reason) == ("ab", 3, 25)
    (output,), _ = outputs_of([update], include_stop_str_in_output=True)
    assert output.outputs[0].text == "abz"


def test_a_stop_string_ends_at_the_token_that_completed_it() -> None:
    updates = [news(letters("abx")), news(letters("yzq")), news(letters("w"), "length")]
    found, stopped = outputs_of(updates, stop=["xyz"])
    assert [output.outputs[0].text for output in found] == ["ab", "ab"]  # the x was held back
    completion = found[-1].outputs[0]
    assert (completion.finish_reason, completion.stop_reason) == ("stop", "xyz")
    assert len(completion.token_ids) == 5, "q came after it"
    assert stopped == [0]
    found, _ = outputs_of(updates, stop=["xyz"], include_stop_str_in_output=True)
    assert found[-1].outputs[0].text == "abxyz"


def test_a_stop_string_in_the_last_token_needs_no_abort() -> None:
    found, stopped = outputs_of([news(letters("ax"), "length")], stop=["x"])
    assert stopped == []
    assert (found[0].outputs[0].text, found[0].outputs[0].finish_reason) == ("a", "stop")


def test_held_text_appears_at_the_end() -> None:
    found, _ = outputs_of([news(letters("ax")), news(letters("y"), "length")], stop=["xyz"])
    assert [output.outputs[0].text for output in found] == ["a", "axy"]
    found, _ = outputs_of([news([SampledToken(0), SampledToken(30)]), news((), "abort")])
    assert [output.outputs[0].text for output in found] == ["a", "a\ufffd"]
    assert found[-1].outputs[0].finish_reason == "abort"


def test_stop_strings_wait_for_min_tokens() -> None:
    found, stopped = outputs_of([news(letters("xxax"))], stop=["x"], min_tokens=2)
    assert found[-1].outputs[0].text == "xxa"
    assert (len(found[-1].outputs[0].token_ids), len(stopped)) == (4, 1)


def test_without_detokenizing_there_is_no_text() -> None:
    (output,), _ = outputs_of([news(letters("ab"), "length")], detokenize=False)
    assert (output.outputs[0].text, output.outputs[0].token_ids) == ("", [0, 1])


def test_logprobs_and_their_sum() -> None:
    first = SampledToken(1, -0.5, 1, ((1, -0.5), (2, -1.5)))
    second = SampledToken(3, -4.0, 9, ((1, -0.25), (2, -2.0)))
    updates = [news([first]), news([second], "length")]
    found, _ = outputs_of(updates, logprobs=2, output_kind=RequestOutputKind.DELTA)
    assert found[0].outputs[0].logprobs == [{1: Logprob(-0.5, 1, "b"), 2: Logprob(-1.5, 2, "c")}]
    assert found[1].outputs[0].logprobs == [
        {3: Logprob(-4.0, 9, "d"), 1: Logprob(-0.25, 1, "b"), 2: Logprob(-2.0, 2, "c")}
    ]
    assert [output.outputs[0].cumulative_logprob for output in found] == [-0.5, -4.5]
    found, _ = outputs_of(updates)
    assert (found[-1].outputs[0].logprobs, found[-1].outputs[0].cumulative_logprob) == (None, None)


def test_metrics_are_those_of_the_whole_request() -> None:
    a = RequestMetrics(1.0, 2.0, 3.0, 5.0, 5.0, num_preemptions=1)
    b = RequestMetrics(1.0, 2.5, 2.75, 9.0, 9.0, num_preemptions=2)
    updates = [
        news(letters("a"), "length", metrics=a, cached=4),
        news(letters("a"), "length", index=1, metrics=b, cached=8),
    ]
    found, _ = outputs_of(updates, n=2)
    first, last = found[0].metrics, found[-1].metrics
    assert first == RequestMetrics(1.0, 2.0, 3.0, 5.0, None, 1)
    assert last == RequestMetrics(1.0, 2.0, 2.75, 9.0, 9.0, 3)
    assert found[-1].num_cached_tokens == 4, "what was cached before, not what the first sample left"


def test_callers_may_change_what_they_are_given() -> None:
    """Whoever goes on with the request elsewhere still has its prompt."""
    request = EngineRequest("r", [1, 2], SamplingParams(max_tokens=9))
    text = processor().open(request)
    text.take(news(letters("a")))
    output = text.output()
    assert output is not None
    output.prompt_token_ids += [7]
    output.outputs[0].token_ids += [7]
    assert request.prompt_token_ids == [1, 2]


def test_what_comes_after_the_end_is_ignored() -> None:
    text = stream(SamplingParams(stop=["a"]))
    assert text.take(news(letters("a")))
    assert not text.take(news(letters("b"), "abort"))
    output = text.output()
    assert output is not None
    assert (output.outputs[0].finish_reason, output.outputs[0].token_ids) == ("stop", [0])
    assert output.finished


def test_abort_gives_a_last_output() -> None:
    text = stream(SamplingParams(n=2))
    text.take(news(letters("a"), "length"))
    text.take(news((), "abort", index=1))
    output = text.output()
    assert output is not None
    assert [c.finish_reason for c in output.outputs] == ["length", "abort"]
    assert output.finished


@settings(max_examples=200, deadline=None)
@given(
    tokens=st.lists(st.sampled_from([0, 1, 2, 30]), min_size=1, max_size=12),
    cuts=st.lists(st.integers(1, 3), min_size=12, max_size=12),
    takes=st.lists(st.booleans(), min_size=12, max_size=12),
    stop=st.sampled_from([(), ("ab",), ("aba", "c"), ("é",)]),
    kind=st.sampled_from(KINDS),
)
def test_the_text_does_not_depend_on_how_it_came(
    tokens: list[int],
    cuts: list[int],
    takes: list[bool],
    stop: tuple[str, ...],
    kind: RequestOutputKind,
) -> None:
    reader = stream(SamplingParams(stop=stop, output_kind=kind, max_tokens=99))
    outputs, rest = list[RequestOutput](), [SampledToken(t) for t in tokens]
    for cut, take in zip(cuts, takes, strict=True):
        piece, rest = rest[:cut], rest[cut:]
        reader.take(news(piece, None if rest else "length"))
        if (take or not rest) and (output := reader.output()) is not None:
            outputs.append(output)
        if not rest:
            break
    last = outputs[-1].outputs[0]
    delta = kind is RequestOutputKind.DELTA
    text = "".join(o.outputs[0].text for o in outputs) if delta else last.text
    ids = [i for o in outputs for i in o.outputs[0].token_ids] if delta else last.token_ids

    whole, used, reference = "", 0, Letters([], SamplingParams())
    ends = [-1]
    for used, token in enumerate(tokens, 1):  # noqa: B007
        whole += reference.push(token)
        ends = [whole.find(s) for s in stop if s in whole]
        if ends:
            break
    if not ends:
        whole += reference.flush()
    expected = whole[: min(ends)] if ends else whole
    assert (text, len(ids)) == (expected, used)
    assert last.finish_reason == ("stop" if ends else "length")
    assert outputs[-1].finished


def cut_in_two(
    tokens: list[int], cut: int, stop: tuple[str, ...], kind: RequestOutputKind
) -> tuple[str, list[int]]:
    """(text, ids) of an answer that one stream begins and another one, which gets its tokens, ends."""
    params = SamplingParams(stop=stop, output_kind=kind, max_tokens=99)
    whole = [SampledToken(token) for token in tokens]
    first = stream(params)
    first.take(news(whole[:cut]))
    begun = first.output()
    second = processor().open(EngineRequest("r", [1], params, generated=tuple(whole[:cut])))
    assert second.output() is None, "nothing is new"
    second.take(news(whole[cut:], "length"))
    ended = second.output()
    assert ended is not None
    assert ended.finished
    parts = [begun, ended] if kind is RequestOutputKind.DELTA else [ended]
    done = [output.outputs[0] for output in parts if output is not None]
    return "".join(part.text for part in done), [token for part in done for token in part.token_ids]


@settings(max_examples=200, deadline=None)
@given(
    tokens=st.lists(st.sampled_from([0, 1, 2, 30]), min_size=2, max_size=12),
    place=st.integers(0, 11),
    stop=st.sampled_from([(), ("ab",), ("aba", "c"), ("é",), ("cab", "bb")]),
    kind=st.sampled_from(KINDS),
)
def test_a_text_may_be_cut_anywhere(
    tokens: list[int], place: int, stop: tuple[str, ...], kind: RequestOutputKind
) -> None:
    whole = stream(SamplingParams(stop=stop, max_tokens=99))
    whole.take(news([SampledToken(token) for token in tokens], "length"))
    output = whole.output()
    assert output is not None
    (wanted,) = output.outputs
    cut = min(place, len(wanted.token_ids) - 1)  # an answer that has ended is not gone on with
    assert cut_in_two(tokens, cut, stop, kind) == (wanted.text, wanted.token_ids)


def forget_what_was_held(patch: pytest.MonkeyPatch) -> None:
    resume = Completion.resume

    def mutant(self: Completion, *given: Any) -> None:
        resume(self, *given)
        if self.matcher is not None:
            self.matcher.flush()

    patch.setattr(Completion, "resume", mutant)


def say_it_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Completion, "_size", lambda self: (0, 0, 0))


@pytest.mark.parametrize("mutant", [forget_what_was_held, say_it_again])
def test_mutants_of_cut_texts_are_seen(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    a_b_a_c = [0, 1, 0, 2]
    assert cut_in_two(a_b_a_c, 2, ("aba",), RequestOutputKind.DELTA) == ("", [0, 1, 0])
    mutant(monkeypatch)
    assert cut_in_two(a_b_a_c, 2, ("aba",), RequestOutputKind.DELTA) != ("", [0, 1, 0])


@pytest.mark.parametrize("seed", [0, 12345])
def test_the_seed_is_told(seed: int) -> None:
    text = stream(SamplingParams())
    text.begin(seed)
    text.take(news(letters("a")))
    output = text.output()
    assert output is not None
    assert output.seed == seed
