"""Drafts that the model verifies: EngineConfig.speculative_config, vLLM's mapping of names to values.

    {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}

method is the name of a file of spec/, which says what more it takes. It may be left out where `model` says
who drafts: a model ("draft"), or, as vLLM's older versions had it, "ngram" or "[ngram]".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from octavo.errors import InvalidRequestError
from octavo.params.speculative import MOST_DRAFTED
from octavo.spec import method, methods
from octavo.spec.base import Number, Registration

NAME = "speculative_config"
DRAFT = "draft"
"""The method that a model's name asks for."""
ALIASES = {"[ngram]": "ngram", "draft_model": DRAFT}
"""vLLM's names of methods, where they are not those of files."""
POLICIES = ("auto", "fixed")
COUNT, POLICY, VERIFYING = COMMON = ("num_speculative_tokens", "policy", "rejection_sample_method")
"""What every method takes."""
REJECTIONS = {"strict": False, "probabilistic": True, "standard": True}
"""vLLM's names of ways to verify -> whether drafts are put to the p/q test; "standard" is its later name."""


@dataclass(frozen=True, slots=True)
class Speculative:
    """What a speculative_config asks for.

    Attributes:
        method: name of a proposer. model: who drafts, where the proposer is a model.
        most: tokens of a row's draft in a step.
        auto: so many as are expected to pay, none included; False: as many as there are.
        rejecting: drafts are put to the p/q test (sampling/verify.py), not kept as far as the row draws them.
        options: of the proposer, each with its number.
    """

    method: str
    most: int
    auto: bool = True
    rejecting: bool = False
    model: str | None = None
    options: Mapping[str, Number] = field(default_factory=dict)

    @property
    def proposer(self) -> Registration:
        return method(self.method)


DEFAULT_TOKENS = 8
"""Tokens of a draft where nobody says how many."""


def read_speculation(given: Mapping[str, object]) -> Speculative:
    """A speculative_config, checked.

    Raises:
        InvalidRequestError: it is no object, or a name or a value in it is wrong.
    """
    if not isinstance(given, Mapping):
        raise _wrong(f"must be an object, not {type(given).__name__}")
    values = {name: value for name, value in given.items() if value is not None}
    model, name = values.pop("model", None), values.pop("method", None)
    if not isinstance(model, (str, type(None))) or model == "":
        raise _wrong(f"model must be a model's name, not {model!r}")
    if name is None and model is None:
        raise _wrong(f"needs a method: {', '.join(methods())}")
    if name is None:
        name = model if model in ("ngram", "[ngram]") else DRAFT
    name = ALIASES.get(name, name) if isinstance(name, str) else name
    model = None if ALIASES.get(str(model), model) == name else model  # older versions said it twice
    proposer = method(name)
    if model is not None and not proposer.names_model:
        raise _wrong(f"model is for method {DRAFT!r}: {name} drafts without one")
    if model is None and proposer.names_model:
        raise _wrong(f"needs a model for method {name!r}: the one that drafts")
    most = values.pop(COUNT, DEFAULT_TOKENS)
    if isinstance(most, bool) or not isinstance(most, int) or not 1 <= most <= MOST_DRAFTED:
        raise _wrong(f"{COUNT} must be a whole number from 1 to {MOST_DRAFTED}, not {most!r}")
    policy = values.pop(POLICY, "auto")
    if policy not in POLICIES:
        raise _wrong(f"{POLICY} must be {' or '.join(POLICIES)}, not {policy!r}")
    verifying = values.pop(VERIFYING, "strict")
    if not isinstance(verifying, str) or verifying not in REJECTIONS:
        raise _wrong(f"{VERIFYING} must be strict or probabilistic, not {verifying!r}")
    rejecting, auto = REJECTIONS[verifying], policy == "auto"
    return Speculative(str(name), most, auto, rejecting, model, proposer.settings(values, COMMON))


def check_speculation(given: Mapping[str, object] | None) -> None:
    """
    Raises:
        InvalidRequestError: as read_speculation().
    """
    if given is not None:
        read_speculation(given)


def _wrong(what: str) -> InvalidRequestError:
    return InvalidRequestError(f"{NAME} {what}", NAME)
