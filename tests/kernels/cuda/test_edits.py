"""Biases, bans and penalties on the device, by hand and to the bit; mistakes in their kernel die."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.sampling import SamplingBatch, TokenLists
from octavo.sampling.device import DrawMaker
from octavo.sampling.sampler import Sampler
from octavo.sampling.sampling_batch import ROW
from support.cuda import interpreted

F = np.float32
VOCAB = 700
RAW = np.random.default_rng(0).standard_normal((4, VOCAB)).astype(F)
"""Logits of both signs."""
SEEN = [
    (np.array([3, 9, 600, 11], np.int32), np.array([0, 1, 2, 5], F)),  # of the prompt alone; once; more often
    (np.array([], np.int32), np.array([], F)),
    (np.arange(VOCAB, dtype=np.int32)[::-1], np.tile(np.array([0, 1], F), VOCAB // 2)),  # more than a block
    (np.array([5], np.int32), np.array([1], F)),
]
LISTED = [*SEEN[:3], (np.array([5, 4], np.int32), np.array([-1.5, 2.5], F))]
PENALTIES = {
    "presence": {"presence_penalty": [0.5, 0.5, -0.25, 2.0]},
    "frequency": {"frequency_penalty": [0.5, 0.5, -0.25, 2.0]},
    "repetition": {"repetition_penalty": [1.5, 1.5, 0.75, 3.0]},
    "all": {
        "presence_penalty": [0.5, 0, 0.25, -2],
        "frequency_penalty": [-0.5, 1, 0.125, 1],
        "repetition_penalty": [1.25, 2, 0.5, 1],
    },
}


def params_of(**given: Any) -> np.ndarray:
    params = np.zeros(4, ROW)
    params["typical_p"] = 1
    params["top_p"], params["repetition_penalty"], params["num_logprobs"] = 1, 1, -1
    for name, values in given.items():
        params[name] = values
    return params


def batch_of(params: np.ndarray, **lists: Any) -> SamplingBatch:
    none = TokenLists.none(4)
    return SamplingBatch(
        params, np.full(4, 7, np.int64), **{"bias": none, "banned": none, "seen": none, **lists}
    )


def on_device(batch: SamplingBatch) -> tuple[Any, Any, Any]:
    """A sampler, what the rows ask for, and where it lies on the device."""
    import torch

    interpreted()
    from octavo.kernels.cuda.sample import DeviceSampler, Slate

    cpu, draws = torch.device("cpu"), DrawMaker().draws(batch)
    sampler, slate = DeviceSampler(VOCAB, len(batch), cpu), Slate(len(batch), cpu)
    slate.write(draws, np.arange(len(batch)))
    return sampler, draws, slate


def edited(batch: SamplingBatch) -> np.ndarray:
    import torch

    sampler, draws, slate = on_device(batch)
    with np.errstate(all="ignore"):  # of the interpreter's NumPy
        found: np.ndarray = sampler.edit(torch.from_numpy(RAW.copy()), draws.edits, slate).numpy()
    return found


def by_hand(given: dict[str, Any]) -> np.ndarray:
    """Token after token: a seen one is divided or multiplied, and pays for each time and for being there."""
    params, want = params_of(**given), RAW.copy()
    for row, (tokens, counts) in enumerate(SEEN):
        repetition, frequency, presence = (
            F(params[f"{kind}_penalty"][row]) for kind in ("repetition", "frequency", "presence")
        )
        for token, count in zip(tokens, counts, strict=True):
            value = want[row, token]
            value = value / repetition if value > 0 else value * repetition
            value = value - frequency * count
            if count >= 1:
                value = value - presence
            want[row, token] = value
    return want


def check_penalties(kind: str) -> None:
    given = PENALTIES[kind]
    found = edited(batch_of(params_of(**given), seen=TokenLists.of(SEEN)))
    np.testing.assert_array_equal(found, by_hand(given))


def check_bias_and_bans() -> None:
    want = RAW.copy()
    for row, (tokens, values) in enumerate(LISTED):
        want[row, tokens] += values
    np.testing.assert_array_equal(edited(batch_of(params_of(), bias=TokenLists.of(LISTED))), want)
    want = RAW.copy()
    for row, (tokens, _) in enumerate(LISTED[:2]):
        want[row, tokens] = -np.inf
    some = TokenLists.of([*LISTED[:2], LISTED[1], LISTED[1]])
    np.testing.assert_array_equal(edited(batch_of(params_of(), banned=some)), want)


def check_all() -> None:
    for kind in PENALTIES:
        check_penalties(kind)
    check_bias_and_bans()


@pytest.mark.parametrize("kind", PENALTIES)
def test_penalties(kind: str) -> None:
    assert (by_hand(PENALTIES[kind]) != RAW).sum() > 300
    check_penalties(kind)


def test_bias_and_bans() -> None:
    check_bias_and_bans()


def test_what_was_said_once_loses_its_place() -> None:
    """A greedy row: the presence penalty is more than the two logits differ by."""
    logits = np.zeros((4, VOCAB), F)
    logits[:, 40], logits[:, 41] = 2.0, 1.0
    once = (np.array([40], np.int32), np.array([1], F))
    batch = batch_of(params_of(presence_penalty=[1.5, 0.5, 0, 1.5]), seen=TokenLists.of([once] * 4))
    import torch

    sampler, draws, slate = on_device(batch)
    tokens = sampler.draw(torch.from_numpy(logits), draws, slate).tolist()
    assert tokens == [41, 40, 40, 41]
    assert [each.token_id for each in Sampler().sample(logits, batch)] == tokens


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("tl.where(count > 0, tl.load(presence", "tl.where(count > 1, tl.load(presence"),
        ("tl.where(count > 0, tl.load(presence", "tl.where(count >= 0, tl.load(presence"),
        ("tl.load(presence + row), 0.0)", "tl.load(presence + row) * count, 0.0)"),
        ("tl.load(frequency + row) * count", "tl.load(frequency + row)"),
        ("v - tl.load(frequency + row)", "v + tl.load(frequency + row)"),
        ("tl.where(v > 0, tl.div_rn(", "tl.where(v < 0, tl.div_rn("),
        ("+ r), v * r)", "+ r), v)"),
        ("tl.load(repetition + row)", "tl.load(repetition)"),
        ("range(begin, end, BLOCK)", "range(begin, begin + 1, BLOCK)"),
        ("v = v + count", "v = count"),
        ('float("-inf"), tl.float32)\n        else', "-1e9, tl.float32)\n        else"),
    ],
)
def test_mutants_die(right: str, wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a file of its own: Triton reads a kernel's source there."""
    interpreted()
    from octavo.kernels.cuda import edits, sample

    source = Path(edits.__file__).read_text()
    assert source.count(right) == 1
    (tmp_path / "mutant.py").write_text(source.replace(right, wrong))
    spec = importlib.util.spec_from_file_location("mutant", tmp_path / "mutant.py")
    assert spec is not None
    assert spec.loader is not None
    mutant = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(mutant)
    monkeypatch.setattr(sample, "edits_kernels", mutant)
    with pytest.raises(AssertionError):
        check_all()
