"""python -m sglang.launch_server."""

from __future__ import annotations

from octavo.cli._engines import Mapped, NoEffect, Refused
from octavo.errors import UnsupportedError


def _chunked(size: str) -> str:
    """
    Raises:
        UnsupportedError: -1 asks for whole prompts.
    """
    if size == "-1":
        said = "--chunked-prefill-size -1 is not supported: prompts are always cut into steps"
        raise UnsupportedError(said)
    return size


NAME = "SGLang"
LINES = (
    "--model-path smollm2 --host 0.0.0.0 --port 30000",
    "--model-path smollm2 --tp 1 --mem-fraction-static 0.8 --context-length 4096 --max-running-requests 16 "
    "--chunked-prefill-size 512 --schedule-policy lpm",
)
SAME = (
    "--host --port --api-key --served-model-name --chat-template --dtype --quantization --kv-cache-dtype "
    "--device --trust-remote-code --tool-call-parser --reasoning-parser --page-size"
)
NOTES = {
    "--max-total-tokens": "here, as in TGI, of one sequence; SGLang's is all of the pool: use --num-pages"
}
_KERNELS = "there is one for each device (--backend)"
_ALWAYS = "it always does"
FLAGS = {
    "--model-path": Mapped("--model"),
    "--tokenizer-path": Mapped("--tokenizer"),
    "--tp --tp-size": Mapped("--tensor-parallel-size"),
    "--mem-fraction-static": Mapped("--gpu-memory-utilization"),
    "--context-length": Mapped("--max-model-len"),
    "--max-running-requests": Mapped("--max-num-seqs"),
    "--max-queued-requests": Mapped("--max-waiting"),
    "--chunked-prefill-size": Mapped(
        "--max-num-batched-tokens", made=_chunked, note="-1 is refused: prompts are always cut into steps"
    ),
    "--schedule-policy": Mapped("--scheduling-policy"),
    "--random-seed": Mapped("--seed"),
    "--disable-radix-cache": Mapped("--no-enable-prefix-caching", bare=True),
    "--disable-cuda-graph": Mapped("--enforce-eager", bare=True),
    "--watchdog-timeout": Mapped("--stall-timeout"),
    "--fastapi-root-path": Mapped("--root-path"),
    "--attention-backend --sampling-backend --prefill-attention-backend": NoEffect(_KERNELS),
    "--decode-attention-backend --grammar-backend": NoEffect(_KERNELS),
    "--enable-metrics --enable-cache-report --is-embedding": NoEffect(_ALWAYS, takes=False),
    "--enable-torch-compile --skip-server-warmup --disable-overlap-schedule": NoEffect(
        "programs are recorded when the model is loaded", takes=False
    ),
    "--cuda-graph-max-bs": NoEffect("shapes are recorded as they come"),
    "--max-prefill-tokens --schedule-conservativeness": NoEffect(
        "a step takes what its budget holds (--step-target-ms)"
    ),
    "--log-level --log-level-http": NoEffect("requests are logged with --access-log alone"),
    "--dist-init-addr": NoEffect("one process serves and computes"),
    "--dp --dp-size --data-parallel-size": Refused("start several servers", ("1",)),
    "--pp-size --ep-size --nnodes": Refused("one process computes the model", ("1",)),
    "--node-rank": Refused("one process computes the model", ("0",)),
    "--load-format": Refused("files say what they are", ("auto", "safetensors", "gguf")),
    "--stream-interval": Refused("every token is sent as it comes", ("1",)),
    "--revision": Refused("the main branch is taken", ("main",)),
    "--log-requests": Refused("prompts are not logged", takes=False),
    "--speculative-algorithm --speculative-draft-model-path --speculative-num-steps": Refused(
        "say it with --speculative-config"
    ),
    "--download-dir": Refused("set the variables HF_HOME and XDG_CACHE_HOME"),
    "--lora-paths": Refused("no adapters are loaded"),
    "--json-model-override-args": Refused("the model's config.json is followed"),
    "--cpu-offload-gb": Refused("weights are on one device", ("0",)),
}
