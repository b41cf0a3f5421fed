"""Prompts as vectors: what callers ask (PoolingParams) and get (EmbeddingRequestOutput), in vLLM's words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from octavo.checks import plain_number
from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.params import RequestOutputKind, SamplingParams


@dataclass(frozen=True, slots=True)
class PoolingParams:
    """How a prompt becomes a vector. The hidden states are the last layer's, normed.

    Attributes:
        pooling: "last": the state of the last token; "mean": the mean of all tokens' states.
        normalize: the vector's length becomes 1 (Euclidean).
        dimensions: keep only so many of its first members (before normalizing), as models trained with
            Matryoshka losses allow; None: all.
    """

    pooling: str = "last"
    normalize: bool = True
    dimensions: int | None = None

    def __post_init__(self) -> None:
        if self.pooling not in ("last", "mean"):
            raise InvalidRequestError(f"pooling must be last or mean, not {self.pooling!r}", "pooling")
        object.__setattr__(self, "dimensions", plain_number(self.dimensions))
        if self.dimensions is not None and (type(self.dimensions) is not int or self.dimensions < 1):
            raise InvalidRequestError(
                f"dimensions must be an integer of at least 1, not {self.dimensions!r}", "dimensions"
            )

    def sampling(self, **more: Any) -> SamplingParams:
        """What the engine is told."""
        return SamplingParams(
            max_tokens=1, seed=0, detokenize=False, pooling=self.pooling,
            output_kind=RequestOutputKind.FINAL_ONLY, **more,
        )  # fmt: skip

    def check(self, width: int | None) -> None:
        """Raise unless a model with this many members of a hidden state (None: it shows none) can do it."""
        if width is None:
            raise UnsupportedError("this model gives no embeddings", "model")
        if self.dimensions is not None and self.dimensions > width:
            raise InvalidRequestError(
                f"dimensions {self.dimensions} is above the model's {width}", "dimensions"
            )

    def finish(self, vector: Sequence[float]) -> list[float]:
        """Cut and normalize pooled states."""
        found = list(vector[: self.dimensions])
        length = math.sqrt(math.fsum(x * x for x in found)) if self.normalize else 0.0
        return [x / length for x in found] if length else found


@dataclass(frozen=True, slots=True)
class EmbeddingOutput:
    """A prompt as a vector."""

    embedding: list[float]


@dataclass(frozen=True, slots=True)
class EmbeddingRequestOutput:
    """What LLM.embed gives for one prompt. vLLM's field names."""

    request_id: str
    outputs: EmbeddingOutput
    prompt_token_ids: list[int]
    finished: bool = True
