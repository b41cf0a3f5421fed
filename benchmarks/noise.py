"""How to turn a distribution into a token: three draws, their cost and how well they couple.

    .venv-test/bin/python benchmarks/noise.py MODEL.gguf [--write]

A sampling drafter whose drafts are verified by drawing again is right as often as two draws with
the same noise agree, one from the target's p and one from the drafter's q. That probability is
computed exactly per position of a text, for drafters made from the model itself: its weights
rounded to fewer bits, or its last layers left out. The cost is the median time of a row in NumPy.
Needs torch and transformers, as the tests do.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from asked import tells
from harness import report, write

from octavo.errors import OctavoError
from octavo.sampling.distribution import CHUNK, chunk_sums, draw
from octavo.sampling.noise import Stream, philox4x32, race_noise, uniform

TEXT = """The history of the printing press begins in the fifteenth century, when a goldsmith from Mainz
combined movable type, an oil-based ink and a wooden press like those of the wine makers. Before that,
books were copied by hand, mostly in monasteries, and a single one could take a scribe more than a year.

def binary_search(items, target):
    low, high = 0, len(items) - 1
    while low <= high:
        middle = (low + high) // 2
        if items[middle] == target:
            return middle
        if items[middle] < target:
            low = middle + 1
        else:
            high = middle - 1
    return -1

To make bread you need flour, water, salt and yeast. Knead the dough for ten minutes until it is smooth,
let it rest for an hour under a cloth, and bake it until the crust sounds hollow when you knock on it.
"Why are you late?" she asked. He looked at the floor. "The train stopped twice," he said, "and then it
started to snow."
"""
SETTINGS = ((1.0, 1.0), (0.7, 1.0), (1.0, 0.9))  # temperature, top_p


def optimum(p: np.ndarray, q: np.ndarray) -> float:
    """1 - total variation: what p/q rejection accepts; no coupling agrees more often."""
    return float(np.minimum(p, q).sum())


def inverse_cdf(p: np.ndarray, q: np.ndarray) -> float:
    """One uniform, ids ascending: the overlap of each token's two intervals."""
    above, below = np.minimum(p.cumsum(), q.cumsum()), np.maximum(p.cumsum() - p, q.cumsum() - q)
    return float(np.maximum(above - below, 0).sum())


