"""Texts that are programs: chat templates, and grammars of every kind."""

from __future__ import annotations

import json
import random
import re
import resource
import zlib
from collections.abc import Sequence
from typing import Any

from octavo.confined import Confined, JobKilledError
from octavo.errors import InvalidRequestError
from octavo.params import StructuredOutputsParams
from octavo.structured import compiler, trial
from octavo.structured.compiler import PATIENT_S, TRIAL_BYTES
from octavo.structured.grammar_source import cache_key
from octavo.tokenizer.chat import ChatTemplate
from support.chat_templates import PLAIN, QUADRATIC, UNPROVEN
from support.fuzz.changes import spoil, spoil_json, spoil_text
from support.fuzz.target import Wrong, guarded
from support.grammars import ByteTokenizer

CHATS: tuple[Any, ...] = (
    [{"role": "system", "content": " be brief "}, {"role": "user", "content": "hi\n"}],
    [{"role": "user", "content": "a" * 300}, {"role": "assistant", "content": "</think> b"}] * 4,
    [{"role": "user", "content": "x"},
     {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f",
     "arguments": {"a": [1]}}}]},
     {"role": "tool", "content": "5"}],
)  # fmt: skip
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
RENDERED_APART = 500
"""One in so many of the templates that are not proven harmless is rendered in a process of its own."""


class Templates:
    """A template is compiled; what is proven harmless is rendered here, so within the limits."""

    base_s, byte_s, memory = 1.0, 1e-5, 256 << 20  # six chats of at most 32 MiB each: 0.1 s is right for one
    words = (
        "{{", "}}", "{%", "%}", "{%- ", " -%}", "{#", "#}", "for m in messages", "endfor", "if ", "endif",
        "else",
        "elif ", "set x = ", "macro f(a)", "endmacro", "f(m)", "messages", "m.content", "m['role']", "[0]",
        "[1:]",
        "[::-1]", "|trim", "|tojson", "|length", "|upper", "|join(',')", "|map(attribute='role')", "|list",
        "|replace('a','b')", "|selectattr('role')", "|int", "|default('')", "|string", "namespace(i=0)",
        "ns.i",
        "loop.index0", "loop.last", "loop.first", "loop.previtem", "is defined", "is string", "is none",
        " and ",
        " or ", " not ", " in ", " ~ ", " + ", " * ", " ** ", " % ", " // ", "range(9)", "range(99999)",
        "tools",
        "raise_exception('x')", "strftime_now('%d')", "add_generation_prompt", "bos_token", "generation",
        "endgeneration", "break", "continue", "'%9999d'", ".split('a')", ".items()", ".__class__",
        "cycler(1)",
        "joiner()", "dict(a=1)", "true", "none", "10**9", "recursive", "call f()", "endcall", "filter upper",
        "endfilter", "block a", "endblock", "include 'x'", "import 'x' as y", "extends 'x'", "do x",
        "with a=1",
    )  # fmt: skip

    expressions = (
        "m", "messages", "messages[0]", "messages[0].content", "messages[-1]['content']", "messages|length",
        "messages|map(attribute='content')|list", "messages[1:]", "m.content|trim", "m.content[:3]", "m.role",
        "m.content.split('a')[0]", "m.content.split('a')", "m.tool_calls", "x", "ns.i", "ns",
        "namespace(i=0)",
        "(x ~ x)", "(m.content + m.content)", "m.content * 3", "[x, m]", "{'a': x}", "m|tojson",
        "tools|tojson",
        "tools|tojson(indent=2)", "x|replace('a', 'aa')", "m.content|upper", "loop.index0", "loop.length",
        "loop",
        "messages|selectattr('role', 'equalto', 'user')|list", "m.items()", "m|dictsort",
        "m.content is string",
        "f(m)", "f(x)", "1", "'a'", "none", "true", "(1 if m else x)", "range(9)", "m.content|join(',')",
        "messages|first", "messages|last", "x|list", "strftime_now('%d')", "bos_token", "not x", "x == m",
        "x in m",
    )  # fmt: skip
    statements = (
        "{{ E }}", "{% set x = E %}", "{% set ns = namespace(i=E) %}", "{% set ns.i = E %}",
        "{% if E %}a{% endif %}",
        "{% for m in E %}{{ m }}{% endfor %}", "{% for m in messages %}{{ E }}{% endfor %}",
        "{% set x = x ~ x %}",
        "{% for a, b in E %}{{ a }}{% endfor %}", "{% macro f(m) %}{{ E }}{% endmacro %}", "{{ f(E) }}",
        "{% for m in messages %}{% set ns.i = E %}{% endfor %}", "{% set x, y = E, E %}", "{{ E | E }}",
        "{% for m in messages if E %}{{ m.content }}{% else %}b{% endfor %}",
        "{% generation %}{{ E }}{% endgeneration %}",
        "{% call f(E) %}c{% endcall %}", "{% filter upper %}{{ E }}{% endfilter %}",
        "{% with m = E %}{{ m }}{% endwith %}",
        "{% for m in messages recursive %}{{ loop(E) }}{% endfor %}", "{% set x %}{{ E }}{% endset %}",
    )  # fmt: skip

    def __init__(self) -> None:
        found = {**PLAIN, **QUADRATIC, **UNPROVEN}
        self.seeds = [text.encode() for text in found.values() if len(text) < 4000]

    def change(self, rng: random.Random, seed: bytes, others: Sequence[bytes]) -> bytes:
        text = seed.decode(errors="replace")
        if rng.random() < 0.7:
            for _ in range(rng.choice((1, 1, 2, 3))):
                text = self._sound(rng, text)
        else:
            text = spoil_text(rng, text, self.words, [other.decode(errors="replace") for other in others])
        return text.encode(errors="replace")[:20_000]

    def _sound(self, rng: random.Random, text: str) -> str:
        """A change that mostly leaves a template that is right."""
        statements = [match.end() for match in re.finditer(r"[%}]}|\A", text)]
        names = [match.span() for match in re.finditer(r"\b(?:m|messages|x|ns\.i|tools)\b[\w.\[\]']*", text)]
        if names and rng.random() < 0.5:
            begin, end = rng.choice(names)
            return text[:begin] + rng.choice(self.expressions) + text[end:]
        at, inner = rng.choice(statements), rng.choice(self.statements)
        return text[:at] + inner.replace("E", rng.choice(self.expressions)) + text[at:]

    def run(self, data: bytes) -> str:
        template = ChatTemplate(data.decode(errors="replace"), {"bos_token": "<s>", "eos_token": "</s>"})
        return guarded(self._render, template, zlib.crc32(data) % RENDERED_APART == 0)

    def _render(self, template: ChatTemplate, apart: bool) -> str:
        degree = template._degree
        if degree is None and not apart:
            return "not proven"
        found = []
        for chat in CHATS:
            for more in (
                {},
                {"tools": TOOLS, "add_generation_prompt": False, "continue_final_message": True},
            ):
                try:
                    template.render([dict(message) for message in chat], **more)
                    found.append("text")
                except InvalidRequestError:
                    found.append("refused")
        if degree is None:
            template._confined._process.close()
        return f"degree {degree}: {' '.join(found)}"


