"""Steps whose tokens stay on the device: equal to logits on the host and the host's sampler; errors."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from octavo.errors import DeviceLostError, StepTooLargeError
from octavo.kernels.forward_batch import ForwardBatch
from octavo.kernels.ops import Limits
from octavo.params import SamplingParams
from octavo.sampling import Sampler
from octavo.sampling.device import DrawMaker, read
from octavo.sampling.sampling_rows import SamplingRows
from support.cuda import interpreted
from support.recordings import VOCAB, Recordings, Tiny, steps_of

LIMITS = Limits(64, 6, 6, 4)
WISHES = (
    SamplingParams(temperature=0),
    SamplingParams(temperature=1, top_k=7, top_p=0.8),
    SamplingParams(temperature=0.7, logprobs=3),
    SamplingParams(temperature=1, repetition_penalty=1.5, logit_bias={3: 2.0}),
)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """A device has no such warnings as the interpreter's NumPy."""
    with np.errstate(all="ignore"):
        yield


def batch(tokens: list[list[int]], lengths: list[int]) -> ForwardBatch:
    """Next tokens of sequences whose pages are 4 each."""
    counts = np.array([len(t) for t in tokens], np.int32)
    start = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    positions = np.concatenate(
        [np.arange(n - c, n, dtype=np.int32) for n, c in zip(lengths, counts, strict=True)]
    )
    owners = np.repeat(np.arange(len(tokens), dtype=np.int32), counts)
    tables = np.arange(4 * len(tokens), dtype=np.int32).reshape(-1, 4)
    slots = tables[owners, positions // 16] * 16 + positions % 16
    ids = np.concatenate([np.array(t, np.int32) for t in tokens])
    return ForwardBatch(
        ids, positions, slots, start, np.array(lengths, np.int32), tables, start[1:] - np.int32(1)
    )


def conversation(steps: Any, wishes: tuple[SamplingParams, ...], count: int, feed: bool) -> list[Any]:
    """Prompts, then `count` tokens of each; feed: ids of drawn tokens are left to the device."""
    rows, maker, said = SamplingRows(8, VOCAB), DrawMaker(), []
    tokens = [[5 + r, 9, 7 + r] for r in range(len(wishes))]
    owners = list(range(len(wishes)))
    for row, wish in enumerate(wishes):
        rows.add(row, wish, 11 + row, 0, tokens[row], 3)
    for _ in range(count):
        lengths = [len(t) for t in tokens]
        new = [t if len(t) == 3 else t[-1:] for t in tokens]
        sources = np.full(sum(map(len, new)), -1, np.int32)
        if feed and lengths[0] > 3:
            new, sources = [[49] for _ in new], np.array(owners, np.int32)
        wanted = rows.batch(owners, lengths)
        draws = maker.draws(wanted)
        assert steps.lacks(draws) is None
        drawn = read(steps.launch(batch(new, lengths), sources, owners, draws).draw(draws).result(), wanted)
        said.append(drawn)
        for row, token in enumerate(drawn):
            tokens[row].append(token.token_id)  # type: ignore[union-attr]
            rows.append(row, [token.token_id])  # type: ignore[union-attr]
    return said


class OnHost:
    """The same steps with logits on the host."""

    def __init__(self, program: Any) -> None:
        self._program = program

    def lacks(self, draws: Any) -> None:
        return None

    def launch(self, given: ForwardBatch, sources: Any, owners: Any, draws: Any) -> Any:
        from support.late_device import batch_of, drawn_of

        logits = self._program.replay(given)

        class Done:
            def draw(self, draws: Any) -> Any:
                return self

            def result(self) -> Any:
                return drawn_of(Sampler().sample(logits, batch_of(draws)), draws.numbers.most)

        return Done()


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("who", [(0,), (1, 0), (0, 1, 2), (3, 1)])
def test_tokens_that_stay_equal_tokens_that_travel(captured: bool, who: tuple[int, ...]) -> None:
    """Greedy, narrow, with log-probabilities, with edits: in one batch, eagerly and replayed."""
    wishes = tuple(WISHES[i] for i in who)
    record = Recordings()
    steps = steps_of(record if captured else None, LIMITS)
    tiny = Tiny()
    want = conversation(OnHost(tiny.backend.capture(tiny, LIMITS)), wishes, 5, feed=False)
    assert ids(conversation(steps, wishes, 5, feed=True)) == ids(want)
    assert record.made == int(captured)
    assert steps.replays == (3 if captured else 0)  # the prompts, and the step that is met first, run eagerly


def ids(said: list[Any]) -> list[list[int]]:
    return [[token.token_id for token in step] for step in said]


def test_padding_is_nobodys() -> None:
    """Three rows in a bucket of four, then two: the others' latest tokens stay."""
    steps = steps_of(Recordings(), LIMITS)
    steps.sampler.latest[...] = 47
    conversation(steps, WISHES[:3], 3, feed=True)
    assert steps.sampler.latest.tolist()[3:] == [47, 47, 47]


def test_captures_in_the_background_change_no_token() -> None:
    """Steps go on while a capture is under way, and use it when it is there."""
    import threading

    from octavo.kernels.cuda.capture import Captures
    from octavo.kernels.cuda.steps import Steps

    may, record = threading.Event(), Recordings()

    def slow(run: Any, warm: Any) -> tuple[Any, Any]:
        assert may.wait(60)
        assert threading.current_thread().name == "octavo-captures"
        return record(run, warm)

    tiny = Tiny()
    captures = Captures(slow)
    steps = Steps(tiny.backend.maker, tiny, LIMITS, captures, VOCAB)
    record.state = [steps.sampler.latest, *tiny.cache.tensors]
    first = conversation(steps, WISHES[:2], 3, feed=True)
    assert steps.replays == 0
    may.set()
    assert captures.wait(60)
    assert list(captures.seconds) == ["decode 2, narrow"]
    assert conversation(steps, WISHES[:2], 3, feed=True) == first
    assert steps.replays == 2


def test_a_thread_that_records_ends_after_the_graph_it_is_at() -> None:
    """The interpreter's end would cut it off in the middle of the driver."""
    import threading

    from octavo.kernels.cuda.capture import Captures

    done: list[str] = []

    def record(run: Any, warm: Any) -> tuple[Any, Any]:
        done.append("begun")
        time.sleep(0.2)
        done.append("ended")
        return None, run()

    captures = Captures(record)
    for name in "ab":
        captures.want(name, lambda: torch.zeros(1), lambda: None, lambda graph, result: None)
    while not done:
        time.sleep(0.01)
    mine = next(t for t in threading.enumerate() if t.name == "octavo-captures" and t is captures._thread)
    captures.close()
    assert not mine.is_alive()
    assert done == ["begun", "ended"]


def test_kernels_are_compiled_before_anybody_waits() -> None:
    """Padding of a decode step and of a short prompt: no token, no page and no graph comes of it."""
    record = Recordings()
    steps = steps_of(record, LIMITS)
    steps.sampler.latest[...] = 47
    before = [each.clone() for each in record.state]
    steps.prepare()
    assert all((each == was).all() for each, was in zip(record.state, before, strict=True))
    assert (record.made, steps.replays, len(steps._places)) == (0, 0, 0)


def test_captures_are_told_of_as_they_end() -> None:
    from octavo.kernels.cuda.capture import Captures

    backend, told = interpreted(graphs=False), []
    captures = Captures(lambda run, warm: (None, run()), background=False)
    backend.captures = captures
    try:
        backend.report(lambda name, seconds: told.append((name, seconds)))
        captures.want("decode 4", lambda: np.zeros(1), lambda: None, lambda graph, result: None)  # type: ignore[arg-type,return-value]
    finally:
        backend.captures = None
    assert told == [("capture decode 4", captures.seconds["decode 4"])]


def test_a_capture_that_fails_leaves_steps_eager() -> None:
    from octavo.kernels.cuda.capture import Captures

    def broken(run: Any, warm: Any) -> tuple[Any, Any]:
        raise ValueError("operation not permitted when stream is capturing")

    captures, told = Captures(broken, background=False), []
    captures.tell = lambda name, seconds: told.append(name)
    captures.want("decode 4", lambda: None, lambda: None, lambda graph, result: None)  # type: ignore[arg-type,return-value]
    assert captures.failed == {"decode 4": "ValueError: operation not permitted when stream is capturing"}
    assert told == [f"no capture decode 4 ({captures.failed['decode 4']})"]


def test_what_a_gpu_says_when_it_fails() -> None:
    """No memory: a smaller step may do. Anything else of the driver's: the device is lost."""
    import torch

    interpreted()
    from octavo.kernels.cuda.errors import step_errors

    def raises(error: Exception) -> None:
        with step_errors():
            raise error

    with pytest.raises(StepTooLargeError, match=r"no memory for this step .*3.00 GiB") as full:
        raises(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.00 GiB.\nGPU 0 has"))
    assert "\n" not in str(full.value)
    lost = [RuntimeError("CUDA error: unspecified launch failure\nCUDA kernel errors might be")]
    if hasattr(torch, "AcceleratorError"):
        lost.append(torch.AcceleratorError("CUDA error: device-side assert triggered"))
    for error in lost:
        with pytest.raises(DeviceLostError, match=r"the GPU can no longer be used \(CUDA error: .*Xid"):
            raises(error)
    with pytest.raises(RuntimeError, match="shape"):
        raises(RuntimeError("shape mismatch"))
    with pytest.raises(ValueError, match="ours"):
        raises(ValueError("ours"))


def test_a_lane_never_overwrites_what_still_travels() -> None:
    import torch

    interpreted()
    from octavo.kernels.cuda.lane import Lane

    lane = Lane({"a": (torch.int64, (2,)), "b": (torch.float32, (2, 3))}, torch.device("cpu"))
    waited = []

    class Event:
        def synchronize(self) -> None:
            waited.append(True)

    first = lane.writable()
    first["a"][...], first["b"][...] = 7, 1.5
    lane.send()
    assert lane.device["a"].tolist() == [7, 7]
    assert lane.device["b"].tolist() == [[1.5] * 3] * 2
    lane._sent[0] = Event()
    assert lane.writable() is not first
    lane.send()
    assert lane.writable() is first
    assert waited == [True]
