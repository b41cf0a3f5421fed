"""What this CPU's vector pipes allow the inner loops: each loop's mix of instructions, nothing waiting.

    .venv/bin/python benchmarks/kernels/pipes.py [--json] [--write]

Each mix is what a tile has to do for 512 multiply-adds, counted in docs/instruction-sets.md; the order
is even, every instruction has its operands, nothing is loaded but where the mix says so. No kernel can
be faster than its mix. From them follow the most tokens a second that a model's products leave room
for, were all else free. Needs a C++ compiler.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from asked import at_least_one
from harness import report, write

MACS = 512
"""Of every mix: 16 rows, a token, a block of 32."""

YMM = {
    "maddubs": "vpmaddubsw {b}, {a}, {t}",
    "madd": "vpmaddwd {b}, {a}, {t}",
    "add16": "vpaddw {a}, {r}, {r}",
    "add32": "vpaddd {a}, {r}, {r}",
    "sign": "vpsignb {b}, {a}, {t}",
    "convert": "vcvtdq2ps {a}, {t}",
    "mul": "vmulps {b}, {a}, {t}",
    "fma": "vfmadd231ps {b}, {a}, {r}",
    "dpbusd": "%{{vex%}} vpdpbusd {b}, {a}, {r}",
    "dpwssd": "%{{vex%}} vpdpwssd {b}, {a}, {r}",
}
ZMM = YMM | {
    "dpbusd": "vpdpbusd {b}, {a}, {r}",
    "dpbusd from memory": "vpdpbusd (%[m])%{{1to16%}}, {a}, {r}",
    "dpwssd": "vpdpwssd {b}, {a}, {r}",
    "broadcast": "vpbroadcastd (%[m]), {t}",
    "mul from memory": "vmulps (%[m])%{{1to16%}}, {a}, {t}",
}


@dataclass(frozen=True)
class Mix:
    flag: str
    """Of /proc/cpuinfo, that the CPU must have."""
    wide: bool
    counts: dict[str, int]


MIXES = {
    "avx2 u4": Mix("avx2", False, {
        "maddubs": 16, "add16": 14, "madd": 2, "add32": 2, "convert": 2, "mul": 2, "fma": 2}),
    "avx2 u4, integer scales": Mix("avx2", False, {
        "maddubs": 16, "add16": 16, "madd": 2, "convert": 2, "fma": 2}),
    "avx2 u4, minima": Mix("avx2", False, {
        "maddubs": 16, "add16": 14, "madd": 2, "convert": 2, "mul": 2, "fma": 4}),
    "avx2 s8": Mix("avx2", False, {
        "sign": 16, "maddubs": 16, "madd": 16, "add32": 14, "convert": 2, "mul": 2, "fma": 2}),
    "avx2 attention, f32": Mix("avx2", False, {"fma": 64}),
    "avx2 attention, int16": Mix("avx2", False, {"madd": 32, "add32": 32}),
    "avx512 u4 or s8, each product from memory": Mix("avx512_vnni", True, {
        "dpbusd from memory": 8, "broadcast": 1, "convert": 1, "mul from memory": 1, "fma": 1}),
    "avx512 u4 or s8, two panels": Mix("avx512_vnni", True, {
        "dpbusd": 8, "broadcast": 5, "convert": 1, "mul": 1, "fma": 1}),
    "avx512 attention, f32": Mix("avx512f", True, {"fma": 32}),
    "avx512 attention, int16": Mix("avx512_vnni", True, {"dpwssd": 16}),
}  # fmt: skip


def spread(counts: dict[str, int]) -> list[str]:
    """The instructions' names, each kind at even distances."""
    places = [((i + 0.5) / count, name) for name, count in counts.items() for i in range(count)]
    return [name for _, name in sorted(places)]


def loop(mix: Mix, copies: int = 4) -> str:
    """The mix, a few times over, as the text of an asm statement."""
    words, bank = (ZMM, "%%zmm") if mix.wide else (YMM, "%%ymm")
    lines = []
    for at, name in enumerate(spread(mix.counts) * copies):
        # 10 accumulators, so that no chain is waited for; two inputs; four registers for what nobody reads.
        fields = {"a": f"{bank}14", "b": f"{bank}15", "r": f"{bank}{at % 10}", "t": f"{bank}{10 + at % 4}"}
        lines.append(words[name].format(**fields))
    return r"\n".join(lines)


