"""Draft models as users name them: what is refused, what is planned, and whose pages on disk are read."""

from __future__ import annotations

import json
import os
from pathlib import Path
from shutil import copyfile, copytree
from typing import Any

import pytest

from octavo import LLM, SamplingParams
from octavo.assembly.loading import load
from octavo.assembly.planning import outline, plan
from octavo.engine_args import EngineArgs
from octavo.errors import InvalidRequestError, OctavoError
from octavo.kernels.select import native_available
from support.modelled import first_layer_of
from support.seq2seq import make_folder
from support.tiny_engine import VOCAB_SIZE, save_tiny_llama, save_words

pytestmark = pytest.mark.skipif(not native_available(), reason="plans and exact answers are the native ones")
OPTIONS: dict[str, Any] = {"max_model_len": 128, "max_num_seqs": 4, "num_pages": 64, "threads": 1}
PARAMS = SamplingParams(temperature=0.7, seed=3, max_tokens=20, ignore_eos=True)
PROMPT = list(range(3, 70))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_words(save_tiny_llama(tmp_path_factory.mktemp("target")))


@pytest.fixture(scope="module")
def drafter(folder: Path) -> Path:
    return save_words(first_layer_of(folder))


def config_of(drafter: Path | str, **more: Any) -> dict[str, Any]:
    return {
        "method": "draft_model",
        "model": str(drafter),
        "num_speculative_tokens": 4,
        "policy": "fixed",
        **more,
    }


def test_older_names(folder: Path, drafter: Path) -> None:
    llm = LLM(str(folder), speculative_model=str(drafter), num_speculative_tokens=3, **OPTIONS)
    plain = LLM(str(folder), **OPTIONS)
    answers = [one.generate(PROMPT, PARAMS, use_tqdm=False)[0].outputs[0] for one in (llm, plain)]
    assert answers[0].token_ids == answers[1].token_ids
    assert "draft model" in llm._loaded.phases
    assert llm._loaded.facts["drafts"] == "draft"
    assert "drafts" not in plain._loaded.facts


def test_it_may_know_other_numbers_of_padding_words(folder: Path, drafter: Path, tmp_path: Path) -> None:
    """Its vocabulary is wider than the tokenizer; drafts end before a word that the target lacks."""
    from safetensors.numpy import load_file, save_file

    wide = Path(copytree(drafter, tmp_path / "wide"))
    config = json.loads((wide / "config.json").read_text()) | {"vocab_size": VOCAB_SIZE + 32}
    (wide / "config.json").write_text(json.dumps(config))
    tensors = load_file(wide / "model.safetensors")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        tensors[name] = tensors[name].repeat(2, axis=0)[: VOCAB_SIZE + 32].copy()
    save_file(tensors, wide / "model.safetensors")
    params = PARAMS.replace(presence_penalty=0.5, allowed_token_ids=range(3, 80))
    llm, plain = LLM(str(folder), speculative_config=config_of(wide), **OPTIONS), LLM(str(folder), **OPTIONS)
    answers = [one.generate(PROMPT, params, use_tqdm=False)[0].outputs[0] for one in (llm, plain)]
    assert answers[0].token_ids == answers[1].token_ids
    assert llm.get_metrics().drafts.drafts > 3


# --- what is refused ---------------------------------------------------------------------------------------


def other_words(folder: Path) -> None:
    text = (folder / "tokenizer.json").read_text()
    (folder / "tokenizer.json").write_text(text.replace('"w7"', '"seven"'))


def one_word_less(folder: Path) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    del tokenizer["model"]["vocab"][f"w{VOCAB_SIZE - 1}"]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


def another_special_word(folder: Path) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens(["w5"])
    tokenizer.save(str(folder / "tokenizer.json"))


