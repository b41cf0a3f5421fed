"""Norms inside the linears that read them, beside norms of their own."""

from __future__ import annotations

from octavo.lab.ablations import Found, Setting, Technique
from octavo.lab.ablations._forward import Step, need_cpu


def measure(setting: Setting) -> Found:
    step = Step(setting.loaded, 1)
    fused, unfused = step.captured(), step.unfused()
    most_s = setting.size(10, 3) / 10
    found = setting.medians(
        {
            "fused": lambda _: 1e3 * step.seconds(fused, most_s),
            "unfused": lambda _: 1e3 * step.seconds(unfused, most_s),
        }
    )
    return Found(
        "ms a token",
        (("fused", found["fused"]), ("unfused", found["unfused"])),
        False,
        "a norm's result is quantized while it is in registers; unfused it goes through memory first",
        {"fused_norms": found},
        {"fused over unfused": found["unfused"] / found["fused"]},
    )


TECHNIQUE = Technique(
    "fused-norms",
    "ops that are computed together save the way through memory between them",
    "Dao et al. 2022, FlashAttention, section 2.1 (kernel fusion)",
    measure,
    need_cpu,
)
