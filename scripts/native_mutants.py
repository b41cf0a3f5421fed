"""Mistakes in the bounds of greedy logits (csrc/isa/screen.inl, csrc/head_op.cpp), in the walk of drafts
(csrc/verify.cpp), in where its nodes move (csrc/kv.cpp), in what drafts are looked up in
(csrc/text_index.cpp), in how many of their tokens are verified (csrc/draft_policy.cpp, acceptance.cpp,
step_costs.cpp) and in which rows of attention nobody reads (csrc/attention_op.cpp), which tests must notice.

    PATH=.venv-build/bin:$PATH .venv-test/bin/python scripts/native_mutants.py [--builder PYTHON] [--only N,N]

The extension is built apart from the one in use, in build/native-mutants: once as it is, where the tests must
pass, then with one mistake at a time, where a test must fail by an assertion (minutes each: every instruction
set is compiled anew). Exits with 1 where one lives.

Not among them are terms that no test can miss, because what covers the starts of sums covers them too: the
parts of 1e-4 in screen_row and panel_bounds, and `share`, for the roundings of f32 sums, which are a thousand
times smaller than what starts may lose. Nor are two of verify.cpp that no test
tells yet: the slots of sliding pages, and which rows of a step with greedy ones need all logits.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "native-mutants"
TESTS = "tests/kernels/test_cpu_head.py"
MOVE_TESTS = "tests/kernels/test_move_slots.py"
WALK_TESTS = "tests/runtime/test_speculation.py"
TEXT_TESTS = "tests/spec/test_text_index.py"
POLICY_TESTS = "tests/spec/test_native_policy.py"
PROGRAM_TESTS = "tests/kernels/test_cpu_program.py"


class Mutant(NamedTuple):
    """In a file under csrc: what it says in one place, and what it says wrongly instead; and who notices."""

    file: str
    right: str
    wrong: str
    tests: str = TESTS


SCREEN, HEAD, WALK, KV = "isa/screen.inl", "head_op.cpp", "verify.cpp", "kv.cpp"
ATTENTION = "attention_op.cpp"
TEXT = "text_index.cpp"
POLICY, ACCEPTANCE, COSTS = "draft_policy.cpp", "acceptance.cpp", "step_costs.cpp"
MOVED = "for (const KVView& v : layers_) move_slot(v, from, to);"
ACCEPTED = "level < drafts[i].size() && drafts[i][level] == token"
START = "8.0f / 127 * __builtin_sqrtf(starts[row])"
SHARE = "__builtin_sqrt(whole) * kShare"
LOW = "low = __builtin_sqrtf(all.low[row])"
MUTANTS = (
    Mutant(SCREEN, START, "0.0f * __builtin_sqrtf(starts[row])"),
    Mutant(SCREEN, START, "4.0f / 127 * __builtin_sqrtf(starts[row])"),
    Mutant(SCREEN, START, "-8.0f / 127 * __builtin_sqrtf(starts[row])"),
    Mutant(SCREEN, SHARE, "0.0"),
    Mutant(SCREEN, SHARE, "0.5 * __builtin_sqrt(whole) * kShare"),
    Mutant(SCREEN, SHARE, "__builtin_sqrt(whole) * -kShare"),
    Mutant(SCREEN, "? both : others / kShare)", "? both : both)"),
    Mutant(SCREEN, "? both : others / kShare)", "? both : 0.5f * others / kShare)"),
    Mutant(SCREEN, LOW, "low = 0.0f"),
    Mutant(SCREEN, LOW, "low = 0.5f * __builtin_sqrtf(all.low[row])"),
    Mutant(SCREEN, LOW, "low = -__builtin_sqrtf(all.low[row])"),
    Mutant(SCREEN, "(__builtin_sqrt(rest) +", "(0.5 * __builtin_sqrt(rest) +"),
    Mutant(SCREEN, "= all.along[row] * 0.125f", "= all.along[row] * -0.125f"),
    Mutant(SCREEN, "rmax(product - error)", "rmax(product + error)"),
    Mutant(
        SCREEN,
        "if (n >= kPanel) store(rows, product + error)",
        "if (n >= kPanel) store(rows, product - error)",
    ),
    Mutant(HEAD, "logit * 0.125f - 1e-36f", "logit * 0.13f - 1e-36f"),
    Mutant(SCREEN, "a.wholes && last == tiles.count", "a.wholes && first == 0"),
    Mutant(
        SCREEN,
        "dot_cut_panel<true, false>(panel, low, units",
        "dot_cut_panel<false, false>(panel, low, units",
    ),
    # a wrong token is accepted, a right one is not, the last one is not, or they are cut off
    Mutant(WALK, ACCEPTED, "level < drafts[i].size()", WALK_TESTS),
    Mutant(WALK, ACCEPTED, "level < drafts[i].size() && drafts[i][level] >= token", WALK_TESTS),
    Mutant(WALK, ACCEPTED, "level + 1 < drafts[i].size() && drafts[i][level] == token", WALK_TESTS),
    Mutant(WALK, ACCEPTED, "level < 1 && level < drafts[i].size() && drafts[i][level] == token", WALK_TESTS),
    # the draft's token is kept in the place of what was drawn, one is skipped, or the walk reads a neighbour
    Mutant(
        WALK, "if (token >= 0 || level == 0) drawn[i]", "if (token >= 0 && level != 1) drawn[i]", WALK_TESTS
    ),
    Mutant(WALK, "choices[static_cast<size_t>(query_start_[i]) + level];",
           "choices[static_cast<size_t>(query_start_[i])];", WALK_TESTS),
    Mutant(WALK, "* rows_.tokens_width + length++] = token;", "* rows_.tokens_width + length] = token;",
           WALK_TESTS),
    Mutant(WALK, "drafts[i][static_cast<size_t>(at - starts[i] - 1)];", "drafts[i][0];", WALK_TESTS),
    # keys and values at a wrong slot, a wrong position, a wrong context, a draw by a wrong position
    Mutant(WALK, "slots_.push_back(rows_.pages[page] * size + at % size);",
           "slots_.push_back(rows_.pages[page] * size + starts[i] % size);", WALK_TESTS),
    Mutant(WALK, "rows_.pages_width + at / size;", "rows_.pages_width + starts[i] / size;", WALK_TESTS),
    Mutant(WALK, "node_positions_.push_back(at);", "node_positions_.push_back(starts[i]);", WALK_TESTS),
    Mutant(WALK, "context_lens_.push_back(end);", "context_lens_.push_back(starts[i] + 1);", WALK_TESTS),
    Mutant(WALK, "which_positions_.push_back(starts[i] + 1 + level);",
           "which_positions_.push_back(starts[i] + 1);", WALK_TESTS),
    Mutant(WALK, "const int32_t node = query_start_[i] + level;", "const int32_t node = query_start_[i];",
           WALK_TESTS),
    Mutant(WALK, "const int64_t width = last / size + 1;", "const int64_t width = last / size;", WALK_TESTS),
    # a tree's nodes move to a wrong slot, in one layer alone, or without their values
    Mutant(KV, MOVED, "for (const KVView& v : layers_) move_slot(v, to, from);", MOVE_TESTS),
    Mutant(KV, MOVED, "move_slot(layers_.front(), from, to);", MOVE_TESTS),
    Mutant(KV, "if (!v.latent) move_side(", "if (v.latent) move_side(", MOVE_TESTS),
    # a text's oldest tokens are held still, a run is hashed wrongly, a place is lost, or is none
    Mutant(TEXT, "    first_ = std::max(first_, count_ - size_);\n", "", TEXT_TESTS),
    Mutant(TEXT, "++length, power *= kPrime)", "++length)", TEXT_TESTS),
    Mutant(TEXT, "levels_[i].earlier[here] = latest;", "levels_[i].earlier[here] = 0;", TEXT_TESTS),
    Mutant(TEXT, "if (place == count_) place = before(place);", "", TEXT_TESTS),
    Mutant(TEXT, " && this->token(place) != kSeparator)", ")", TEXT_TESTS),
    Mutant(TEXT, "if (length >= level.length && this->token", "if (this->token", TEXT_TESTS),
    Mutant(TEXT, "found[static_cast<size_t>(i - period)]", "found.back()", TEXT_TESTS),
    Mutant(TEXT, "if (token == kSeparator) break;", "", TEXT_TESTS),
    Mutant(TEXT, "count_ = first_ = end - kept;", "count_ = first_ = 0;", TEXT_TESTS),
    Mutant(TEXT, "&& found.empty();)", ";)", TEXT_TESTS),
    # a place is followed too far, by a neighbour, or from before its tokens
    Mutant(TEXT, "(place < end ? at(place) : tokens", "(place <= end ? at(place) : tokens", TEXT_TESTS),
    Mutant(TEXT, "tokens[static_cast<size_t>(place - end)]) != token", "token) != token", TEXT_TESTS),
    Mutant(TEXT, "return place > first_ && this->token(place) != kSeparator ?",
           "return place > first_ ?", TEXT_TESTS),
    Mutant(TEXT, "return place > first_ && ", "return place > 0 && ", TEXT_TESTS),
    # a policy gains, loses, asks, rests or forgets otherwise, or for another row
    Mutant(POLICY, "rate * (1 + kGain + doubt + known[0].error)", "rate * (1 + kGain + doubt)", POLICY_TESTS),
    Mutant(POLICY, "variance += error * error - before * before;",
           "variance += error * error;", POLICY_TESTS),
    Mutant(POLICY, "offers[each.offer].position + ++grown", "offers[0].position + ++grown", POLICY_TESTS),
    Mutant(POLICY, "each.mean *= worth, each.less *= worth;", "each.mean *= worth;", POLICY_TESTS),
    Mutant(POLICY, "count_first(best.least_at);", "", POLICY_TESTS),
    Mutant(POLICY, "        to_lose_ -= best.least_lost;\n", "", POLICY_TESTS),
    Mutant(POLICY, "to_ask_ += kPaid * best.gained;", "", POLICY_TESTS),
    Mutant(POLICY, "std::min(state.failed / kFailed, kSeldom - 1)",
           "std::min(state.failed / kFailed, kSeldom)", POLICY_TESTS),
    Mutant(POLICY, "if (least_skip != std::numeric_limits<int>::max()) steps",
           "if (false) steps", POLICY_TESTS),
    Mutant(POLICY, "acceptance_.observe(row, tokens) > 1)",
           "acceptance_.observe(row, tokens) > 0)", POLICY_TESTS),
    Mutant(POLICY, "std::min(steps / kForgotten, 1.0)", "1 / kForgotten", POLICY_TESTS),
    Mutant(POLICY, "    const double ahead = usual();", "    const double ahead = 0;", POLICY_TESTS),
    Mutant(ACCEPTANCE, "seen = std::min(seen, kRowPrior) + times;", "seen += times;", POLICY_TESTS),
    Mutant(ACCEPTANCE, "        if (most < kSmallest) break;\n", "", POLICY_TESTS),
    Mutant(ACCEPTANCE, "add(followed.hits, kRowMemory);", "add(followed.hits, kAllMemory);", POLICY_TESTS),
    Mutant(ACCEPTANCE, "draft.parents[i] == node && ", "", POLICY_TESTS),
    Mutant(COSTS, "    size.last = step_;\n", "", POLICY_TESTS),
    Mutant(COSTS, "if (size.count > kFast) drift_ += beyond / kFast;",
           "drift_ += beyond / kFast;", POLICY_TESTS),
    Mutant(COSTS, "++tokens, ++sampled;", "++tokens;", POLICY_TESTS),
    # rows that are read are left out, at either end of an item, or other rows are taken for them
    Mutant(ATTENTION, "sampled_[static_cast<size_t>(b.sampled[r])] = true",
           "sampled_[static_cast<size_t>(r)] = true", PROGRAM_TESTS),
    Mutant(ATTENTION, "!sampled_[static_cast<size_t>(t0)]) t0++",
           "sampled_[static_cast<size_t>(t0)]) t0++", PROGRAM_TESTS),
    Mutant(ATTENTION, "!sampled_[static_cast<size_t>(t1 - 1)]) t1--", "t1 - 1 > t0) t1--", PROGRAM_TESTS),
)  # fmt: skip


def prepare() -> None:
    """Sources, package and tests, as they are."""
    for name in ("source", "src", "tests"):
        shutil.rmtree(FOLDER / name, ignore_errors=True)
    for name in ("csrc", "CMakeLists.txt"):
        (FOLDER / "source").mkdir(parents=True, exist_ok=True)
        copy(ROOT / name, FOLDER / "source" / name)
    copy(ROOT / "src" / "octavo", FOLDER / "src" / "octavo")
    for extension in (FOLDER / "src").rglob("_native*.so"):
        extension.unlink()
    copy(ROOT / "tests", FOLDER / "tests")
    copy(ROOT / "pyproject.toml", FOLDER / "pyproject.toml")
    for mutant in MUTANTS:  # a run that was killed has left a mistake's object, newer than its source
        (FOLDER / "source" / "csrc" / mutant.file).touch()


def copy(source: Path, target: Path) -> None:
    """With their times, by which the build knows what changed."""
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copy2(source, target)


def configure(builder: str) -> None:
    output = FOLDER / "src" / "octavo" / "kernels"
    settings = {"CMAKE_BUILD_TYPE": "Release", "Python_EXECUTABLE": builder, "OCTAVO_OUTPUT": output}
    flags = [f"-D{name}={value}" for name, value in settings.items()]
    command = ["cmake", "-S", f"{FOLDER}/source", "-B", f"{FOLDER}/cmake", "-G", "Ninja", *flags]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def build() -> None:
    subprocess.run(["cmake", "--build", FOLDER / "cmake"], check=True, stdout=subprocess.DEVNULL)


def tests(*paths: str) -> tuple[int, str]:
    """pytest's exit status and what it said of these."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *paths]
    environment = {**os.environ, "PYTHONPATH": f"{FOLDER}/tests/support/checkout:{FOLDER}/src"}
    done = subprocess.run(command, cwd=FOLDER, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


def dies(mutant: Mutant) -> str | None:
    """The test that asserts what is wrong, or None. The source is put back."""
    path = FOLDER / "source" / "csrc" / mutant.file
    text = path.read_text(encoding="utf-8")
    if text.count(mutant.right) != 1:
        raise SystemExit(f"{mutant.file} says {mutant.right!r} {text.count(mutant.right)} times")
    try:
        path.write_text(text.replace(mutant.right, mutant.wrong), encoding="utf-8")
        build()
        status, said = tests(mutant.tests)
    finally:
        path.write_text(text, encoding="utf-8")
    lines = said.splitlines()
    if status == 1 and any(line.endswith(": AssertionError") for line in lines):
        return next(line for line in lines if line.startswith("FAILED ")).split(" - ")[0]
    return None


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="native_mutants", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--builder", default=sys.executable, help="a Python that has nanobind")
    parser.add_argument("--only", help="some of the mutants, by number from 0")
    options = parser.parse_args(arguments)
    chosen = range(len(MUTANTS)) if options.only is None else [int(word) for word in options.only.split(",")]
    prepare()
    configure(options.builder)
    build()
    status, said = tests(*sorted({MUTANTS[number].tests for number in chosen}))
    if status:
        print(said)
        raise SystemExit("the tests fail without a mistake")
    alive = 0
    for number in chosen:
        began, mutant = time.monotonic(), MUTANTS[number]
        by = dies(mutant)
        alive += by is None
        what = f"{number:2} {mutant.file}: {mutant.wrong} for {mutant.right}"
        print(f"{what}\n   {by or 'LIVES'} ({time.monotonic() - began:.0f} s)", flush=True)
    print(f"{len(chosen)} mutants, {alive} live")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
