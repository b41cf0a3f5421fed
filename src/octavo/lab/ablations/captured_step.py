"""A step recorded once and replayed, beside each op called for itself."""

from __future__ import annotations

from octavo.bench.calibrate import best_time
from octavo.kernels.ops import Inputs
from octavo.lab.ablations import Found, Setting, Technique
from octavo.lab.ablations._forward import Step, need_cpu


def measure(setting: Setting) -> Found:
    step = Step(setting.loaded, 1)
    program = step.captured()
    most_s = setting.size(10, 3) / 10

    def eagerly() -> None:
        step.forward(step.backend.eager(step.batch, step.limits), Inputs())

    found = setting.medians(
        {
            "replayed": lambda _: 1e3 * step.seconds(program, most_s),
            "eager": lambda _: 1e3 * best_time(eagerly, most_s),
        }
    )
    return Found(
        "ms a token",
        (("replayed", found["replayed"]), ("op by op", found["eager"])),
        False,
        "a replay is one call into C++; op by op Python builds and starts a program for each",
        {"captured_step": found},
        {"replayed over eager": found["eager"] / found["replayed"]},
    )


TECHNIQUE = Technique(
    "captured-step",
    "what is recorded once and replayed spends no host time on each op",
    "CUDA graphs and torch.compile, as lessons name them",
    measure,
    need_cpu,
)
