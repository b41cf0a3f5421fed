"""vllm serve, and python -m vllm.entrypoints.openai.api_server."""

from __future__ import annotations

from octavo.cli._engines import Mapped, NoEffect, Refused

NAME = "vLLM"
LINES = (
    "smollm2",
    "--model smollm2 --port 8000 --max-model-len 4096",
    "smollm2 -tp 1 --gpu-memory-utilization 0.9 --max-num-seqs 32 --enable-chunked-prefill "
    "--disable-log-requests --trust-remote-code",
    "smollm2 --enable-auto-tool-choice --tool-call-parser hermes --served-model-name gpt-4",
)
SAME = (
    "--model --tokenizer --host --port --api-key --served-model-name --chat-template --dtype --max-model-len "
    "--max-num-seqs --max-num-batched-tokens --gpu-memory-utilization --quantization --kv-cache-dtype "
    "--tensor-parallel-size --block-size --swap-space --seed --trust-remote-code --enforce-eager "
    "--enable-prefix-caching --no-enable-prefix-caching --speculative-config --scheduling-policy "
    "--tool-call-parser --reasoning-parser --root-path --allowed-origins --allowed-methods --allowed-headers "
    "--allow-credentials --ssl-certfile --ssl-keyfile --ssl-ca-certs --uds --otlp-traces-endpoint --device"
)
NOTES = {
    "--gpu-memory-utilization": "on a CPU the share of free memory that KV pages may take",
    "--served-model-name": "one name: for several give it several times",
    "--swap-space": "0 is the default here",
}
_FUSED = "programs are recorded and fused when the model is loaded"
_ONE = "one process serves and computes"
_ALWAYS = "it always does"
_QUIET = "requests are logged with --access-log alone, without their texts"
FLAGS = {
    "-tp": Mapped("--tensor-parallel-size"),
    "--num-gpu-blocks-override": Mapped("--num-pages"),
    "-q": Mapped("--quantization"),
    "--disable-log-requests --no-enable-log-requests": NoEffect(_QUIET, takes=False),
    "--disable-log-stats --disable-uvicorn-access-log": NoEffect(_QUIET, takes=False),
    "--max-log-len --uvicorn-log-level": NoEffect(_QUIET),
    "--enable-chunked-prefill --enable-auto-tool-choice --enable-prompt-tokens-details": NoEffect(
        _ALWAYS, takes=False
    ),
    "--enable-reasoning --enable-request-id-headers": NoEffect(_ALWAYS, takes=False),
    "--enable-server-load-tracking": NoEffect("/metrics has the load", takes=False),
    "--async-scheduling --no-async-scheduling --engine-use-ray --worker-use-ray": NoEffect(_ONE, takes=False),
    "--disable-frontend-multiprocessing": NoEffect(_ONE, takes=False),
    "--distributed-executor-backend --max-parallel-loading-workers": NoEffect(_ONE),
    "--compilation-config": NoEffect(_FUSED),
    "-O": NoEffect(_FUSED, attached=True),
    "--guided-decoding-backend --structured-outputs-config": NoEffect("there is one compiler of grammars"),
    "--max-seq-len-to-capture": NoEffect("shapes are recorded as they come"),
    "--disable-fastapi-docs": NoEffect("there are no such pages; /openapi.json stays", takes=False),
    "--pipeline-parallel-size -pp": Refused("one process computes the model", ("1",)),
    "--data-parallel-size -dp --api-server-count": Refused("start several servers", ("1",)),
    "--load-format": Refused("files say what they are", ("auto", "safetensors", "gguf")),
    "--tokenizer-mode": Refused("the tokenizer is the model's", ("auto", "fast")),
    "--revision --code-revision --tokenizer-revision": Refused("the main branch is taken", ("main",)),
    "--generation-config": Refused("defaults of requests are OpenAI's", ("vllm",)),
    "--override-generation-config": Refused("requests say how tokens are drawn"),
    "--task --runner": Refused("one server generates and embeds", ("auto", "generate")),
    "--response-role": Refused("answers are the assistant's", ("assistant",)),
    "--cpu-offload-gb": Refused("weights are on one device", ("0",)),
    "--download-dir": Refused("set the variables HF_HOME and XDG_CACHE_HOME"),
    "--hf-token": Refused("set the variable HF_TOKEN"),
    "--no-enable-chunked-prefill": Refused("prompts are always cut into steps", takes=False),
    "--enable-log-requests": Refused("prompts are not logged", takes=False),
    "--enable-lora": Refused("no adapters are loaded", takes=False),
    "--lora-modules --max-lora-rank --max-loras": Refused("no adapters are loaded"),
    "--limit-mm-per-prompt --allowed-local-media-path": Refused("models read text alone"),
    "--hf-overrides --rope-scaling --rope-theta": Refused("the model's config.json is followed"),
    "--middleware --logits-processors": Refused("no code of others is run"),
    "--kv-transfer-config": Refused("pages are not moved between servers"),
}
