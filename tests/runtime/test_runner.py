"""The runner of the core by itself: what a ModelRunner adds changes no plain request."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.assembly import limits_of, states_of
from octavo.engine.core import EngineCore
from octavo.params import SamplingParams
from octavo.runtime.runner import Runner
from octavo.sampling.native import make_sampler
from octavo.sampling.sampling_rows import SamplingRows
from support.tiny_engine import (
    BACKENDS,
    EOS,
    VOCAB_SIZE,
    Answer,
    Answers,
    loaded,
    save_tiny_llama,
    tiny_engine,
)

PROMPTS = ([5, 6, 7], [5, 6, 7, *range(10, 50)], [8], [*range(60, 90)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("tiny"))


def on_the_core(engine: EngineCore, folder: Path, backend: str) -> EngineCore:
    """The same engine on a Runner."""
    config, (made, model) = engine.config, loaded(folder, backend, 1)
    kv = made.kv_cache(model.kv_specs("f32"), config.num_pages, config.page_size)
    samplings = SamplingRows(config.max_num_seqs, VOCAB_SIZE, (EOS,), 1)
    program = made.capture(lambda ops, inputs: model.forward(ops, inputs, kv), limits_of(config))
    engine._executor = Runner(program, kv, states_of(config, 0), samplings, make_sampler(made, VOCAB_SIZE))
    return engine


def answers(engine: EngineCore, **options: float | int) -> list[Answer]:
    """Of two rounds, so that the second finds the first one's prefixes."""
    found = Answers()
    for number in range(2):
        for index, prompt in enumerate(PROMPTS):
            params = SamplingParams(seed=index, max_tokens=12, n=2, logprobs=3, **options)  # type: ignore[arg-type]
            engine.add_request(f"{number}-{index}", prompt, params)
        while engine.has_unfinished():
            found.take(engine.step())
    engine.check_integrity()
    return [found.of(f"{n}-{i}", k) for n in range(2) for i in range(len(PROMPTS)) for k in range(2)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_plain_requests_are_answered_alike(folder: Path, backend: str, temperature: float) -> None:
    few = {"num_pages": 24, "max_num_batched_tokens": 16}
    expected = answers(tiny_engine(folder, backend, **few), temperature=temperature)
    core = on_the_core(tiny_engine(folder, backend, **few), folder, backend)
    assert answers(core, temperature=temperature) == expected
    assert len({tuple(ids) for ids, *_ in expected}) >= len(PROMPTS)


def test_a_penalty_is_no_appendix(folder: Path) -> None:
    core = on_the_core(tiny_engine(folder, "reference"), folder, "reference")
    expected = answers(tiny_engine(folder, "reference"), repetition_penalty=1.5, top_p=0.9)
    assert answers(core, repetition_penalty=1.5, top_p=0.9) == expected
