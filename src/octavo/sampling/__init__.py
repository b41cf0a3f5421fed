"""How a token is drawn from logits: processors, noise, the sampler, verification of drafts."""

from octavo.sampling.noise import Stream, uniform
from octavo.sampling.sampler import RowError, Sampler
from octavo.sampling.sampling_batch import SamplingBatch, TokenLists
from octavo.sampling.sampling_rows import SamplingRows
from octavo.sampling.verify import Draft, Verified, rejection, rejection_noise, same_draw

__all__ = [
    "Draft",
    "RowError",
    "Sampler",
    "SamplingBatch",
    "SamplingRows",
    "Stream",
    "TokenLists",
    "Verified",
    "rejection",
    "rejection_noise",
    "same_draw",
    "uniform",
]