def no_words(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


def no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def half_of_the_weights(folder: Path) -> None:
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[: len(data) // 2])


def unknown(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text()) | {"model_type": "abacus"}
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (other_words, "has another tokenizer: token 7 is b'seven' to it, not b'w7'"),
        (one_word_less, "has another tokenizer: of 95 tokens, not 96"),
        (another_special_word, "has another tokenizer: b'w5' is a special token to one of both alone"),
        (no_words, "tokenizer"),
        (no_weights, "safetensors"),
        (half_of_the_weights, "model.safetensors"),
        (unknown, "architecture 'abacus' is not supported"),
    ],
)
def test_a_model_that_cannot_draft_is_said(
    folder: Path, drafter: Path, tmp_path: Path, spoil: Any, message: str
) -> None:
    spoilt = Path(copytree(drafter, tmp_path / "spoilt"))
    spoil(spoilt)
    with pytest.raises(InvalidRequestError) as caught:
        LLM(str(folder), speculative_config=config_of(spoilt), **OPTIONS)
    said = str(caught.value)
    assert said.startswith(f"speculative_config: model {str(spoilt)!r}")
    assert message in said
    assert "\n" not in said
    assert caught.value.param == "speculative_config"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"method": "draft_model", "model": "no-such-model"}, "speculative_config: model 'no-such-model'"),
        ({"method": "self", "layers": 2}, "layers must be below the 2 that the model has, not 2"),
        ({"method": "self", "layers": 5}, "layers must be below the 2 that the model has, not 5"),
    ],
)
def test_other_mistakes(folder: Path, config: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        LLM(str(folder), speculative_config=config, **OPTIONS)
    with pytest.raises(OctavoError, match=message):
        plan(EngineArgs(str(folder), speculative_config=config, device="cpu", **OPTIONS).config)


def test_a_name_that_is_none_is_said_before_weights_are_read(folder: Path) -> None:
    phases = list[str]()
    config = EngineArgs(str(folder), speculative_config=config_of("no-such-model"), **OPTIONS).config
    with pytest.raises(InvalidRequestError, match="no-such-model"):
        load(config, lambda phase, seconds: phases.append(phase))
    assert phases == []


def test_a_drafter_with_an_encoder(folder: Path, tmp_path: Path) -> None:
    encoder = save_words(make_folder("t5", tmp_path))
    with pytest.raises(InvalidRequestError, match=r"has an encoder|another tokenizer"):
        LLM(str(folder), speculative_config=config_of(encoder), **OPTIONS)


@pytest.mark.parametrize("options", [{"max_model_len": 20}, {"max_num_batched_tokens": 4}, {"num_pages": 3}])
def test_more_tokens_than_there_is_room_for(folder: Path, drafter: Path, options: dict[str, Any]) -> None:
    """Context, budget or pages: drafts get what is left, and answers are the same."""
    given = {**OPTIONS, "max_model_len": 48, "page_size": 16, **options}
    config = config_of(drafter, num_speculative_tokens=64)
    params = PARAMS.replace(max_tokens=12)
    answers = [
        LLM(str(folder), **given, **more).generate([5, 6, 7], params, use_tqdm=False)[0].outputs[0].token_ids
        for more in ({}, {"speculative_config": config})
    ]
    assert answers[0] == answers[1]


# --- memory and disk ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("page_size", [1, 16])
def test_the_plan_counts_both_models(folder: Path, drafter: Path, page_size: int) -> None:
    given: dict[str, Any] = {**OPTIONS, "page_size": page_size, "num_pages": 1024 // page_size}
    given |= {"speculative_config": config_of(drafter), "device": "cpu"}
    llm, planned = LLM(str(folder), **given), plan(EngineArgs(str(folder), **given).config)
    loaded: Any = llm._loaded
    drafts, states = loaded.speculation.drafts, loaded.runner.state_bytes
    allocated = loaded.runner._kv.nbytes + drafts.nbytes + states
    assert planned.budget.kv_cache + planned.rows == pytest.approx(allocated, rel=0.03)
    assert planned.budget.weights == loaded.memory.weights
    assert planned.activations == loaded.runner.activation_bytes > drafts.activation_bytes > 0


def test_a_plan_sees_that_the_drafters_file_is_cut(smollm2_path: Path, tmp_path: Path) -> None:
    cut, size = Path(copyfile(smollm2_path, tmp_path / "cut.gguf")), smollm2_path.stat().st_size
    os.truncate(cut, size - 1000)
    config = {"speculative_config": config_of(cut), "device": "cpu", **OPTIONS}
    assert plan(EngineArgs(str(smollm2_path), **config).config).cut == (size - 1000, size)


def test_the_outline_counts_both_models(folder: Path, drafter: Path) -> None:
    """Of any machine: octavo plan --machine."""
    config = {"speculative_config": config_of(drafter)}
    both, alone = outline(EngineArgs(str(folder), **config).config), outline(EngineArgs(str(folder)).config)
    of_drafter = outline(EngineArgs(str(drafter)).config)
    assert both.weights == alone.weights + of_drafter.weights
    assert both.bytes_per_token == alone.bytes_per_token + of_drafter.bytes_per_token
    assert both.parameters == alone.parameters


def tokens_from_disk(folder: Path, pages: Path, config: dict[str, Any] | None) -> int:
    """Of one engine's life: what it reads of a prompt that others may have left there, and then leaves."""
    given = {**OPTIONS, "prefix_cache_dir": str(pages), "speculative_config": config}
    llm = LLM(str(folder), **given)
    assert llm.generate(PROMPT, PARAMS, use_tqdm=False)[0].outputs[0].token_ids
    found = llm.get_metrics().external_prefix_hits
    llm.shutdown()
    return int(found)


def test_pages_on_disk_are_read_by_the_same_pair_alone(folder: Path, drafter: Path, tmp_path: Path) -> None:
    pages = tmp_path / "pages"
    own, other = config_of(drafter), config_of(folder)
    assert tokens_from_disk(folder, pages, own) == 0
    assert tokens_from_disk(folder, pages, own) > 32
    assert tokens_from_disk(folder, pages, other) == 0  # another drafter: the file is made anew
    assert tokens_from_disk(folder, pages, None) == 0


def test_pages_on_disk_are_shared_with_first_layers_and_tables(folder: Path, tmp_path: Path) -> None:
    pages = tmp_path / "pages"
    assert tokens_from_disk(folder, pages, None) == 0
    assert tokens_from_disk(folder, pages, {"method": "self", "layers": 1, "policy": "fixed"}) > 32
    assert tokens_from_disk(folder, pages, {"method": "ngram"}) > 32
