"""Drafts that a step verifies together, beside a token a step."""

from __future__ import annotations

from dataclasses import asdict

from octavo.bench.speculate import EXAMPLES, Speculating, conversations, speculate
from octavo.errors import UnsupportedError
from octavo.lab.ablations import Found, Setting, Technique


def measure(setting: Setting) -> Found:
    """Three prompts (an edit, a copy, a story), each answered with drafts and without."""
    options = {"max_num_seqs": 1, **setting.options}
    wanted = options.pop("speculative_config", None) or {"method": "ngram"}
    talks = conversations(None)[: len(EXAMPLES)]
    params = {"temperature": 0.0, "max_tokens": setting.size(128, 48)}
    found = speculate(Speculating(setting.model, options, wanted), talks, params)
    return Found(
        "times as fast",
        (("with drafts", found.measured), ("without", 1.0)),
        True,
        f"{found.drafting:.0%} of the steps verify drafts and give {found.tau:.2f} tokens each",
        {"speculation": {k: v for k, v in asdict(found).items() if k != "steps"}},
        {"drafts over none": found.measured},
    )


def needs(setting: Setting) -> None:
    if setting.loaded.template is None:
        raise UnsupportedError("its prompts are chats, and this model has no chat template")


TECHNIQUE = Technique(
    "speculation",
    "several drafted tokens are verified for about the cost of one, and the answer stays the same",
    "Leviathan et al. 2023; drafts from the prompt: Saxena 2023, prompt lookup",
    measure,
    needs,
)
