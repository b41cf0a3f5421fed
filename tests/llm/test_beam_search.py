"""Beam search against transformers: the same ids in the same order, the same scores."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo import LLM, BeamSearchParams
from octavo.beam_search import sampling_params
from octavo.errors import InvalidRequestError
from octavo.sampling.beam import normalized
from support.tiny_engine import BACKENDS, EOS, VOCAB_SIZE, run, save_tiny_llama, tiny_engine

TOLERANCE = {"abs": 2e-5, "rel": 2e-6}
"""Of a score: transformers adds two dozen float32, we add float64."""


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("tiny-llama"))


@cache
def transformers_model(folder: Path) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")


def their_beams(
    model: Any, prompt: list[int], wanted: BeamSearchParams, **limits: Any
) -> list[tuple[list[int], float]]:
    """transformers' beams, best first: generated ids and score. limits: more of generate()'s arguments."""
    import torch

    eos = None if wanted.ignore_eos else EOS
    with torch.no_grad():
        found = model.generate(
            torch.tensor([prompt]),
            num_beams=wanted.beam_width,
            num_return_sequences=wanted.beam_width,
            max_new_tokens=wanted.max_tokens,
            length_penalty=wanted.length_penalty,
            early_stopping=wanted.early_stopping,
            do_sample=False,
            eos_token_id=eos,
            pad_token_id=VOCAB_SIZE - 1 if eos is None else eos,
            output_scores=True,
            return_dict_in_generate=True,
            **limits,
        )
    beams = []
    for ids, score in zip(found.sequences.tolist(), found.sequences_scores.tolist(), strict=True):
        ids = ids[len(prompt) :]
        if eos is not None and eos in ids:
            ids = ids[: ids.index(eos) + 1]
        beams.append((ids, score))
    return beams


def same(ours: list[tuple[list[int], float]], theirs: list[tuple[list[int], float]]) -> None:
    """Ids equal but where two scores are closer than the arithmetic: then as sets."""
    scores = [score for _, score in theirs]
    assert [score for _, score in ours] == pytest.approx(scores, **TOLERANCE)
    if all(a != pytest.approx(b, **TOLERANCE) for a, b in pairwise(scores)):
        assert [ids for ids, _ in ours] == [ids for ids, _ in theirs]
    else:
        assert sorted(ids for ids, _ in ours) == sorted(ids for ids, _ in theirs)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("early_stopping", [True, False, "never"])
@pytest.mark.parametrize("beam_width", [2, 3, 4, 5])
def test_tiny_models_find_what_transformers_finds(
    tiny_llama: Path, backend: str, beam_width: int, early_stopping: bool | str
) -> None:
    rng = np.random.default_rng(beam_width)
    engine = tiny_engine(tiny_llama, backend)
    ended = 0
    for length_penalty in (1.0, 0.0, -1.0, 2.0):
        prompt = [int(i) for i in rng.integers(3, VOCAB_SIZE, rng.integers(1, 40))]
        wanted = BeamSearchParams(
            beam_width, max_tokens=24, length_penalty=length_penalty, early_stopping=early_stopping
        )
        found = run(engine, prompt, sampling_params(wanted))
        ours = [(ids, normalized(sum(logprobs), len(ids), length_penalty)) for ids, logprobs, _ in found]
        same(ours, their_beams(transformers_model(tiny_llama), prompt, wanted))
        ended += sum(reason == "stop" for _, _, reason in found)
        assert all((reason == "stop") == (ids[-1] == EOS) for ids, _, reason in found)
    assert ended > 0


@pytest.mark.slow
def test_beams_of_smollm2_are_those_of_transformers(
    smollm2_llm: Callable[..., LLM], fastest: str, smollm2_path: Path
) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    llm = smollm2_llm(backend=fastest, max_model_len=512, max_num_seqs=8, dtype="float32")
    tokenizer = llm.get_tokenizer()
    model: Any = AutoModelForCausalLM.from_pretrained(
        str(smollm2_path.parent), gguf_file=smollm2_path.name, dtype=torch.float32
    )
    model.generation_config.eos_token_id = None
    for width, text in ((2, "The capital of France is"), (4, "Once upon a time, in a small village")):
        wanted = BeamSearchParams(width, max_tokens=12, ignore_eos=True)
        prompt = tokenizer.encode(text)
        (output,) = llm.beam_search([text], wanted)
        ours = [(s.tokens[len(prompt) :], s.score) for s in output.sequences]
        theirs = their_beams(model, prompt, wanted)
        assert [ids for ids, _ in ours] == [ids for ids, _ in theirs]
        assert [score for _, score in ours] == pytest.approx([score for _, score in theirs], abs=1e-3)
        assert output.sequences[0].tokens[: len(prompt)] == prompt
        assert output.sequences[0].text == tokenizer.decode(ours[0][0])
        assert output.sequences[0].cum_logprob == pytest.approx(ours[0][1] * 12)


def test_beams_share_pages_and_give_all_back(tiny_llama: Path) -> None:
    engine = tiny_engine(tiny_llama, BACKENDS[0], page_size=4)
    wanted = BeamSearchParams(4, max_tokens=32, ignore_eos=True)
    engine.add_request("beams", list(range(3, 61)), sampling_params(wanted))
    peak = 0
    while engine.has_unfinished():
        engine.step()
        engine.check_integrity()
        tables = [request.kv.page_table for request in engine.scheduler.running]
        peak = max(peak, len({page for table in tables for page in table}))
    assert 58 // 4 < peak < 4 * ((58 + 32) // 4) * 0.7  # at least 30 % less than without sharing
    assert engine.scheduler.kv.num_available == engine.config.num_pages


@pytest.mark.parametrize(
    ("options", "wanted", "message"),
    [
        ({"max_num_seqs": 3}, BeamSearchParams(4, 8), "beam_width 4 needs 4 sequences.*max_num_seqs is 3"),
        (
            {"num_pages": 12},
            BeamSearchParams(4, 100),
            "4 beams of up to 110 tokens need 28 pages of 16 tokens, the pool has 12",
        ),
    ],
)
def test_what_cannot_be_had_is_refused_with_what_it_needs(
    tiny_llama: Path, options: dict[str, int], wanted: BeamSearchParams, message: str
) -> None:
    engine = tiny_engine(tiny_llama, BACKENDS[0], **options)
    with pytest.raises(InvalidRequestError, match=message):
        engine.add_request("beams", [5] * 10, sampling_params(wanted))
    assert not engine.has_unfinished()


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"beam_width": 0}, "beam_width"),
        ({"beam_width": 11}, "beam_width"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": 0.7}, "temperature"),
        ({"early_stopping": "sometimes"}, "early_stopping"),
        ({"length_penalty": float("nan")}, "length_penalty"),
    ],
)
def test_bad_params_are_refused_by_name(change: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        BeamSearchParams(**{"beam_width": 2, "max_tokens": 4, **change})
    assert caught.value.param == param