SCHEMAS: tuple[Any, ...] = (
    {"type": "object", "properties": {"a": {"type": "string", "maxLength": 9}, "b": {"type": "integer"}},
     "required": ["a"], "additionalProperties": False},
    {"type": "array", "items": {"$ref": "#/$defs/n"}, "minItems": 1, "maxItems": 4,
     "$defs": {"n": {"anyOf": [{"type": "number", "minimum": 0, "maximum": 9.5}, {"const": "x"}]}}},
    {"enum": ["a", 1, None, {"b": [2]}]},
    {"type": "string", "pattern": "^[a-z]{2,5}(-[0-9]+)?$"},
    {"type": "string", "format": "date-time"},
    {"oneOf": [{"type": "object", "properties": {"t": {"const": 1}}, "required": ["t"]}, {"type": "null"}]},
    {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 70, "multipleOf": 2}]},
    {"type": "object", "patternProperties": {"^x": {"type": "boolean"}}, "minProperties": 1},
    {"type": ["object", "array"], "prefixItems": [{"type": "string"}], "items": False},
    {"$defs": {"t": {"type": "object", "properties": {"c": {"type": "array",
    "items": {"$ref": "#/$defs/t"}}}}},
     "$ref": "#/$defs/t"},
    {"if": {"type": "string"}, "then": {"minLength": 1}, "else": {"not": {"type": "null"}}},
)  # fmt: skip
REGEXES = (
    r"[a-z]+@[a-z]+\.(com|org)", r"(\d{3}-){2}\d{4}", r"(?i)yes|no", r"\p{L}{1,20}", r"(a|b)*abb",
    r"[^\s\"]{0,30}", r"(?x) a b # c", r"\x41\u{42}", r"(a{1,10}){1,10}", r".{5}$",
)  # fmt: skip
LARKS = (
    'start: "a" | b\nb: /[0-9]+/',
    'start: expr\nexpr: term ("+" term)*\nterm: NUMBER | "(" expr ")"\nNUMBER: /\\d+/\n%ignore / /',
    'start: "{" pair ("," pair)* "}"\npair: STRING ":" STRING\nSTRING: "\\"" /[a-z]{1,8}/ "\\""',
    'start: %json {"type": "object", "properties": {"a": {"type": "integer"}}}',
    'start[capture]: x{2,4}\nx: "a".."f"\n%llguidance {}',
    'root ::= "yes" | "no" | item{1,3}\nitem ::= [a-z]+ ("," [0-9]*)? # c\n',
    'root ::= ws "(" root? ")"\nws ::= [ \\t\\n]*',
)
TAGS: tuple[Any, ...] = (
    {"type": "structural_tag", "triggers": ["<f="],
     "structures": [{"begin": "<f=a>", "schema": {"type": "object"}, "end": "</f>"}]},
    {"structures": [{"begin": "[[", "schema": {"enum": [1, 2]}, "end": "]]"},
                    {"begin": "[(", "content": {"type": "string"}, "end": ")"}], "triggers": ["[[", "[("]},
)  # fmt: skip


