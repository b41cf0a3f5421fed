"""Lesson on inference, 3.4.1, 3.4.4, 3.4.5 and 3.4.9, lines 20-46, 154-201 and 338-342: prefill beside
decode, arithmetic intensity, TTFT and TPOT, and the checklist's measurements.

What differs: the lesson counts by hand and leaves the measuring to the reader. `octavo bench roofline` counts
operations and bytes of a model's own steps and says what bounds each; `octavo bench` measures. The machine's
roof is measured, too, so figures are those of the machine that it runs on.
"""

import argparse
import json
import subprocess
import sys
from typing import Any

from octavo import LLM, benchmark_inference


def intensity(d: int, tokens: int, bytes_per_weight: float = 2) -> float:
    """FLOPs per byte of a linear layer: 2 d d for each token, over the weights, which are read once."""
    return (2 * d * d * tokens) / (d * d * bytes_per_weight)


def bench(*words: str) -> dict[str, Any]:
    """What `octavo bench` says, as JSON."""
    command = [sys.executable, "-m", "octavo", "bench", *words, "--json"]
    found: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--max-tokens", type=int, default=16)
    options = parser.parse_args()

    print(
        f"AI of a decode step in FP16: {intensity(4096, 1):g}; of a prompt of 512: {intensity(4096, 512):g}"
    )
    shape = ["--prompt-tokens", "64", "--num-runs", "1", "--batch-sizes"]
    for line in bench("roofline", options.model, *shape, "1", "--contexts", "")["lines"]:
        print(f"{line['work']} of {line['size']}: bound by {line['limit']}")
    for one in bench(options.model, *shape, "1,4", "--max-tokens", str(options.max_tokens))["batches"]:
        speed = f"prefill {one['prefill_ms']:.0f} ms, decode {one['decode_rate']:.0f} tokens/second"
        print(f"batch {one['batch']}: {speed}")

    model = LLM(options.model, max_num_seqs=4, max_model_len=256)
    result = benchmark_inference(model, None, ["What is AI?"], max_tokens=options.max_tokens, num_runs=2)
    tpot = result.tpot or 0.0  # of one token there is none
    total = result.ttft + (options.max_tokens - 1) * tpot
    print(f"TTFT {result.ttft:.1f} ms + (n - 1) x TPOT {tpot:.2f} ms = {total:.0f} ms")
    print(f"measured {result.latency_p50:.0f} ms, {result.memory_gb:.2f} GB")


if __name__ == "__main__":
    main()
