"""How fast KV pages can be read in the order of one stream's attention, with and without its arithmetic.

    .venv/bin/python benchmarks/kernels/page_reads.py [--context 8000] [--json] [--write]

Two threads share the pages of each layer and head. Arms, in turns:

    together      the same bytes from end to end
    pages         in attention's order, all layers of a page together: a head's part of a page here, one there
    runs          the same order, pages as the KV cache has them: of 32 that follow each other (--run) a
                  head's parts lie end to end
    ..., N        N multiply-adds of 16-bit pairs with each load, as N query heads of a KV head ask for

Each arm asks 0, 1, 2 and 4 pages ahead, and its fastest way counts: of "together" to whichever cache, of the
others to the first and to the second, apart. No attention kernel over such pages reads faster than its
arms: softmax, scales and merging come on top.
Needs a C++ compiler and AVX2.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from asked import at_least_one
from harness import report, usable_cores, write

PAGE = 16
"""Positions of a page."""
TOGETHER = ("together, cache 1", "together, cache 2")

SOURCE = r"""
#include <immintrin.h>
#include <sys/mman.h>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

struct Read {
    const uint8_t* base;
    long pages, layers, heads, head_bytes, run, chunk, ahead;

    const uint8_t* at(long page, long layer, long head) const {
        const long run_bytes = run * layers * heads * head_bytes;
        return base + page / run * run_bytes + ((layer * heads + head) * run + page % run) * head_bytes;
    }
};

// WORK is known to the compiler: a loop of unknown length would keep its sums in memory, and wait for these.
template <int HINT, int WORK> uint64_t read(const Read& r, long thread, long threads) {
    __m256i sum[4] = {}, factors[3] = {};
    for (int w = 0; w < 3; w++) factors[w] = _mm256_set1_epi16(static_cast<short>(3 + w));
    const long begin = r.pages * thread / threads, end = r.pages * (thread + 1) / threads;
    const auto read_head = [&](const uint8_t* at, const uint8_t* later) {
        for (long i = 0; i < r.chunk; i += 64) {
            if (r.ahead) __builtin_prefetch(later + i, 0, HINT ? 2 : 3);
            for (int half = 0; half < 2; half++) {
                const __m256i x = _mm256_load_si256(reinterpret_cast<const __m256i*>(at + i + 32 * half));
                if (!WORK) sum[half] = _mm256_xor_si256(sum[half], x);
#pragma GCC unroll 4
                for (int w = 0; w < WORK; w++) {
                    __m256i& mine = sum[2 * half + w % 2];
                    mine = _mm256_add_epi32(mine, _mm256_madd_epi16(x, factors[w]));
                }
            }
        }
    };
    for (long layer = 0; layer < r.layers; layer++)
        for (long head = 0; head < r.heads; head++)
            for (long page = begin; page < end; page++)
                read_head(r.at(page, layer, head), r.at(page + r.ahead, layer, head));
    const __m256i low = _mm256_add_epi32(sum[0], sum[1]), high = _mm256_add_epi32(sum[2], sum[3]);
    return static_cast<uint64_t>(_mm256_extract_epi64(_mm256_add_epi32(low, high), 0));
}

volatile uint64_t sink;

using Reader = uint64_t (*)(const Read&, long, long);

template <int HINT> constexpr Reader READERS[] = {read<HINT, 0>, read<HINT, 1>, read<HINT, 2>, read<HINT, 3>};

