"""The arithmetic of the table's figures: shares, ratios and rates of what was measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

from gpu.models import Shape


def copy_bandwidth(nbytes: int, took: float) -> float:
    """Bytes a second of a copy of so many: each is read and written."""
    return 2 * nbytes / took


def product_flops(n: int) -> int:
    """Of a product of two n x n matrices: a multiplication and an addition each."""
    return 2 * n**3


def decode_bytes(weights: int, context: int, kv_per_token: int) -> int:
    """That a step of one stream reads: all weights, and the pages of its context."""
    return weights + context * kv_per_token


def answer_bytes(weights: int, prompt: int, answer: int, kv_per_token: int, streams: int = 1) -> int:
    """That the steps of an answer read: its first token comes with the prompt, each later one with a step
    over all tokens before it, of all streams at once."""
    contexts = range(prompt + 1, prompt + answer)
    return sum(decode_bytes(weights, streams * context, kv_per_token) for context in contexts)


def weight_bytes(shape: Shape, item: int) -> int:
    """That a step reads of weights of so many bytes each."""
    return item * shape.linear_parameters


def kv_bytes(shape: Shape, item: int) -> int:
    """Keys and values of a token, in all layers."""
    return 2 * item * shape.layers * shape.kv_heads * shape.head_dim


def least_seconds(
    shape: Shape, item: int, streams: int, prompt: int, answer: int, bandwidth: float, flops: float
) -> float:
    """That streams of a prompt and an answer take where products run at `flops` a second and steps read
    `bandwidth` bytes a second, and neither beside the other."""
    read = answer_bytes(weight_bytes(shape, item), prompt, answer, kv_bytes(shape, item), streams)
    return streams * prompt_flops(shape, prompt) / flops + read / bandwidth


def prompt_flops(shape: Shape, n: int) -> int:
    """Of a prompt of n tokens: the layers' products and causal attention; behind the last attention the last
    token's alone, and the head's."""
    _, *behind = (rows * columns for rows, columns in shape.matrices())
    once = sum(behind) + shape.vocab * shape.hidden
    products = 2 * n * (shape.linear_parameters - once) + 2 * once
    return products + 2 * n * n * shape.heads * shape.head_dim * shape.layers  # causal: half of 4 n^2


def share(work: float, took: float, ceiling: float) -> float:
    """Of a ceiling, in the same unit a second."""
    return work / took / ceiling


def output_rate(streams: int, answer: int, took: float) -> float:
    """Output tokens a second."""
    return streams * answer / took


def total_rate(tokens: Iterable[int], took: float) -> float:
    """Output tokens a second, of answers of these lengths."""
    return sum(tokens) / took


def gap(whole: Sequence[float], device: Sequence[float]) -> float | None:
    """The share of a step in which the device has nothing to do, of medians.

    Both are times of the same step, measured several times by clocks of their own.

    Returns:
        None where the clocks do not resolve it: not every whole step is longer than each on the device.
    """
    if min(whole) <= max(device):
        return None
    return 1 - median(device) / median(whole)


def speedup(theirs: Iterable[float], ours: float) -> float:
    """How many times longer the fastest of theirs takes."""
    return min(theirs) / ours


def slowdown(slow: float, fast: float) -> float:
    """How many times longer the first takes."""
    return slow / fast