class Grammars:
    """JSON schemas, regular expressions, Lark and GBNF, structural tags, choices: as the trial tries them."""

    base_s, byte_s, memory = 0.25, 1e-4, 512 << 20
    schema_words = (
        "type", "object", "array", "string", "integer", "number", "boolean", "null", "properties", "required",
        "items", "prefixItems", "additionalProperties", "patternProperties", "enum", "const", "anyOf",
        "oneOf",
        "allOf", "not", "if", "then", "else", "$ref", "$defs", "#", "#/$defs/n", "#/properties/a", "minimum",
        "maximum", "exclusiveMinimum", "multipleOf", "minLength", "maxLength", "pattern", "format", "uuid",
        "date",
        "minItems", "maxItems", "uniqueItems", "minProperties", "maxProperties", "propertyNames", "contains",
        "dependentRequired", "x-guidance", "$id", "$anchor", "$dynamicRef", "definitions", "unevaluatedItems",
        "^a*$", "(?=a)", "begin", "end", "schema", "triggers", "structures",
    )  # fmt: skip
    text_words = (
        "(", ")", "[", "]", "{", "}", "*", "+", "?", "|", "{2,5}", "{1000}", "{,9}", "(?x)", "(?i)", "(?:",
        "(?=",
        "\\d", "\\w", "\\b", "\\1", "\\p{L}", "[^a]", "[a-z]", "^", "$", ".", "start: ", "root ::= ", "\n",
        "::=",
        ": ", " | ", '"a"', "/a+/", "/[0-9]{1,9}/", "%json {", "%ignore", "%import common.INT", "%regex {",
        "%lark",
        "<|x|>", "<[1]>", "[capture]", "[lazy]", "[max_tokens=3]", "# c", "// c", "~3", "..", "&", "~",
        "\\u{41}",
        "'a'i", "@x", "%llguidance", "expr", "item",
    )  # fmt: skip

    def __init__(self) -> None:
        kinds: list[tuple[str, Any]] = [("json", schema) for schema in SCHEMAS]
        kinds += [("json", True), ("json_object", True), ("choice", ["yes", "no", "maybe é"])]
        kinds += [("regex", text) for text in REGEXES] + [("grammar", text) for text in LARKS]
        kinds += [("structural_tag", tag) for tag in TAGS]
        self.seeds = [json.dumps({"kind": kind, "value": value}).encode() for kind, value in kinds]
        self._try = trial.prepare(_vocabulary())

    def change(self, rng: random.Random, seed: bytes, others: Sequence[bytes]) -> bytes:
        try:
            job = json.loads(seed)
            near = [json.loads(other) for other in others]
        except (ValueError, RecursionError):
            return spoil(rng, seed, others)
        value = job["value"]
        if isinstance(value, str) and rng.random() < 0.9:
            texts = [each["value"] for each in near if isinstance(each["value"], str)]
            job["value"] = spoil_text(rng, value, self.text_words, texts)
        else:
            found = spoil_json(rng, {"v": value}, self.schema_words, [each["value"] for each in near])
            job["value"] = found.get("v") if isinstance(found, dict) else found
        if rng.random() < 0.05:
            job["kind"] = rng.choice(("json", "regex", "choice", "grammar", "structural_tag"))
        return json.dumps(job).encode()

    def run(self, data: bytes) -> str:
        return guarded(lambda: _told(self._try(_job(data))))


def _vocabulary() -> dict[str, Any]:
    tokens = ByteTokenizer()
    spelled = [tokens.token_bytes(i).decode("latin-1") for i in range(tokens.vocab_size)]
    special = [i for i in range(tokens.vocab_size) if tokens.is_special(i)]
    return {"tokens": spelled, "special": special, "ends": list(tokens.stop_token_ids)}


def _job(data: bytes) -> Any:
    """What the compiler would put on trial.

    Raises:
        InvalidRequestError: what it would refuse before.
    """
    job = json.loads(data)
    cache_key(StructuredOutputsParams(**{job["kind"]: job["value"]}))
    return job


def _told(tried: Any) -> str:
    if not isinstance(tried["source"], str) or tried["bytes"] < 0:
        raise Wrong(f"the trial says {tried!r:.200}")
    return "compiled"


def contained(data: bytes) -> str:
    """A grammar whose worker was ended: the same in the process that a server tries it in."""
    confined = Confined(compiler.TRIALS, _vocabulary, TRIAL_BYTES)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        return guarded(lambda: _told(confined.run(_job(data), PATIENT_S)))
    except JobKilledError:
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        if grown > 64 << 10:
            raise Wrong(f"{grown} KiB are taken outside of the trial") from None
        return "killed on trial"
    finally:
        confined.close()