double seconds(const Read& r, int work, int hint, long threads) {
    const Reader reader = hint ? READERS<1>[work] : READERS<0>[work];
    const auto job = [&](long t) { sink = reader(r, t, threads); };
    const auto begin = std::chrono::steady_clock::now();
    std::vector<std::thread> others;
    for (long thread = 1; thread < threads; thread++) others.emplace_back(job, thread);
    job(0);
    for (auto& other : others) other.join();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

uint8_t* huge_pages(size_t bytes) {
    const size_t huge = size_t{2} << 20;
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void* mapped = mmap(nullptr, bytes + huge, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (mapped == MAP_FAILED) exit(1);
    const auto base = (reinterpret_cast<uintptr_t>(mapped) + huge - 1) / huge * huge;
    madvise(reinterpret_cast<void*>(base), bytes, MADV_HUGEPAGE);
    // Written, so that none shares a page of zeros.
    return static_cast<uint8_t*>(memset(reinterpret_cast<void*>(base), 1, bytes));
}

// layers heads head_bytes pages threads rounds run: lines "arm run cache bytes-a-second"
int main(int, char** given) {
    const long layers = atol(given[1]), heads = atol(given[2]), head = atol(given[3]), pages = atol(given[4]);
    const long threads = atol(given[5]), rounds = atol(given[6]), long_run = atol(given[7]);
    const long page = layers * heads * head;
    const uint8_t* base = huge_pages(static_cast<size_t>(page * (pages + 2 * long_run + 4)));
    for (long round = 0; round < rounds; round++)
        for (int arm = -1; arm < 4; arm++)
            for (const long run : {1L, long_run}) {
                if (arm < 0 && run > 1) continue;
                for (int hint = 0; hint < 2; hint++) {
                    double best = 0;
                    for (long ahead : {0, 1, 2, 4}) {
                        Read r{base, pages, layers, heads, head, run, head, ahead};
                        if (arm < 0) r.layers = r.heads = 1, r.head_bytes = r.chunk = page;
                        const double took = seconds(r, std::max(arm, 0), hint, threads);
                        best = std::max(best, static_cast<double>(page * pages) / took);
                    }
                    printf("%d %ld %d %.6g\n", arm, run, hint + 1, best);
                }
            }
}
"""


def name_of(arm: int, run: int, cache: int) -> str:
    if arm < 0:
        return TOGETHER[cache - 1]
    return ("runs" if run > 1 else "pages") + (f", {arm} multiply-adds" if arm else "") + f", cache {cache}"


def rates(lines: Sequence[str]) -> dict[str, list[float]]:
    """Arm -> its rounds, bytes a second."""
    found: dict[str, list[float]] = {}
    for line in lines:
        *arm, rate = line.split()
        found.setdefault(name_of(*map(int, arm)), []).append(float(rate))
    ways = [found.pop(way) for way in TOGETHER]
    return {"together": [max(round) for round in zip(*ways, strict=True)], **found}


def shares(found: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Of each arm, the median over the rounds of its rate over that of the same round's "together"."""
    whole = found["together"]
    return {
        arm: statistics.median(rate / base for rate, base in zip(rounds, whole, strict=True))
        for arm, rounds in found.items()
    }


def measure(options: argparse.Namespace) -> dict[str, list[float]]:
    # Keys and values of a page's positions in 16 bits, and a scale of each.
    head_bytes = 2 * (PAGE * options.dim * 2 + PAGE * 4)
    pages = options.context // PAGE
    given = (options.layers, options.heads, head_bytes, pages, options.threads, options.rounds, options.run)
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder, "reads.cpp"), Path(folder, "reads")
        source.write_text(SOURCE)
        subprocess.run(
            ["g++", "-O2", "-std=c++17", "-mavx2", "-pthread", str(source), "-o", str(program)], check=True
        )
        said = subprocess.run([str(program), *map(str, given)], check=True, capture_output=True, text=True)
    return rates(said.stdout.splitlines())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--layers", type=at_least_one, default=30, help="SmolLM2 has %(default)s")
    parser.add_argument(
        "--heads", type=at_least_one, default=3, help="of keys and values; SmolLM2 has %(default)s"
    )
    parser.add_argument("--dim", type=at_least_one, default=64, help="of a head")
    parser.add_argument("--context", type=at_least_one, default=8000)
    parser.add_argument(
        "--run", type=at_least_one, default=32, help="pages of a run, at least 2; SmolLM2 has %(default)s"
    )
    parser.add_argument("--threads", type=at_least_one, default=usable_cores())
    parser.add_argument("--rounds", type=at_least_one, default=9)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/page_reads-*.json")
    options = parser.parse_args()
    found = measure(options)
    settings = {name: value for name, value in vars(options).items() if name not in ("json", "write")}
    result = report("page_reads", sys.argv, {"settings": settings, "rates": found, "shares": shares(found)})
    if options.json:
        print(json.dumps(result, indent=2))
    else:
        for arm, share in shares(found).items():
            print(f"{arm:34}{statistics.median(found[arm]) / 1e9:7.1f} GB/s{share:8.1%}")
    if options.write:
        print(f"wrote {write(result)}", file=sys.stderr)


if __name__ == "__main__":
    main()