def program(names: list[str]) -> str:
    """C++ that prints, of a copy of each mix, the cycles (median of many rounds) and seconds (the least)."""
    saved = ", ".join(f'"xmm{i}"' for i in range(16))
    cases = "\n".join(
        f"case {i}: for (int i = 0; i < n; i++) "
        f'__asm__ volatile("{loop(MIXES[name])}" : : [m] "r"(memory) : {saved}); return;'
        for i, name in enumerate(names)
    )
    return f"""
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>
static float memory[16];
static double now() {{
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}}
static void chain(int n) {{ // 20 steps that wait for each other, of a number that nobody knows: 20 cycles
    unsigned long x = 1, y = 3;
    __asm__ volatile("" : "+r"(y));
    for (int i = 0; i < n; i++) {{
        _Pragma("GCC unroll 20") // or the loop's branch takes longer than its step
        for (int j = 0; j < 20; j++) {{ x ^= y; __asm__ volatile("" : "+r"(x)); }}
    }}
}}
static void run(int mix, int n) {{
    switch (mix) {{
{cases}
    }}
}}
static double clock_now() {{
    const double begin = now();
    chain(2000);
    return 20 * 2000 / (now() - begin);
}}
int main() {{
    for (int mix = 0; mix < {len(names)}; mix++) {{
        std::vector<double> cycles;
        double best = 1e9;
        for (int round = 0; round < 400; round++) {{
            const double before = clock_now(), begin = now();
            run(mix, 500);
            const double seconds = (now() - begin) / (500 * 4);
            cycles.push_back(seconds * std::max(before, clock_now())); // the clock may change between rounds
            best = std::min(best, seconds);
        }}
        std::sort(cycles.begin(), cycles.end());
        std::printf("%f %.15f\\n", cycles[cycles.size() / 2], best);
    }}
}}
"""


@dataclass(frozen=True)
class Shape:
    """Multiply-adds, in millions: of a token's 4-bit and 8-bit products, and for each position it sees."""

    u4: float
    s8: float
    attention: float


SHAPES = {
    # 30 layers of 576 (9 heads on 3, feed-forward 1,536); the head has 49,152 rows of 8 bits.
    "SmolLM2, 32 streams at 160 of context": (Shape(106.2, 28.3, 30 * 2 * 576e-6), 160),
    # Of a prompt's last layer one token goes on behind attention: 3.0 million less.
    "SmolLM2, prompt of 512": (Shape(103.2, 0.0, 29 * 2 * 576e-6), 256),
    "SmolLM2, prompt of 4,096": (Shape(103.2, 0.0, 29 * 2 * 576e-6), 2048),
    # 22 layers of 2,048 (32 heads on 4, feed-forward 5,632); the head has 32,000 rows.
    "1.1B, 32 streams at 96 of context": (Shape(968.9 + 65.5, 0.0, 22 * 2 * 2048e-6), 96),
}
"""Of benchmarks/peers, with the mean context of a token."""

WAYS = {
    "avx2": ("avx2 u4", "avx2 s8", "avx2 attention, f32"),
    "avx2, integer scales and attention": ("avx2 u4, integer scales", "avx2 s8", "avx2 attention, int16"),
    "avx512": ("avx512 u4 or s8, two panels",) * 2 + ("avx512 attention, f32",),
    "avx512, integer attention": ("avx512 u4 or s8, two panels",) * 2 + ("avx512 attention, int16",),
}


def bounds(found: dict[str, dict[str, float]], cores: int) -> dict[str, dict[str, float]]:
    """Tokens a second on so many cores."""
    allowed: dict[str, dict[str, float]] = {}
    for way, (u4, s8, attention) in WAYS.items():
        if not {u4, s8, attention} <= found.keys():
            continue
        rate = {name: found[name]["gmac_per_s"] * 1e3 * cores for name in (u4, s8, attention)}
        for name, (shape, context) in SHAPES.items():
            seconds = shape.u4 / rate[u4] + shape.s8 / rate[s8] + shape.attention * context / rate[attention]
            allowed.setdefault(name, {})[way] = round(1 / seconds)
    return allowed


def measure(names: list[str]) -> dict[str, dict[str, float]]:
    with tempfile.TemporaryDirectory() as folder:
        source, binary = Path(folder, "pipes.cpp"), Path(folder, "pipes")
        source.write_text(program(names))
        subprocess.run(["c++", "-O2", "-std=c++17", str(source), "-o", str(binary)], check=True)
        lines = subprocess.run([binary], check=True, capture_output=True, text=True).stdout.splitlines()
    found = {}
    for name, line in zip(names, lines, strict=True):
        cycles, seconds = map(float, line.split())
        found[name] = {
            "cycles": round(cycles, 2),
            "mac_per_cycle": round(MACS / cycles, 1),
            "gmac_per_s": round(MACS / seconds / 1e9, 1),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cores", type=at_least_one, default=2, help="cores that a model would run on")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/pipes-*.json")
    args = parser.parse_args()
    flags = Path("/proc/cpuinfo").read_text().split()
    found = measure([name for name, mix in MIXES.items() if mix.flag in flags])
    allowed = bounds(found, args.cores)
    command = [".venv/bin/python", "benchmarks/kernels/pipes.py", *sys.argv[1:]]
    result = report("pipes", command, {"mixes": found, "cores": args.cores, "tokens_per_s": allowed})
    if args.json:
        print(json.dumps(result, indent=2))
    else:
        for name, figures in found.items():
            print(f"{name:44}" + "".join(f"  {key} {value:6.1f}" for key, value in figures.items()))
        print(f"\ntokens a second, at most, on {args.cores} cores")
        for name, ways in allowed.items():
            print(f"{name:40}" + "".join(f"  {way} {value:6.0f}" for way, value in ways.items()))
    if args.write:
        print(write(result))


if __name__ == "__main__":
    main()
