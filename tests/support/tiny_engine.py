"""A tiny random Llama, as transformers saves it, and whole engines over it: milliseconds a request."""

from __future__ import annotations

import functools
import json
import random
from pathlib import Path
from typing import Any

from octavo.assembly import limits_of, states_of
from octavo.assembly.drafting import Drafter
from octavo.assembly.pages import Cache
from octavo.checkpoints import open_checkpoint
from octavo.config import SchedulerConfig
from octavo.engine.admission import Admission
from octavo.engine.beams import BeamSearches
from octavo.engine.core import EngineCore
from octavo.engine.disk_prefixes import manager_of
from octavo.engine.drafts import Drafts
from octavo.engine.request import RequestUpdate
from octavo.engine.retries import StepRetries
from octavo.engine.scheduler import Scheduler
from octavo.kernels.ops import Backend
from octavo.kernels.reference import ReferenceBackend
from octavo.kernels.select import native_available
from octavo.kernels.split_kv import SplitKVCache
from octavo.models.load import load_model
from octavo.models.registry import Model
from octavo.params import SampledToken, SamplingParams
from octavo.runtime.model_runner import ModelRunner
from octavo.runtime.overlap import OverlappedRunner
from octavo.runtime.page_file import PrefixFile
from octavo.runtime.page_moves import PageMoves, page_bytes
from octavo.runtime.speculation import Speculation, speculating
from octavo.sampling.beam import BeamSearch
from octavo.spec.base import Proposer
from octavo.spec.policy import Fixed
from support.late_device import LateBackend, LateKV, LateSteps, Queue
from support.modelled import Modelled, modelled_speculation

VOCAB_SIZE, EOS, MAX_MODEL_LEN = 96, 2, 160
BACKENDS = ("cpu", "reference") if native_available() else ("reference",)
Answer = tuple[list[int], list[float], str | None]


