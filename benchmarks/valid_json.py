"""How many answers of a hot model are valid under a schema of bounded strings and arrays: all should be.

    .venv/bin/python benchmarks/valid_json.py [--runs 500] [--temperature 1.5] [--json]

The schema bounds every string, array and number, and the grammar bounds white space, so each answer ends by
itself: max_tokens is above the longest one. An answer counts if it ended with "stop", is
JSON, and validates (by jsonschema, which .venv-test has; without it, only JSON is checked, and said so).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

from asked import at_least_one, not_negative, tells

from octavo import LLM, SamplingParams
from octavo.errors import OctavoError
from octavo.params import RequestOutput, StructuredOutputsParams

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 8}, "maxItems": 3},
        "mood": {"enum": ["calm", "glad", "tired"]},
        "home": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 12}, "floor": {"enum": [0, 1, 2]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
# A token is a byte at least. Characters of strings: 56 of up to six bytes (escaped); white space: 36 places
# of up to 17; names, numbers and what stands between them: under 150.
MAX_TOKENS = 1200
TOPICS = ["a baker", "a pilot", "a cat that writes", "my neighbour", "the last king", "a robot"]


def verdict(output: RequestOutput) -> str:
    """ "valid", or what is wrong."""
    (answer,) = output.outputs
    if answer.finish_reason != "stop":
        return f"ended with {answer.finish_reason}"
    try:
        value = json.loads(answer.text)
    except ValueError:
        return "not JSON"
    return "valid" if _validates(value) else "against the schema"


def _validates(value: Any) -> bool:
    if importlib.util.find_spec("jsonschema") is None:
        return True
    jsonschema = importlib.import_module("jsonschema")
    return bool(jsonschema.Draft202012Validator(SCHEMA).is_valid(value))


def verdicts(llm: LLM, runs: int, temperature: float, progress: bool = False) -> Counter[str]:
    """Verdicts on so many answers; the seed of the i-th is i."""
    prompts = [f"Describe {TOPICS[i % len(TOPICS)]} as JSON." for i in range(runs)]
    wanted = StructuredOutputsParams(json=SCHEMA)
    params = [
        SamplingParams(temperature=temperature, max_tokens=MAX_TOKENS, seed=i, structured_outputs=wanted)
        for i in range(runs)
    ]
    return Counter(map(verdict, llm.generate(prompts, params, use_tqdm=progress)))


@tells(OctavoError)
def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="valid_json", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--runs", type=at_least_one, default=500)
    parser.add_argument("--temperature", type=not_negative, default=1.5)
    parser.add_argument("--streams", type=at_least_one, default=32)
    parser.add_argument("--threads", type=at_least_one, default=None)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    llm = LLM(
        options.model, threads=options.threads, max_model_len=MAX_TOKENS + 64, max_num_seqs=options.streams
    )
    found = verdicts(llm, options.runs, options.temperature, sys.stderr.isatty())
    valid = found.pop("valid", 0)
    judge = "jsonschema" if importlib.util.find_spec("jsonschema") else "json only"
    if options.json:
        print(json.dumps({"valid": valid, "runs": options.runs, "judge": judge, "others": dict(found)}))
    else:
        print(f"{valid} of {options.runs} valid at temperature {options.temperature:g} (judged by {judge})")
        for what, count in found.most_common():
            print(f"{count} {what}")
    return 0 if valid == options.runs else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
