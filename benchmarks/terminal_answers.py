"""Whether answers under the terminal's defaults make sense: they stay in the prompt's script, and they end.

    benchmarks/terminal_answers.py mt_bench.jsonl [--model smollm2] [--seeds 5] [--transcript FILE] [--json]

The file is MT-bench's questions (JSON lines with `turns`): each first turn is asked once a seed, as
`octavo run MODEL PROMPT --seed N` asks it. An answer stays in the prompt's script where at most one letter in
a hundred is of a script that the prompt has no letter of, by Unicode's names of letters ("CYRILLIC SMALL
LETTER A"). It ends where the model ends it within the terminal's bound of tokens. --transcript keeps the
prompts and answers of seed 0, all of them.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from asked import at_least_one, tells

from octavo.cli.chat import CHAT_DEFAULTS
from octavo.errors import OctavoError
from octavo.llm import LLM
from octavo.params import SamplingParams

STRAYS = 0.01
"""The share of an answer's letters that may be of another script: a quoted word, a formula's letter."""


class Answer(NamedTuple):
    """One answer, and what is asked of it."""

    question: int
    seed: int
    tokens: int
    stays: bool
    strays: int
    ends: bool
    text: str

    @property
    def good(self) -> bool:
        return self.stays and self.ends


SAME = {
    "FULLWIDTH": "LATIN",
    "MATHEMATICAL": "LATIN",
    "MODIFIER": "",
    "FEMININE": "",
    "MASCULINE": "",
    "MICRO": "",
}
"""First words of names that are no script: the letters are variants of Latin ones, or signs."""


@functools.cache
def script(letter: str) -> str:
    """The first word of a letter's Unicode name: LATIN, CYRILLIC, HEBREW, CJK; empty of what is no letter."""
    word = unicodedata.name(letter, "").split(" ")[0] if letter.isalpha() else ""
    return SAME.get(word, word)


def scripts(text: str) -> Counter[str]:
    """How many letters of each script a text has."""
    found = Counter(map(script, text))
    found.pop("", None)
    return found


def strays(prompt: str, answer: str) -> int:
    """Letters of an answer whose script is none of the prompt's."""
    own = scripts(prompt)
    return sum(count for name, count in scripts(answer).items() if name not in own)


def first_turns(path: Path) -> dict[int, str]:
    """Each question's first turn, by the question's number."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return {int(row.get("question_id", at)): str(row["turns"][0]) for at, row in enumerate(rows)}


def answers(llm: LLM, prompts: dict[int, str], seeds: Iterable[int]) -> list[Answer]:
    """Of every prompt with every seed, under the terminal's defaults."""
    asked = [(question, seed) for seed in seeds for question in prompts]
    outputs = llm.chat(
        [[{"role": "user", "content": prompts[question]}] for question, _ in asked],
        [SamplingParams(**CHAT_DEFAULTS, seed=seed) for _, seed in asked],
        use_tqdm=sys.stderr.isatty(),
    )
    found = []
    for (question, seed), output in zip(asked, outputs, strict=True):
        (said,) = output.outputs
        others = strays(prompts[question], said.text)
        stays = others <= STRAYS * sum(scripts(said.text).values())
        ends = said.finish_reason == "stop"
        found.append(Answer(question, seed, len(said.token_ids), stays, others, ends, said.text))
    return found


def summary(found: Sequence[Answer]) -> dict[str, Any]:
    """Counts, shares, and those that fail by question and seed."""
    good = sum(each.good for each in found)
    return {
        "answers": len(found),
        "good": good,
        "share": good / len(found),
        "stay": sum(each.stays for each in found),
        "without_a_stray": sum(not each.strays for each in found),
        "end": sum(each.ends for each in found),
        "defaults": CHAT_DEFAULTS,
        "tokens": sum(each.tokens for each in found),
        "others": [each._asdict() | {"text": each.text[-200:]} for each in found if not each.good],
    }


def transcript(prompts: dict[int, str], found: Iterable[Answer]) -> str:
    """Prompts and answers of seed 0, one after another."""
    blocks = []
    for each in found:
        if each.seed == 0:
            end = "" if each.ends else f"\n[cut after {each.tokens} tokens]"
            blocks.append(f">>> {each.question}: {prompts[each.question]}\n\n{each.text}{end}\n")
    return ("\n" + "-" * 80 + "\n\n").join(blocks)


@tells(OctavoError)
def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="terminal_answers", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("file", type=Path, help="MT-bench's questions")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--seeds", type=at_least_one, default=5)
    parser.add_argument("--limit", type=at_least_one, default=None, help="questions, from the first")
    parser.add_argument("--streams", type=at_least_one, default=32)
    parser.add_argument("--threads", type=at_least_one, default=None)
    parser.add_argument("--transcript", type=Path, default=None)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    prompts = dict(list(first_turns(options.file).items())[: options.limit])
    llm = LLM(options.model, threads=options.threads, max_num_seqs=options.streams)
    found = answers(llm, prompts, range(options.seeds))
    said = summary(found)
    if options.transcript is not None:
        options.transcript.write_text(transcript(prompts, found), encoding="utf-8")
    if options.json:
        print(json.dumps(said))
    else:
        print("{good} of {answers} answers: {stay} stay in the script, {end} end".format(**said))
        for each in said["others"]:
            print("question {question}, seed {seed}: {strays} strays, ends: {ends}".format(**each))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