def race_shares(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """P(i wins both races) = 1 / sum over j of max(p_j / p_i, q_j / q_i), for each i."""
    both = (p > 0) & (q > 0)
    ratio = np.where(both, p / np.where(q > 0, q, 1), np.where(p > 0, np.inf, 0))
    order = np.argsort(ratio, kind="stable")
    both, ordered_p, ordered_q = both[order], p[order], q[order]
    p_above, q_up_to = 1 - ordered_p.cumsum()[both], ordered_q.cumsum()[both]
    shares = np.zeros(len(p))
    shares[order[both]] = 1 / (p_above / ordered_p[both] + q_up_to / ordered_q[both])
    return shares


def race(p: np.ndarray, q: np.ndarray) -> float:
    """Gumbel-max: noise for every token."""
    return float(race_shares(p, q).sum())


def two_levels(p: np.ndarray, q: np.ndarray) -> float:
    """Noise for the chunks, then for the chosen chunk's tokens: Octavo's draw."""
    rows = [np.pad(each, (0, -len(each) % CHUNK)).reshape(-1, CHUNK) for each in (p, q)]
    p_sums, q_sums = (each.sum(axis=1) for each in rows)
    shares = race_shares(p_sums, q_sums)
    return sum(
        float(shares[c]) * race(rows[0][c] / p_sums[c], rows[1][c] / q_sums[c])
        for c in np.flatnonzero(shares > 1e-7)
    )


COUPLINGS: tuple[Callable[[np.ndarray, np.ndarray], float], ...] = (optimum, inverse_cdf, race, two_levels)


def probabilities(logits: np.ndarray, temperature: float, top_p: float) -> np.ndarray:
    """[T, V] float64."""
    weights = np.exp((logits - logits.max(axis=1, keepdims=True)).astype(np.float64) / temperature)
    p = weights / weights.sum(axis=1, keepdims=True)
    if top_p < 1:
        order = np.argsort(-p, axis=1, kind="stable")
        sums = np.take_along_axis(p, order, 1).cumsum(axis=1)
        reached = np.concatenate([np.zeros((len(p), 1), bool), sums[:, :-1] >= top_p], axis=1)
        np.put_along_axis(p, order, np.where(reached, 0, np.take_along_axis(p, order, 1)), 1)
    normalized: np.ndarray = p / p.sum(axis=1, keepdims=True)
    return normalized


def models(path: Path) -> dict[str, np.ndarray]:
    """Logits [T, V] of the target and of the drafters on TEXT."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source: dict[str, Any] = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    ids = AutoTokenizer.from_pretrained(**source)(TEXT, return_tensors="pt").input_ids
    result = {}
    with torch.no_grad():
        model: Any = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
        model.eval()
        output = model(ids, output_hidden_states=True)
        result["target"] = output.logits[0].numpy()
        layers = len(output.hidden_states) - 1
        early = output.hidden_states[layers * 9 // 10]
        result["9/10 of the layers"] = model.lm_head(model.model.norm(early))[0].numpy()
        original = {name: value.clone() for name, value in model.state_dict().items()}
        for bits, group in ((6, 128), (4, 64), (3, 32)):
            model.load_state_dict(original)
            for name, value in model.named_parameters():
                if value.ndim == 2 and "embed" not in name:
                    blocks = value.reshape(-1, group)
                    low = blocks.amin(1, keepdim=True)
                    step = ((blocks.amax(1, keepdim=True) - low) / (2**bits - 1)).clamp_min(1e-12)
                    value.copy_((((blocks - low) / step).round() * step + low).reshape(value.shape))
            result[f"{bits} bits"] = model(ids).logits[0].numpy()
    return result


def microseconds(call: Callable[[int], object]) -> float:
    times = []
    for repetition in range(50):
        start = time.perf_counter()
        call(repetition)
        times.append((time.perf_counter() - start) * 1e6)
    return round(statistics.median(times), 1)


def costs(logits: np.ndarray) -> dict[str, float]:
    """Microseconds from one row of weights [V] to a token, noise included."""
    weights = np.exp(logits - logits.max())
    vocab = len(weights)
    blocks = np.zeros((-(-vocab // 4), 4), np.uint32)
    blocks[:, 3] = np.arange(len(blocks))

    def by_inverse_cdf(position: int) -> int:
        sums = np.cumsum(chunk_sums(weights))
        target = float(uniform(1, 0, position, Stream.TARGET)[0]) * sums[-1]
        chunk = int(np.searchsorted(sums, target, side="right"))
        inside = np.cumsum(weights[chunk * CHUNK : chunk * CHUNK + CHUNK], dtype=np.float64)
        rest = target - (sums[chunk - 1] if chunk else 0.0)
        return chunk * CHUNK + int(np.searchsorted(inside, rest, side="right"))

    def by_race(position: int) -> int:
        words = philox4x32(blocks, np.array([1, position], np.uint32)).reshape(-1)[:vocab]
        noise = -np.log1p((words.astype(np.float32) + np.float32(0.5)) * np.float32(-(2.0**-32)))
        return int((noise / weights).argmin())

    def by_two_levels(position: int) -> int:
        chunks, places = race_noise([1], [0], [position], -(-vocab // CHUNK))
        return draw(weights, None, chunks[0], places[0])

    with np.errstate(divide="ignore"):
        return {each.__name__[3:]: microseconds(each) for each in (by_inverse_cdf, by_race, by_two_levels)}


@tells(OctavoError)
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--write", action="store_true", help="put the result under results/")
    arguments = parser.parse_args()
    logits = models(arguments.model)
    target = logits.pop("target")
    agreement: dict[str, dict[str, dict[str, float]]] = {}
    for name, drafted in logits.items():
        for temperature, top_p in SETTINGS:
            pairs = list(zip(*(probabilities(z, temperature, top_p) for z in (target, drafted)), strict=True))
            means = {f.__name__: round(float(np.mean([f(p, q) for p, q in pairs])), 3) for f in COUPLINGS}
            agreement.setdefault(name, {})[f"temperature {temperature} top_p {top_p}"] = means
            print(f"{name:20} temperature {temperature} top_p {top_p}  {means}", flush=True)
    cost = costs(target[-1])
    print("microseconds a row:", cost)
    if arguments.write:
        command = ["python", "benchmarks/noise.py", arguments.model.name]
        positions, vocab = target.shape
        body = {"positions": positions, "vocab": vocab, "agreement": agreement, "microseconds_a_row": cost}
        print(write(report("noise", command, body)))


if __name__ == "__main__":
    main()
