"""Crowds of the golden file: prompts of every kind that meet in one engine, and all that they were told.

Only octavo's public names are used, so that the same crowds meet in any version of it.
"""

from __future__ import annotations

import hashlib
import random
import struct
from collections.abc import Iterable, Mapping, Sequence
from tempfile import TemporaryDirectory
from typing import Any

from octavo import LLM, BeamSearchParams, RequestOutput, SamplingParams, StructuredOutputsParams
from octavo.errors import OctavoError

COUNT = 500
MAX_LENGTH = 96
WINDOWED = ("window", "mixed")
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "yy"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
SAMPLED: dict[str, Any] = {"temperature": 0.9, "logprobs": 2, "ignore_eos": True}
WISHES: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0, "max_tokens": 16, "logprobs": 2, "ignore_eos": True},
    {"temperature": 0.0, "max_tokens": 12, "logprobs": 5},
    {"seed": 1, "max_tokens": 24, **SAMPLED},
    {"seed": 2, "max_tokens": 12, "n": 3, "top_p": 0.9, **SAMPLED},
    {"seed": 3, "max_tokens": 20, "n": 2, "top_k": 20, "repetition_penalty": 1.2, **SAMPLED},
    {"seed": 4, "max_tokens": 24, "temperature": 1.0, "logprobs": 0},
    {"seed": 5, "max_tokens": 8, "min_p": 0.05, "presence_penalty": 0.5, "prompt_logprobs": 0, **SAMPLED},
    {"seed": 6, "max_tokens": 16, "frequency_penalty": 0.7, "top_k": 5, "top_p": 0.95, **SAMPLED},
    {"seed": 7, "max_tokens": 16, "bad_words": ["the", "an"], **SAMPLED},
    {"seed": 8, "max_tokens": 16, "logit_bias": {40: 5.0, 41: -100.0, 42: 3.0}, **SAMPLED},
    {"seed": 9, "max_tokens": 16, "allowed_token_ids": list(range(30, 90)), **SAMPLED},
    {"seed": 10, "max_tokens": 30, "stop": ["e", "in"], "temperature": 1.2, "logprobs": 1},
    {"seed": 11, "max_tokens": 30, "stop_token_ids": list(range(60, 120)), "min_tokens": 4, "logprobs": 1},
    {"max_tokens": 10, "temperature": 1.0, "logprobs": 3},
    {"seed": 12, "max_tokens": 1, "prompt_logprobs": 4, "temperature": 0.0},
    {"seed": 13, "max_tokens": 16, "n": 2},
    {"seed": 14, "max_tokens": 20, "structured_outputs": {"regex": "(abc|ba|the |[0-9]{2}-){3,6}"}},
    {"seed": 15, "max_tokens": 40, "logprobs": 1, "structured_outputs": {"json": SCHEMA}},
    {"seed": 16, "max_tokens": 20, "n": 2, "structured_outputs": {"choice": ["and then", "or else", "no"]}},
    {"seed": 17, "max_tokens": 10, "truncate_prompt_tokens": 7, **SAMPLED},
)
SEARCHES: tuple[dict[str, Any], ...] = (
    {"beam_width": 3, "max_tokens": 10},
    {"beam_width": 2, "max_tokens": 8, "length_penalty": 0.5, "early_stopping": True},
    {"beam_width": 4, "max_tokens": 6, "ignore_eos": True},
)
Entry = dict[str, Any]


def crowd(seed: int, folders: Mapping[str, str]) -> Entry:
    """One engine, and up to three groups of prompts that it answers one after the other."""
    rng = random.Random(seed)
    kind = rng.choice(("llama", "llama", "llama", "window", "mixed", "mixed", "t5"))
    with TemporaryDirectory() as pages:
        options = engine_options(rng, kind, pages)
        llm = LLM(folders[kind], **options)
        rounds = [one_round(rng, llm, kind) for _ in range(rng.randint(1, 3))]
        del llm
    options.pop("prefix_cache_dir", None)
    return {"model": kind, "options": options, "rounds": rounds}


