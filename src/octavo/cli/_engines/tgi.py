"""text-generation-launcher."""

from __future__ import annotations

import json

from octavo.cli._engines import Mapped, NoEffect, Refused


def _speculate(count: str) -> str:
    number = int(count) if count.isdigit() else count
    return json.dumps({"method": "ngram", "num_speculative_tokens": number})


NAME = "TGI"
LINES = (
    "--model-id smollm2",
    "--model-id smollm2 --num-shard 1 --port 8080 --hostname 0.0.0.0",
    "--model-id smollm2 --max-input-tokens 1024 --max-total-tokens 2048 --max-batch-size 8 "
    "--max-concurrent-requests 64 --max-batch-prefill-tokens 1024",
)
SAME = (
    "--model-id --num-shard --quantize --max-input-tokens --max-input-length --max-total-tokens "
    "--max-concurrent-requests --port --dtype --kv-cache-dtype --api-key --trust-remote-code"
)
NOTES = {
    "--quantize": "files say how they are quantized: another name is refused; of 16 bits `eetq`, `fp8` and "
    "`bitsandbytes-nf4` are made on load",
}
_BATCHES = "a step takes what its budget holds (--step-target-ms), and requests join at every step"
_MORE = "requests may ask for more than TGI's default"
_MARK = 'requests say it, such as "watermark": {"gamma": 0.25, "delta": 2}'
FLAGS = {
    "--hostname": Mapped("--host"),
    "--max-batch-size": Mapped("--max-num-seqs"),
    "--max-batch-prefill-tokens": Mapped(
        "--max-num-batched-tokens", note="longer prompts take several steps"
    ),
    "--cuda-memory-fraction": Mapped("--gpu-memory-utilization"),
    "--payload-limit": Mapped("--max-body-bytes"),
    "--json-output": Mapped("--log-format", made="json"),
    "--otlp-endpoint": Mapped("--otlp-traces-endpoint", note="OTLP over HTTP, port 4318"),
    "--cors-allow-origin": Mapped("--allowed-origins"),
    "--tokenizer-name": Mapped("--tokenizer"),
    "--graceful-termination-timeout": Mapped("--drain-timeout"),
    "--speculate": Mapped("--speculative-config", made=_speculate, note="drafts by prompt lookup"),
    "--waiting-served-ratio": NoEffect(_BATCHES),
    "--max-waiting-tokens": NoEffect(
        "it is a number of steps, and requests join at every step; --max-waiting-prompt-tokens bounds the "
        "prompts that wait"
    ),
    "--max-batch-total-tokens": NoEffect("the pages of the KV cache are planned; --num-pages sets them"),
    "--max-best-of": NoEffect(_MORE),
    "--max-stop-sequences": NoEffect(_MORE),
    "--max-top-n-tokens": NoEffect(_MORE),
    "--max-client-batch-size": NoEffect(_MORE),
    "--validation-workers": NoEffect("the server's own threads tokenize"),
    "--enable-prefill-logprobs": NoEffect("decoder_input_details always works", takes=False),
    "--disable-custom-kernels": NoEffect(
        "there are no others; --backend reference is plain NumPy", takes=False
    ),
    "--cuda-graphs": NoEffect("shapes are recorded as they come; --enforce-eager records none"),
    "--usage-stats": NoEffect("nothing is sent anywhere"),
    "--prometheus-port": NoEffect("/metrics is on the same port"),
    "--shard-uds-path --master-addr --master-port": NoEffect("there are no shards"),
    "--otlp-service-name": NoEffect("spans say octavo"),
    "--sharded": Refused("one process computes the model", ("false",)),
    "--revision": Refused("the main branch is taken", ("main",)),
    "--rope-scaling --rope-factor": Refused("the model's config.json says how positions are scaled"),
    "--huggingface-hub-cache --weights-cache-override": Refused(
        "set the variables HF_HOME and XDG_CACHE_HOME"
    ),
    "--watermark-gamma": Refused(_MARK, ("0.5",)),
    "--watermark-delta": Refused(_MARK, ("2", "2.0")),
    "--tokenizer-config-path": Refused("use --chat-template and --tokenizer"),
    "--disable-grammar-support": Refused("grammars are always served", takes=False),
    "--lora-adapters": Refused("no adapters are loaded"),
    "--ngrok --ngrok-authtoken --ngrok-edge": Refused("no tunnel is opened"),
    "--env": Refused("octavo env says it", takes=False),
}
