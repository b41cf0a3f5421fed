"""CostModel: how long a step takes, from what it computes. Given, or fitted to steps (lab.cost)."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from pathlib import Path

from octavo.engine.step_plan import StepPlan, counted
from octavo.errors import InvalidRequestError


@dataclass(frozen=True, slots=True)
class CostModel:
    """Seconds of a step = step_s + token_s * tokens + pair_s * pairs + sample_s * sampled rows.

    A pair is a computed token and one that it attends to, itself included. step_s stands for what
    every step costs (weights read from memory, Python), token_s for arithmetic, pair_s for attention,
    sample_s for the head and the draw.

    Attributes:
        error: median relative error on the steps it was fitted to; 0 where it was given.
    """

    step_s: float
    token_s: float
    pair_s: float = 0.0
    sample_s: float = 0.0
    error: float = 0.0

    def __post_init__(self) -> None:
        values = dataclasses.astuple(self)
        if not all(isinstance(v, (int, float)) and math.isfinite(v) and v >= 0 for v in values):
            raise InvalidRequestError("a cost model's numbers are seconds, not negative", "cost_model")
        if self.step_s + self.token_s <= 0:
            raise InvalidRequestError("a cost model in which steps cost nothing", "cost_model")

    def seconds(self, plan: StepPlan) -> float:
        """Of one step."""
        tokens, sampled, pairs = counted(plan.steps)
        return self.step_s + self.token_s * tokens + self.pair_s * pairs + self.sample_s * sampled

    @staticmethod
    def read(text: str) -> CostModel:
        """A cost model from JSON, given as such or as a file's path.

        Raises:
            InvalidRequestError: it is none.
        """
        try:
            values = json.loads(text if text.lstrip().startswith("{") else Path(text).read_text("utf-8"))
            return CostModel(**values.get("cost_model", values))
        except (ValueError, TypeError, AttributeError) as error:
            raise InvalidRequestError(f"{text!r} is no cost model: {error}", "cost_model") from None
