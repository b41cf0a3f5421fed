"""llama-server."""

from __future__ import annotations

from octavo.cli._engines import Mapped, NoEffect, Refused
from octavo.errors import UnsupportedError

_CACHE_TYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "q8_0": "int8"}


def _cache_type(name: str) -> str:
    """
    Raises:
        UnsupportedError: pages are of no such type.
    """
    if name not in _CACHE_TYPES:
        said = f"a KV cache of {name!r} is not supported: {', '.join(_CACHE_TYPES)} are"
        raise UnsupportedError(said, "kv_cache_dtype")
    return _CACHE_TYPES[name]


NAME = "llama.cpp"
LINES = (
    "-m smollm2 --port 8080",
    "-m smollm2 -c 4096 -t 2 -ngl 99 -np 4 --host 127.0.0.1",
    "-m smollm2 --ctx-size 2048 --threads 2 -fa on -b 512 --jinja --no-mmap --api-key k",
)
SAME = (
    "-m --model -c --ctx-size -t --threads --host --port --api-key --api-key-file --chat-template --device "
    "--seed"
)
NOTES = {
    "-c": "of each sequence: llama.cpp divides it by -np; here sequences share pages. 0: the model's own",
    "--api-key": "one key: for several give it several times",
    "--chat-template": "a template in Jinja or its file, not the name of one",
    "--device": "`cuda`, `cuda:0` or `cpu`",
}
_DEVICE = "a model is on one device as a whole: --device"
_ALWAYS = "it always does"
FLAGS = {
    "-np --parallel": Mapped("--max-num-seqs"),
    "-b --batch-size": Mapped("--max-num-batched-tokens"),
    "-s": Mapped("--seed"),
    "-a --alias": Mapped("--served-model-name"),
    "-hf -hfr --hf-repo": Mapped("--model", note="a hub id; which file of it is not said behind a colon"),
    "--chat-template-file": Mapped("--chat-template"),
    "--ssl-key-file": Mapped("--ssl-keyfile"),
    "--ssl-cert-file": Mapped("--ssl-certfile"),
    "--api-prefix": Mapped("--root-path"),
    "-to --timeout": Mapped("--write-timeout"),
    "-ngl --n-gpu-layers --gpu-layers": NoEffect(_DEVICE),
    "-ub --ubatch-size": NoEffect("a step is computed at once"),
    "-tb --threads-batch": NoEffect("prompts and answers share steps: --threads"),
    "-fa --flash-attn": NoEffect("attention is never written out", takes=None),
    "-cb --cont-batching --jinja --metrics --embedding --embeddings": NoEffect(_ALWAYS, takes=False),
    "--mmap --no-mmap": NoEffect("files are read as the system caches them", takes=False),
    "--threads-http": NoEffect("one loop serves all connections"),
    "--log-disable": NoEffect("requests are logged with --access-log alone", takes=False),
    "--no-webui --no-slots": NoEffect("there is none", takes=False),
    "--offline": Refused("set the variable HF_HUB_OFFLINE", takes=False),
    "--cache-prompt": NoEffect(_ALWAYS, takes=False),
    "--no-cache-prompt": Mapped("--no-enable-prefix-caching", bare=True),
    "--reasoning-format": NoEffect("reasoning comes in reasoning_content: --reasoning-parser"),
    "-ctk --cache-type-k -ctv --cache-type-v": Mapped(
        "--kv-cache-dtype",
        made=_cache_type,
        note="of keys and values alike: `f32`, `f16`, `bf16`, and `q8_0`, which is int8",
    ),
    "-n --predict --n-predict --temp --temperature --top-k --top-p --min-p --repeat-penalty": Refused(
        "requests say how tokens are drawn"
    ),
    "-md --model-draft --draft --draft-max": Refused("say it with --speculative-config"),
    "-mu --model-url -hff --hf-file": Refused("give --model a file or a hub id"),
    "-sm --split-mode -ts --tensor-split -mg --main-gpu": Refused(_DEVICE, ("none", "0")),
    "--lora --lora-scaled --control-vector --mmproj": Refused("models are served as they are"),
    "--rope-scaling --rope-scale --rope-freq-base --rope-freq-scale": Refused("the model's file says it"),
    "--grammar --grammar-file -j --json-schema": Refused("requests bring their grammar"),
    "--numa": Refused("start Octavo under numactl"),
    "--mlock": Refused("memory is not locked", takes=False),
    "--slots --props": Refused("/metrics and /v1/models say it", takes=False),
    "-v --verbose --log-verbose": Refused("prompts are not logged", takes=False),
    "--rerank --reranking": Refused("there is no such endpoint", takes=False),
}