def save_tiny_llama(folder: Path, vocab_size: int = VOCAB_SIZE, hidden: int = 32, inner: int = 48) -> Path:
    """Random weights, wide enough that distributions are neither flat nor certain."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    torch.set_num_threads(1)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=MAX_MODEL_LEN,
        bos_token_id=1,
        eos_token_id=EOS,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                torch.nn.init.normal_(parameter, std=1.5 * parameter.shape[-1] ** -0.5)
    model.save_pretrained(folder)
    return folder


def save_tiny_mistral(folder: Path, window: int) -> Path:
    """The same with a sliding window in every layer."""
    save_tiny_llama(folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": window}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def save_tiny_mixed(folder: Path, window: int) -> Path:
    """The same with a sliding window in the first of its two layers."""
    save_tiny_mistral(folder, window)
    config = json.loads((folder / "config.json").read_text())
    config["layer_types"] = ["sliding_attention", "full_attention"]
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def save_words(folder: Path, count: int = VOCAB_SIZE, reads: bool = False, shift: int = 0) -> Path:
    """A tokenizer for these models: "w0", "w1" and so on.

    Args:
        reads: "w5 w6" as two words, 5 and 6, and not as one that it does not know.
        shift: added to the number of each word, so that tokenizers differ.
    """
    from tokenizers import Tokenizer
    from tokenizers.decoders import Metaspace
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit

    words = {f"w{(i + shift) % count}": i for i in range(count)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="w0"))
    if reads:
        tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.decoder = Metaspace()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@functools.cache
def loaded(
    folder: Path, backend: str, threads: int, quantization: str | None = None
) -> tuple[Backend, Model]:
    made: Backend
    if backend == "cpu":
        from octavo.kernels.cpu import CpuBackend

        made = CpuBackend(threads=threads)
    else:
        made = ReferenceBackend()
    return made, load_model(open_checkpoint(folder), made, quantization=quantization)[0]


def tiny_engine(
    folder: Path,
    backend: str = "cpu",
    threads: int = 1,
    kv_dtype: str = "f32",
    depth: int = 1,
    late: Queue | None = None,
    pages_folder: Path | None = None,
    speculate: tuple[Proposer | Modelled, int] | None = None,
    rejecting: bool = False,
    quantization: str | None = None,
    **options: Any,
) -> EngineCore:
    """An EngineCore whose runner computes the tiny model; options are SchedulerConfig's.

    Args:
        late: the engine runs on a device that does nothing before somebody waits (late_device.py).
        pages_folder: where the prefix cache outlives the engine, 1 MiB; None: it does not.
        speculate: who drafts, or which model does, and how many tokens of a row in a step at most.
        rejecting: drafts are put to the p/q test.
        quantization: what the projections' numbers become.
    """
    wanted: dict[str, Any] = {"page_size": 16, "max_model_len": MAX_MODEL_LEN, "max_num_seqs": 8, **options}
    wanted.setdefault("num_pages", 8 * -(-wanted["max_model_len"] // wanted["page_size"]))
    wanted.setdefault("max_sampled_rows", wanted["max_num_seqs"])
    config = SchedulerConfig(**wanted)
    made, model = loaded(folder, backend, threads, quantization)
    drafter = Drafter()
    if speculate is not None and isinstance(speculate[0], Modelled):
        drafter = speculate[0].drafter(made, model, kv_dtype, speculate[1], config.page_size)
    specs, loose = [*model.kv_specs(kv_dtype), *drafter.specs], drafter.pages(config.max_num_seqs)
    spare, first_loose = config.num_pages + config.num_swap_pages, config.num_pages
    first_block = config.num_pages
    pages: Any
    if config.sliding_window is None:
        pages = made.kv_cache(specs, spare + 1 + loose, config.page_size)
        first_loose = spare + 1
    else:
        first_block += loose
        sliding = config.num_sliding_pages + loose
        counts = first_block, sliding, config.page_size, config.num_swap_pages
        pages = SplitKVCache(made, specs, *counts)
        spare = pages.spare
    limits, states = limits_of(config), states_of(config, spare)
    page_file = None
    if pages_folder is not None:
        by = repr(speculate and speculate[0]) if drafter.specs else ""
        made_by = {"backend": backend, "kv": kv_dtype, "page_size": config.page_size, "drafter": by}
        size = page_bytes(pages)
        assert size is not None
        page_file = PrefixFile.open(str(pages_folder), made_by, size, 2**20)
    plain, overlapped = ModelRunner, OverlappedRunner
    if speculate is not None and not isinstance(speculate[0], Modelled):
        proposer, most = speculate
        plain, overlapped = speculating(Speculation(proposer, Fixed(), most, VOCAB_SIZE, rejecting))
    elif drafter.drafting is not None:
        device: Any = made if late is None else LateBackend(made, late)
        cache = Cache(pages, spare, first_loose, first_block)
        plain, overlapped = speculating(modelled_speculation(drafter, config, model, device, cache))
    if late is None:
        runner = plain(model, made, PageMoves(pages, first_block, page_file), limits, states, (EOS,))
    else:
        program = made.capture(lambda ops, inputs: model.forward(ops, inputs, pages), limits)
        steps = LateSteps(program, VOCAB_SIZE, config.max_num_seqs, late)
        kv: Any = LateKV(pages, late)
        if isinstance(pages, SplitKVCache):
            pages.whole, pages.sliding = LateKV(pages.whole, late), LateKV(pages.sliding, late)  # type: ignore[assignment]
            kv = pages
        behind: Any = LateBackend(made, late)
        runner = overlapped(model, behind, PageMoves(kv, first_block), limits, states, (EOS,), steps=steps)
    core = EngineCore(
        Admission(config, frozenset({EOS}), VOCAB_SIZE, BeamSearches(BeamSearch)),
        runner,
        rng=random.Random(0),
        steps_in_flight=depth,
        scheduler=Scheduler(config, manager_of(config, page_file), Drafts()),
    )
    core.recovery = StepRetries(core, runner)
    return core


class Answers:
    """Collects what an engine says, by (request id, index): ids, logprobs, why it ended."""

    def __init__(self) -> None:
        self.tokens: dict[tuple[str, int], list[SampledToken]] = {}
        self.reasons: dict[tuple[str, int], str] = {}

    def take(self, updates: list[RequestUpdate]) -> None:
        for update in updates:
            key = update.request_id, update.index
            self.tokens.setdefault(key, []).extend(update.tokens)
            if update.finish_reason is not None:
                self.reasons[key] = update.finish_reason

    def of(self, name: str, index: int = 0) -> Answer:
        drawn = self.tokens[name, index]
        return (
            [token.token_id for token in drawn],
            [token.logprob for token in drawn if token.logprob is not None],
            self.reasons.get((name, index)),
        )


def run(core: EngineCore, prompt: list[int], params: SamplingParams) -> list[Answer]:
    """The n completions of one prompt, alone in the engine."""
    answers = Answers()
    core.add_request("alone", prompt, params)
    while core.has_unfinished():
        answers.take(core.step())
    core.check_integrity()
    return [answers.of("alone", index) for index in range(params.n)]
