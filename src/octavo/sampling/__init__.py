"""How a token is drawn from logits: processors, noise, the sampler, the p/q test of drafts."""

from octavo.sampling.noise import Stream, uniform
from octavo.sampling.sampler import RowError, Sampler
from octavo.sampling.sampling_batch import SamplingBatch, TokenLists
from octavo.sampling.sampling_rows import SamplingRows

__all__ = [
    "RowError",
    "Sampler",
    "SamplingBatch",
    "SamplingRows",
    "Stream",
    "TokenLists",
    "uniform",
]
