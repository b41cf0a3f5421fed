"""What is measured, and what of it is asked for: the rows of the table of ratios."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

TINYLLAMA = "tinyllama-1.1b"
"""The name of the synthetic model; every other name is Octavo's."""
OURS, OURS_INT8, OURS_F16 = "octavo", "octavo int8 KV", "octavo f16 KV"
THEIRS, THEIRS_Q8 = "llama.cpp", "llama.cpp q8_0 KV"
IK = "ik_llama.cpp"
GROUPS: Mapping[str, str] = {
    OURS: "engine (scheduler, pages, sampler), greedy, int16 KV",
    OURS_INT8: "engine, greedy, int8 KV",
    OURS_F16: "engine, greedy, float16 KV",
    THEIRS: "bare steps through its C interface, no scheduler, argmax, KV of 16 bits",
    THEIRS_Q8: "bare steps through its C interface, no scheduler, argmax, q8_0 KV",
    IK: "its own llama-batched-bench: bare steps, nothing drawn, KV of 16 bits",
    "transformers": "bare steps, argmax, its own cache",
    "openvino-genai": "engine, greedy, its own KV type",
    "vllm": "engine, greedy, 16-bit KV",
}
"""Who rows compare -> what runs there, with the faster of the model's files."""
QUICK_DIVISOR = 8


@dataclass(frozen=True, slots=True)
class Shape:
    """One run: streams prompts of prompt tokens side by side, then new tokens for each.

    Attributes:
        heavy: takes minutes for the slower peers, which then sit it out.
    """

    model: str
    streams: int
    prompt: int
    new: int
    heavy: bool = False

    @property
    def name(self) -> str:
        return f"{self.model} {self.streams} x {self.prompt} + {self.new}"

    def quick(self) -> Shape:
        """The same in small: shows that it runs, not how fast."""
        return Shape(
            self.model,
            self.streams,
            max(self.prompt // QUICK_DIVISOR, 4),
            max(self.new // QUICK_DIVISOR, 4),
            self.heavy,
        )


@dataclass(frozen=True, slots=True)
class Row:
    """One ratio: the fastest of one group over the fastest of another.

    Attributes:
        shape: key of SHAPES. figure: "prompt" or "decode", tokens a second.
        least, aim: what the ratio should reach at least, and what would be fine.
    """

    name: str
    shape: str
    figure: str
    least: float
    aim: float | None = None
    ours: str = OURS
    over: str = THEIRS


SHAPES: Mapping[str, Shape] = {
    "short": Shape("smollm2", 1, 16, 128),
    "prompt-512": Shape("smollm2", 1, 512, 32),
    "batch-8": Shape("smollm2", 8, 16, 64),
    "batch-32": Shape("smollm2", 32, 16, 64),
    "context-2k": Shape("smollm2", 1, 2048, 64, heavy=True),
    "context-4k": Shape("smollm2", 1, 4096, 32, heavy=True),
    "context-8k": Shape("smollm2", 1, 8000, 64, heavy=True),
    "1b-short": Shape(TINYLLAMA, 1, 16, 64, heavy=True),
    "1b-prompt-256": Shape(TINYLLAMA, 1, 256, 16, heavy=True),
    "1b-batch-32": Shape(TINYLLAMA, 32, 16, 32, heavy=True),
    "gemma-short": Shape("gemma3-270m", 1, 16, 64, heavy=True),
    "gemma-prompt-512": Shape("gemma3-270m", 1, 512, 16, heavy=True),
    "gemma-batch-32": Shape("gemma3-270m", 32, 16, 32, heavy=True),
}

ROWS = (
    Row("SmolLM2, decode, 1 stream", "short", "decode", 1.75),
    Row("SmolLM2, prompt of 512", "prompt-512", "prompt", 2.7, 3.5),
    Row("SmolLM2, decode, 8 streams", "batch-8", "decode", 5.0),
    Row("SmolLM2, decode, 32 streams", "batch-32", "decode", 2.6, 4.5),
    Row("SmolLM2, decode at 2k of context", "context-2k", "decode", 2.3, 2.5),
    Row("SmolLM2, decode at 8k of context", "context-8k", "decode", 2.4, 4.0),
    Row("SmolLM2, decode at 8k, int8 over q8_0 KV", "context-8k", "decode", 3.0, None, OURS_INT8, THEIRS_Q8),
    Row("SmolLM2, decode at 8k, int8 KV over f16", "context-8k", "decode", 1.4, None, OURS_INT8, OURS_F16),
    Row("SmolLM2, prompt of 4,096", "context-4k", "prompt", 2.5),
    Row("SmolLM2, prompt of 8,000", "context-8k", "prompt", 2.5),
    Row("1.1B, decode, 1 stream", "1b-short", "decode", 1.4, 1.6),
    Row("1.1B, prompt of 256", "1b-prompt-256", "prompt", 2.2, 3.0),
    Row("1.1B, decode, 32 streams", "1b-batch-32", "decode", 2.5, 4.0),
    Row("Gemma 3 270M, decode, 1 stream", "gemma-short", "decode", 1.5),
    Row("Gemma 3 270M, prompt of 512", "gemma-prompt-512", "prompt", 2.5),
    Row("Gemma 3 270M, decode, 32 streams", "gemma-batch-32", "decode", 3.0),
)
