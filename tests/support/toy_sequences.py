"""A model of five tokens, and how likely it says each of all 125 sequences of three."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo import LLM, SamplingParams
from octavo.params import StructuredOutputsParams
from octavo.params.drafts import Draft
from octavo.spec import Begin
from octavo.structured import ConstraintCompiler
from support.tiny_engine import save_tiny_llama, save_words

TOKENS = 5
FIRST, LENGTH = 2, 8
"""Of LENGTH generated tokens the three from FIRST on are counted. Before them drafts were taken and refused;
after them so many may follow that no draft is cut short."""
LETTERS = "abcde"
AFTER = {"a": "bde", "b": "acd", "c": LETTERS, "d": "ae", "e": "bc"}
"""A grammar of pairs: what may follow a letter within each pair."""
PAIRS = f"({'|'.join(f'{one}[{others}]' for one, others in AFTER.items())}){{10}}"


def de_bruijn() -> list[int]:
    """A prompt in which each pair of tokens stands once, so that every lookup finds something."""
    followers = {token: list(range(TOKENS)) for token in range(TOKENS)}
    path, done = [0], list[int]()
    while path:  # Hierholzer
        if left := followers[path[-1]]:
            path.append(left.pop())
        else:
            done.append(path.pop())
    return done[::-1]


PROMPT = de_bruijn()


SHARPER = 3.0


class _Letters:
    """A tokenizer whose token i is the i-th letter; one more, which no logit stands for, ends a text."""

    vocab_size = TOKENS + 1
    stop_token_ids = (TOKENS,)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [LETTERS.index(letter) for letter in text]

    def token_bytes(self, token_id: int) -> bytes:
        return b"<end>" if token_id == TOKENS else LETTERS[token_id].encode()

    def is_special(self, token_id: int) -> bool:
        return token_id == TOKENS


@cache
def asked(kind: str) -> SamplingParams:
    """What a request asks for, by a name of KINDS."""
    plain = SamplingParams(temperature=1.0, max_tokens=LENGTH)
    if kind == "grammar":
        compiler = ConstraintCompiler(_Letters())
        return compiler.compile(plain.replace(structured_outputs=StructuredOutputsParams(regex=PAIRS)))
    return plain.replace(**KINDS[kind])


KINDS: dict[str, dict[str, Any]] = {
    "cool": {"temperature": 0.7},
    "hot": {"temperature": 1.3},
    "top_p": {"top_p": 0.9},
    "penalties": {"presence_penalty": 0.6, "frequency_penalty": 0.5},
    "grammar": {},
}


def save_toy(folder: Path, sharper: float = SHARPER) -> Path:
    """The model. What ends its texts is none of its tokens. Its heads look at few tokens, so that a wrong key
    shows."""
    from safetensors.torch import load_file, save_file

    save_words(save_tiny_llama(folder, TOKENS), TOKENS)
    weights = load_file(folder / "model.safetensors")
    for name, weight in weights.items():
        if any(part in name for part in ("q_proj", "k_proj", "o_proj")):
            weight *= sharper
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    for name in ("config.json", "generation_config.json"):
        config = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(config | {"eos_token_id": TOKENS}))
    return folder


class Expected:
    """Chances of sequences, from the model's own log-probabilities after each beginning.

    Args:
        llm: without drafts.
    """

    def __init__(self, llm: LLM) -> None:
        begun = [b for length in range(FIRST + 3) for b in itertools.product(range(TOKENS), repeat=length)]
        asking = SamplingParams(temperature=0, max_tokens=1, logprobs=TOKENS)
        outputs = llm.generate([[*PROMPT, *one] for one in begun], asking, use_tqdm=False)
        self._scores: dict[tuple[int, ...], npt.NDArray[np.float64]] = {}
        for one, output in zip(begun, outputs, strict=True):
            scores = output.outputs[0].logprobs
            assert scores is not None
            self._scores[one] = np.array([scores[0][token].logprob for token in range(TOKENS)])

    def chances(self, kind: str) -> npt.NDArray[np.float64]:
        """[125]: of tokens FIRST to FIRST + 2, the first of them counting 25."""
        found = np.zeros((TOKENS,) * 3)
        for tokens in itertools.product(range(TOKENS), repeat=FIRST + 3):
            steps = (self._next(kind, tokens[:i])[tokens[i]] for i in range(len(tokens)))
            found[tokens[FIRST:]] += math.prod(steps)
        return found.reshape(-1)

    @cache  # noqa: B019 - as long as the test's module
    def _next(self, kind: str, output: tuple[int, ...]) -> npt.NDArray[np.float64]:
        params, z = asked(kind), self._scores[output].copy()
        for token in output:
            z[token] -= params.frequency_penalty
        for token in set(output):
            z[token] -= params.presence_penalty
        if kind == "grammar" and len(output) % 2:
            z[[i for i, letter in enumerate(LETTERS) if letter not in AFTER[LETTERS[output[-1]]]]] = -np.inf
        p = np.exp((z - z.max()) / params.temperature)
        p /= p.sum()
        order = np.argsort(-p)
        before = np.cumsum(p[order]) - p[order]
        p[order[before >= params.top_p]] = 0
        return p / p.sum()


def counted(llm: LLM, kind: str, trials: int) -> npt.NDArray[np.int64]:
    """[125]: how often an engine has said each sequence, in so many answers.

    A quarter of them are a crowd that lacks pages: requests are preempted, and drafts are short. Then one
    request after the other has its pages to itself, and drafts are as long as they can be.
    """
    n = 8
    wanted = [asked(kind).replace(n=n, seed=seed) for seed in range(trials // n)]
    crowds = [wanted[: len(wanted) // 4], *([one] for one in wanted[len(wanted) // 4 :])]
    outputs = [
        output for crowd in crowds for output in llm.generate([PROMPT] * len(crowd), crowd, use_tqdm=False)
    ]
    answers = np.array([answer.token_ids for output in outputs for answer in output.outputs])
    assert answers.shape == (trials // n * n, LENGTH)
    first, second, third = answers[:, FIRST : FIRST + 3].T
    return np.bincount((first * TOKENS + second) * TOKENS + third, minlength=TOKENS**3)


DRAFTER = np.random.default_rng(5).dirichlet(np.ones(TOKENS) * 0.7, TOKENS)
"""[last token, next token]: what a drafter believes that knows nothing of the model."""


class Drawing:
    """A proposer whose drafts are drawn from DRAFTER, by chance of their own, and say so.

    Args:
        parents: of a draft's tokens; as many of them as are wanted are drafted.

    Attributes:
        again: a sibling may be drawn once more, which q does not say: a mistake.
    """

    nbytes = 0
    again = False

    def __init__(self, parents: Sequence[int]) -> None:
        self._parents, self._rng, self._last = parents, random.Random(3), dict[int, int]()

    def start(self, row: int, begin: Begin) -> None:
        self._last[row] = begin.tokens[-1]

    def remove(self, row: int) -> None:
        self._last.pop(row, None)

    def observe(self, row: int, tokens: Sequence[int]) -> None:
        self._last[row] = tokens[-1]

    def reset(self) -> None:
        pass

    def propose(self, most: Mapping[int, int]) -> dict[int, Draft]:
        return {row: self._draft(self._last[row]).first(count) for row, count in most.items() if count}

    def _draft(self, last: int) -> Draft:
        tokens: list[int] = []
        q = np.zeros((len(self._parents), TOKENS))
        for child, parent in enumerate(self._parents):
            whole = DRAFTER[last if parent < 0 else tokens[parent]]
            q[child] = whole
            q[child, [tokens[i] for i in range(child) if self._parents[i] == parent]] = 0
            q[child] /= q[child].sum()
            weights = whole if self.again else q[child]
            tokens.append(self._rng.choices(range(TOKENS), weights)[0])
        return Draft(tuple(tokens), tuple(self._parents), q=q)


CHAIN, TREE = (-1, 0, 1), (-1, -1, -1, 0, 1, 2, 4)
SHAPES: dict[str, Callable[[], Drawing]] = {"chain": lambda: Drawing(CHAIN), "tree": lambda: Drawing(TREE)}