def engine_options(rng: random.Random, kind: str, pages: str) -> dict[str, Any]:
    """Pages and steps of any size, pools so tight that requests are preempted, one thread or two."""
    page_size, tokens = rng.choice((1, 3, 4, 8, 16, 32)), rng.choice((16, 40, 200))
    if kind == "t5":
        tokens = 200
    least = -(-MAX_LENGTH // page_size) * (2 if kind == "t5" else 1) + 1
    caching = rng.random() < 0.7
    options: dict[str, Any] = {
        "isa": "avx2",
        "backend": "cpu",
        "device": "cpu",
        "dtype": rng.choice(("auto", "float32")),
        "kv_cache_dtype": rng.choice(("auto", "float32", "float16", "int8", "int16", "bfloat16")),
        "threads": rng.choice((1, 2)),
        "seed": rng.randrange(1000),
        "page_size": page_size,
        "num_pages": least + rng.choice((0, 1, least // 2, 4 * least)),
        "max_model_len": MAX_LENGTH,
        "max_num_seqs": rng.randint(4, 8),
        "max_num_batched_tokens": tokens,
        "step_target_ms": 0.0,
        "scheduling_policy": rng.choice(("fcfs", "lpm")),
        "swap_space": rng.choice((0.0, 0.001)),
        "enable_prefix_caching": caching,
    }
    if caching and rng.random() < 0.3:
        options |= {"prefix_cache_dir": pages, "prefix_cache_disk_space": 0.001}
    return options


def one_round(rng: random.Random, llm: LLM, kind: str) -> Entry:
    """What is asked together, and the answers; an error is an answer."""
    prompts = [list(rng.choice(PROMPTS)) for _ in range(rng.randint(1, 7))]
    what = rng.random()
    try:
        if what < 0.1:
            search = rng.choice(SEARCHES)
            found = llm.beam_search([ids(p) for p in prompts[:3]], BeamSearchParams(**search), use_tqdm=False)
            return {"beams": [[beam(s) for s in output.sequences] for output in found]}
        if what < 0.2 and kind != "t5":
            vectors = llm.embed([ids(p) for p in prompts], use_tqdm=False)
            return {"vectors": [digest(vector.outputs.embedding) for vector in vectors]}
        wishes = [wish(rng.randrange(len(WISHES))) for _ in prompts]
        order = [rng.choice((-1, 0, 0, 1)) for _ in prompts]
        outputs = llm.generate([ids(p) for p in prompts], wishes, use_tqdm=False, priority=order)
        return {"answers": [answer(output) for output in outputs]}
    except OctavoError as error:
        return {"error": f"{type(error).__name__}: {error}"}


def ids(prompt: Sequence[int]) -> dict[str, Any]:
    return {"prompt_token_ids": list(prompt)}


def wish(number: int) -> SamplingParams:
    fields = dict(WISHES[number])
    if "structured_outputs" in fields:
        fields["structured_outputs"] = StructuredOutputsParams(**fields["structured_outputs"])
    return SamplingParams(**fields)


def answer(output: RequestOutput) -> Entry:
    """Ids and ends of all completions, and their log-probabilities' bits."""
    told: Entry = {
        "ids": [list(c.token_ids) for c in output.outputs],
        "ends": [f"{c.finish_reason} {c.stop_reason}" for c in output.outputs],
        "text": digest_text(c.text for c in output.outputs),
        "bits": [bits(c.logprobs) for c in output.outputs],
    }
    if output.prompt_logprobs is not None:
        told["prompt bits"] = bits(output.prompt_logprobs)
    return told


def beam(sequence: Any) -> Entry:
    return {
        "ids": list(sequence.tokens),
        "bits": digest([sequence.cum_logprob, sequence.score]) + bits(sequence.logprobs),
        "end": f"{sequence.finish_reason} {sequence.stop_reason}",
    }


def bits(logprobs: Iterable[Mapping[int, Any] | None] | None) -> str:
    """A digest of every id, log-probability (all 64 bits of it) and rank, or "" where none were asked for."""
    if logprobs is None:
        return ""
    summed = hashlib.sha256()
    for position in logprobs:
        for token_id, told in (position or {}).items():
            rank = -1 if told.rank is None else told.rank
            summed.update(struct.pack("<idi", token_id, told.logprob, rank))
        summed.update(b"|")
    return summed.hexdigest()[:12]


def digest(numbers: Iterable[float]) -> str:
    """Of the bits of float64 numbers."""
    packed = b"".join(struct.pack("<d", number) for number in numbers)
    return hashlib.sha256(packed).hexdigest()[:12]


def digest_text(texts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(texts).encode("utf-8", "surrogatepass")).hexdigest()[:12]


def _prompts() -> tuple[tuple[int, ...], ...]:
    """Cut from three books, so that many share a beginning, in and across pages."""
    rng = random.Random(11)
    books = [[rng.randrange(3, 273) for _ in range(64)] for _ in range(3)]
    return tuple(tuple(book[:length]) for book in books for length in (1, 9, 16, 33, 47, 55))


PROMPTS = _prompts()
