"""Driver: the same tokens as generate(), with every step accounted for."""

from __future__ import annotations

import pytest

from octavo import SamplingParams
from octavo.bench.driver import Driver
from octavo.bench.inference import benchmark_inference
from octavo.bench.resident import peak_bytes, reset_peak, resident_bytes
from octavo.bench.sweep import sweep
from octavo.bench.workload import random_prompts
from octavo.errors import InvalidRequestError
from octavo.params import StructuredOutputsParams


def test_tokens_are_those_of_generate(driver: Driver) -> None:
    prompts = random_prompts(3, 9, driver.vocab_size)
    run = driver.run(prompts, 6)
    greedy = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
    outputs = driver.generate(prompts, greedy, use_tqdm=False)
    assert [list(ids) for ids in run.token_ids] == [output.outputs[0].token_ids for output in outputs]


def test_steps_are_split_where_the_last_prompt_ends(driver: Driver) -> None:
    run = driver.run(random_prompts(4, 10, driver.vocab_size), 5)
    assert len(run.prompt) == 1, "forty tokens fit into one step"
    assert [step.tokens for step in run.decode] == [4] * 4
    assert run.prompt_tokens == 40
    assert run.prompt_s == pytest.approx(max(run.first_token_s), abs=1e-3)
    assert run.decode_rate == pytest.approx(16 / run.decode_s)
    assert run.prompt_rate == pytest.approx(40 / run.prompt_s)


def test_early_starters_draw_in_the_prompt_phase() -> None:
    small = Driver("smollm2", max_model_len=128, max_num_seqs=2, num_pages=16, max_num_batched_tokens=16)
    run = small.run(random_prompts(2, 30, small.vocab_size), 4)
    assert len(run.prompt) > 2
    assert [len(ids) for ids in run.token_ids] == [4, 4]
    assert sum(step.tokens for step in run.prompt + run.decode) == 8
    assert run.first_token_s[0] < run.first_token_s[1]


def test_grammars_are_followed(driver: Driver) -> None:
    digits = StructuredOutputsParams(regex="[0-9]{40}")
    run = driver.run(random_prompts(2, 9, driver.vocab_size), 8, structured_outputs=digits)
    texts = [driver.loaded.tokenizer.decode(list(ids)) for ids in run.token_ids]
    assert [len(ids) for ids in run.token_ids] == [8, 8]
    assert all(text.isdigit() for text in texts)


def test_one_token_is_no_decoding(driver: Driver) -> None:
    run = driver.run([[300, 301]], 1)
    assert run.decode == ()
    assert run.decode_rate is None


def test_no_run_finds_its_prompt_in_the_cache(driver: Driver) -> None:
    prompts = random_prompts(1, 100, driver.vocab_size)
    driver.run(prompts, 2)
    before = driver.get_metrics().prefix_hits
    driver.run(prompts, 2)
    assert driver.get_metrics().prefix_hits == before


def test_a_wrong_prompt_leaves_nothing_running(driver: Driver) -> None:
    with pytest.raises(InvalidRequestError, match="not in the vocabulary"):
        driver.run([[1, 2], [10**6]], 2)
    assert not driver.get_metrics().running
    assert not driver.get_metrics().waiting


def test_sweep(driver: Driver) -> None:
    result = sweep(driver, 8, 4, [1, 3], 2)
    assert [row.batch for row in result.batches] == [1, 3]
    assert 0 < result.weights_gb < result.memory_gb
    for row in result.batches:
        assert row.tpot is not None
        assert row.decode_rate == pytest.approx(1e3 * row.batch / row.tpot)
        assert row.latency > row.prefill_ms >= row.ttft > 0


def test_what_could_not_be_measured_is_no_zero(driver: Driver) -> None:
    begun: list[int] = []
    (row,) = sweep(driver, 8, 1, [2], 1, begun.append).batches
    assert (row.decode_rate, row.tpot, begun) == (None, None, [2])
    assert row.latency > 0


class TestBenchmarkInference:
    def test_what_it_counts(self, driver: Driver) -> None:
        prompts = ["The capital of France is", [300, 301, 302], "One, two,"]
        result = benchmark_inference(driver, None, prompts, max_tokens=5, num_runs=2)
        assert (result.requests, result.output_tokens) == (6, 30)
        assert 0 < result.ttft <= result.ttft_p99 <= result.latency_p99
        assert result.tpot is not None
        assert result.tpot_p99 is not None
        assert 0 < result.tpot <= result.tpot_p99
        assert result.latency_p50 <= result.latency_p99
        assert result.memory_gb * 1e9 >= driver.loaded.memory.weights
        # Three at once: the requests' times overlap, so their sum is longer than the run.
        assert result.throughput > 30 / (6 * result.latency_p50 / 1e3)

    def test_a_tokenizer_of_the_callers_own(self, driver: Driver) -> None:
        seen: list[str] = []

        class Words:
            def encode(self, text: str) -> list[int]:
                seen.append(text)
                return [300, 301]

        result = benchmark_inference(driver, Words(), ["a b", [5, 6]], max_tokens=1, num_runs=1, batch_size=1)
        assert seen == ["a b"]
        assert (result.output_tokens, result.tpot, result.tpot_p99) == (2, None, None)

    @pytest.mark.parametrize(
        "wrong", [{"prompts": []}, {"num_runs": 0}, {"num_runs": 1.5}, {"batch_size": 0}]
    )
    def test_nothing_to_run(self, driver: Driver, wrong: dict[str, object]) -> None:
        given = {"prompts": ["x"], "num_runs": 1, **wrong}
        with pytest.raises(InvalidRequestError, match="at least one"):
            benchmark_inference(driver, **given)  # type: ignore[arg-type]

    def test_one_prompt(self, driver: Driver) -> None:
        assert benchmark_inference(driver, None, "Hello world", max_tokens=2, num_runs=1).requests == 1

    def test_no_model_and_no_tokenizer(self, driver: Driver) -> None:
        with pytest.raises(InvalidRequestError, match="a model is a name or a loaded LLM, and not NoneType"):
            benchmark_inference(None, None, ["x"])
        with pytest.raises(InvalidRequestError, match="a tokenizer has encode"):
            benchmark_inference(driver, "zz", ["x"])

    def test_a_name_is_loaded_with_the_options(self) -> None:
        options = {"max_model_len": 64, "max_num_seqs": 1, "num_pages": 8}
        assert benchmark_inference("smollm2", None, ["x"], 2, 1, **options).output_tokens == 2  # type: ignore[arg-type]


def test_the_peak_counts_from_its_reset() -> None:
    reset_peak()
    before = peak_bytes()
    held = bytearray(64 << 20)
    held[::4096] = b"x" * len(held[::4096])
    assert peak_bytes() - before > 60 << 20
    del held
    assert peak_bytes() - resident_bytes() > 50 << 20
    reset_peak()
    assert peak_bytes() - resident_bytes() < 16 << 20
