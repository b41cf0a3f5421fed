"""Beams that share the pages of what they have in common, beside a copy for each."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass

from octavo.assembly import Loaded
from octavo.beam_search import sampling_params
from octavo.bench.workload import random_prompts
from octavo.engine.admission import Admission
from octavo.engine.beams import BeamSearches
from octavo.engine.core import EngineCore
from octavo.errors import UnsupportedError
from octavo.lab.ablations import Found, Setting, Technique
from octavo.lab.drive import config_of
from octavo.params import BeamSearchParams
from octavo.sampling.beam import BeamSearch

BEAMS = 4


@dataclass(frozen=True, slots=True)
class Sharing:
    """Pages of a beam search whose beams share what they have in common, and with a copy for each.

    At the step that needs most, median over the prompts.
    """

    beams: int
    shared_pages: float
    copied_pages: float

    @property
    def saved(self) -> float:
        return 1 - self.shared_pages / self.copied_pages


def sharing(
    loaded: Loaded, beams: int = BEAMS, prompt_tokens: int = 128, new_tokens: int = 128, rounds: int = 3
) -> Sharing:
    """Beam searches on the real engine, one prompt at a time; distinct pages are counted after each step."""
    config = config_of(loaded, enable_prefix_caching=False)
    wish = sampling_params(BeamSearchParams(beam_width=beams, max_tokens=new_tokens, ignore_eos=True))
    shared, copied = [], []
    for prompt in random_prompts(rounds, prompt_tokens, loaded.model.vocab_size, seed=3):
        core = EngineCore(Admission(config, beam_search=BeamSearches(BeamSearch)), loaded.runner)
        core.add_request("beams", prompt, wish)
        most = (0, 0)
        while core.has_unfinished():
            core.step()
            tables = [request.kv.page_table for request in core.scheduler.running]
            most = max(most, (len(set().union(*tables)), sum(map(len, tables))))
        shared.append(most[0])
        copied.append(most[1])
    return Sharing(beams, statistics.median(shared), statistics.median(copied))


def measure(setting: Setting) -> Found:
    found = sharing(setting.loaded, new_tokens=setting.size(128, 64), rounds=setting.rounds)
    return Found(
        "pages",
        (("copy-on-write", found.shared_pages), ("a copy each", found.copied_pages)),
        False,
        f"{found.beams} beams have their prompt and most of their past in common: {found.saved:.0%} is saved",
        {"sharing": asdict(found)},
        {"pages saved": found.saved},
    )


def needs(setting: Setting) -> None:
    setting.need(256)
    if setting.loaded.config.max_num_seqs < BEAMS:
        raise UnsupportedError(f"it needs --max-num-seqs of {BEAMS}, for as many beams")


TECHNIQUE = Technique(
    "copy-on-write",
    "beams share the pages of what they have in common, and copy one only to write to it",
    "Kwon et al. 2023, PagedAttention, section 4.4",
    measure,
    needs,
)
