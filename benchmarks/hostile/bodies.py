"""The worst bodies of a given size that each parser of a request knows, and small ones that ask for much."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

FULL = (4 << 20) - 1024
"""Bytes, just below the server's --max-body-bytes."""
Body = tuple[str, bytes]
"""The path, and what is sent there."""

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
MESSAGES, EMBEDDINGS = "/v1/messages", "/v1/embeddings"
USER = '[{"role":"user","content":"a"}]'


def filled(before: str, item: str, after: str, size: int) -> bytes:
    """A list of as many equal items as fit."""
    count = max(1, (size - len(before) - len(after)) // (len(item.encode()) + 1))
    return (before + ",".join([item] * count) + after).encode()


def text_of(before: str, piece: str, after: str, size: int) -> bytes:
    """A string of as many equal pieces as fit; the piece is what stands in the JSON."""
    count = max(1, (size - len(before) - len(after)) // len(piece.encode()))
    return (before + piece * count + after).encode()


def names(before: str, after: str, size: int) -> bytes:
    """An object of as many different names as fit."""
    count = max(1, (size - len(before) - len(after)) // 12)
    return (before + ",".join(f'"n{number:06}":0' for number in range(count)) + after).encode()


def deep(before: str, after: str, size: int) -> bytes:
    """A list in a list, as deep as fits."""
    count = (size - len(before) - len(after)) // 2
    return (before + "[" * count + "]" * count + after).encode()


def texts(before: str, after: str, size: int, characters: int = 19_900) -> bytes:
    """Many prompts, each below what is encoded on a thread."""
    item = json.dumps(("lorem ipsum dolor sit amet " * (characters // 27 + 1))[:characters])
    return filled(before, item, after, size)


def chain(size: int) -> str:
    """A GBNF grammar in which each rule leads to the next."""
    count = max(1, size // 22)
    rules = "".join(f"a{number} ::= a{number + 1}\n" for number in range(count))
    return f'root ::= a0\n{rules}a{count} ::= "x"\n'


Filled = Callable[[int], bytes]
WORST: dict[str, tuple[str, Filled]] = {
    # JSON itself
    "lists that never end": (COMPLETIONS, lambda n: b"[" * n),
    "a list as deep as can be": (COMPLETIONS, lambda n: deep('{"prompt":', "}", n)),
    "white space": (COMPLETIONS, lambda n: b" " * n),
    "binary": (COMPLETIONS, lambda n: b"\x00\xff" * (n // 2)),
    "escapes": (COMPLETIONS, lambda n: text_of('{"prompt":"', "\\u0000", '"}', n)),
    "lone surrogates": (COMPLETIONS, lambda n: text_of('{"prompt":"', "\\ud800", '"}', n)),
    "long numbers": (COMPLETIONS, lambda n: filled('{"prompt":[', "9" * 5000, "]}", n)),
    "infinite numbers": (COMPLETIONS, lambda n: filled('{"prompt":[', "1e999", "]}", n)),
    "unknown names": (COMPLETIONS, lambda n: names("{", "}", n)),
    "one name again and again": (COMPLETIONS, lambda n: filled("{", '"prompt":"a"', "}", n)),
    # lists of a wrong type, or of too many members
    "ids that are text": ("/detokenize", lambda n: filled('{"tokens":[', '""', "]}", n)),
    "too many ids": ("/detokenize", lambda n: filled('{"tokens":[', "1", "]}", n)),
    "prompts that are empty lists": (COMPLETIONS, lambda n: filled('{"prompt":[', "[]", "]}", n)),
    "prompts of one id": (COMPLETIONS, lambda n: filled('{"prompt":[', "[1]", "]}", n)),
    "stop strings": (COMPLETIONS, lambda n: filled('{"prompt":"a","stop":[', '"a"', "]}", n)),
    "stop ids": (COMPLETIONS, lambda n: filled('{"prompt":"a","stop_token_ids":[', "1", "]}", n)),
    "allowed ids": (COMPLETIONS, lambda n: filled('{"prompt":"a","allowed_token_ids":[', "1", "]}", n)),
    "bad words": (COMPLETIONS, lambda n: filled('{"prompt":"a","bad_words":[', '"a"', "]}", n)),
    "biases": (COMPLETIONS, lambda n: names('{"prompt":"a","logit_bias":{', "}}", n)),
    "messages that are empty": (CHAT, lambda n: filled('{"messages":[', "{}", "]}", n)),
    "many messages": (CHAT, lambda n: filled('{"max_tokens":1,"messages":[', USER[1:-1], "]}", n)),
    "parts of a message": (CHAT, lambda n: filled(
        '{"max_tokens":1,"messages":[{"role":"user","content":[', '{"type":"text","text":"a"}', "]}]}", n)),
    "names in a message": (CHAT, lambda n: names(
        '{"max_tokens":1,"messages":[{"role":"user","content":"a",', "}]}", n)),
    "arguments as deep as can be": (CHAT, lambda n: deep(
        '{"max_tokens":1,"messages":[{"role":"assistant","content":"","tool_calls":[{"id":"a",'
        '"type":"function","function":{"name":"f","arguments":"', '"}}]}]}', n)),
    "template variables": (CHAT, lambda n: filled(
        f'{{"max_tokens":1,"messages":{USER},"chat_template_kwargs":{{"a":[', "0", "]}}", n)),
    "tools": (CHAT, lambda n: filled(
        f'{{"max_tokens":1,"messages":{USER},"tools":[', '{"type":"function","function":{"name":"f"}}',
        "]}", n)),
    "a tool's schema": (CHAT, lambda n: filled(
        f'{{"max_tokens":1,"messages":{USER},"tools":[{{"type":"function","function":{{"name":"f",'
        '"strict":true,"parameters":{"enum":[', '"a"', "]}}}]}", n)),
    "input items": (RESPONSES, lambda n: filled('{"max_output_tokens":16,"input":[', "{}", "]}", n)),
    "function calls in a row": (RESPONSES, lambda n: filled(
        '{"max_output_tokens":16,"input":[', '{"type":"function_call","name":"a"}', "]}", n)),
    "metadata": (RESPONSES, lambda n: filled(
        '{"max_output_tokens":16,"input":"a","metadata":{"a":[', "[]", "]}}", n)),
    "content blocks": (MESSAGES, lambda n: filled(
        '{"max_tokens":1,"messages":[{"role":"user","content":[', '{"type":"text","text":"a"}', "]}]}", n)),
    "system blocks": (MESSAGES, lambda n: filled(
        f'{{"max_tokens":1,"messages":{USER},"system":[', '{"type":"text","text":"a"}', "]}", n)),
    # texts
    "one text": (COMPLETIONS, lambda n: text_of('{"max_tokens":1,"prompt":"', "lorem ipsum ", '"}', n)),
    "one text, cut": (COMPLETIONS, lambda n: text_of(
        '{"max_tokens":1,"truncate_prompt_tokens":5,"prompt":"', "@#", '"}', n)),
    "one word, cut": (COMPLETIONS, lambda n: text_of(
        '{"max_tokens":1,"truncate_prompt_tokens":5,"prompt":"', "a", '"}', n)),
    "letters of four bytes, cut": (COMPLETIONS, lambda n: text_of(
        '{"max_tokens":1,"truncate_prompt_tokens":5,"prompt":"', "\U0001f600\u0301", '"}', n)),
    "texts, refused late": (COMPLETIONS, lambda n: texts(
        '{"max_tokens":1,"logit_bias":{"99999999":1},"prompt":[', "]}", n)),
    "texts to embed, cut": (EMBEDDINGS, lambda n: texts('{"truncate_prompt_tokens":1,"input":[', "]}", n)),
    "token strings": ("/tokenize", lambda n: text_of('{"return_token_strs":true,"prompt":"', "@#", '"}', n)),
    # grammars
    "a schema of values": (COMPLETIONS, lambda n: filled(
        '{"prompt":"a","max_tokens":1,"structured_outputs":{"json":{"enum":[', '"a"', "]}}}", n)),
    "a schema of names": (COMPLETIONS, lambda n: names(
        '{"prompt":"a","max_tokens":1,"structured_outputs":{"json":{"properties":{', "}}}}", n)),
    "a schema as deep as can be": (COMPLETIONS, lambda n: deep(
        '{"prompt":"a","max_tokens":1,"structured_outputs":{"json":{"a":', "}}}", n)),
    "choices": (COMPLETIONS, lambda n: filled(
        '{"prompt":"a","max_tokens":1,"structured_outputs":{"choice":[', '"ab"', "]}}", n)),
    "a regular expression": (COMPLETIONS, lambda n: text_of(
        '{"prompt":"a","max_tokens":1,"structured_outputs":{"regex":"', "(a|b)", '"}}', n)),
    "a grammar of many rules": (COMPLETIONS, lambda n: json.dumps(
        {"prompt": "a", "max_tokens": 1, "structured_outputs": {"grammar": chain(n - 200_000)}}).encode()),
    "structural tags": (COMPLETIONS, lambda n: filled(
        '{"prompt":"a","max_tokens":1,"structured_outputs":{"structural_tag":{"triggers":["<f"],'
        '"structures":[', '{"begin":"<f>","schema":{},"end":""}', "]}}}", n)),
}  # fmt: skip
"""By name: the path, and the body of so many bytes."""

NESTED = "(a{1000}){1000}"
GRAMMARS: dict[str, dict[str, Any]] = {
    "regex": {"regex": NESTED},
    "structural tag": {"structural_tag": {
        "structures": [{"begin": "<f>", "schema": {"type": "string", "pattern": NESTED}, "end": ""}],
        "triggers": ["<f"]}},
    "lark": {"grammar": f"start: /{NESTED}/"},
    "json in lark": {"grammar": 'start: %json {"type":"string","pattern":"^' + NESTED + '$"}'},
    "counts of rules": {"grammar": 'start: a{900}\na: b{900}\nb: "x"{900}\n'},
    "verbose": {"regex": "(?x)(a {1000}) {1000}"},
    "spaces": {"regex": "(a{ 1000 }){ 1000 }"},
    "sequence": {"regex": "(a{100}){200}" * 700},
    "ambiguous": {"regex": "(.{0,9000}x){0,2}.{0,9000}y"},
    "intersection": {"grammar": "start: A\nA: /(.*a.{40})/ & /(.*b.{41})/ & /(.*c.{42})/\n"},
    "a long string": {"json": {"type": "string", "minLength": 4294967295}},
    "a long list": {"json": {"type": "array", "minItems": 4294967295, "items": {"type": "null"}}},
    "rules in a chain": {"grammar": chain(190_000)},
    "a comment": {"grammar": 'root ::= "a"\n#' + "x" * 190_000 + "\n"},
}  # fmt: skip
"""Small grammars that ask for hours, or for all memory."""

TEMPLATES = {
    "loops in loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}a",
    "a text that doubles": '{% set n = namespace(x="a") %}{% for i in range(40) %}'
    "{% set n.x = n.x ~ n.x %}{% endfor %}",
    "a wide number": '{{ "%999999999d"|format(1) }}',
    "a wide line": '{{ "a"|center(10**9) }}',
    "a long list": "{{ [1]|batch(10**9, 0)|list|length }}",
}
"""Chat templates, which come with a model."""


def _tag(schema: dict[str, Any]) -> dict[str, Any]:
    return {
        "structural_tag": {"structures": [{"begin": "<f>", "schema": schema, "end": ""}], "triggers": ["<f"]}
    }


HUGE: Any = 10**400
ODD_FIELDS: dict[str, dict[str, Any]] = {
    "a tag that is true": {"structured_outputs": {"structural_tag": "true"}},
    "a minimum of 401 digits": {"structured_outputs": {"json": {"type": "number", "minimum": HUGE}}},
    "a length of 401 digits": {"structured_outputs": {"json": {"type": "string", "minLength": HUGE}}},
    "a reference to nowhere": {
        "structured_outputs": _tag({"$id": "http://a/", "properties": {"x": {"$ref": "//["}}})
    },
    "a minimum in a tag": {"structured_outputs": _tag({"type": "number", "minimum": HUGE})},
    "a priority of 401 digits": {"priority": HUGE},
    "a priority before all others": {"priority": -2147483647},
    "a penalty of nearly nothing": {"repetition_penalty": 1e-320},
    "a temperature of nearly nothing": {"temperature": 1e-320},
    "a prompt of surrogates": {"prompt": "\ud800"},
}
ODD: dict[str, tuple[str, dict[str, Any]]] = {
    name: (COMPLETIONS, {"prompt": "a", "max_tokens": 1, **fields}) for name, fields in ODD_FIELDS.items()
}
ODD["arguments 700 deep"] = (
    CHAT,
    {"max_tokens": 1, "messages": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "a", "type": "function", "function":
         {"name": "f", "arguments": '{"a":' + "[" * 700 + "]" * 700 + "}"}}]},
        {"role": "tool", "tool_call_id": "a", "content": "b"}]},
)  # fmt: skip
"""Small bodies that ask for what cannot be: each is answered, or refused by a 400."""

MALFORMED: dict[str, bytes] = {
    "binary": b"\0\1\2\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "two lengths": b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    "a negative length": b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
    "a length and chunks": b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a long head": b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 100_000,
    "a bad chunk": b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
    b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    "a version to come": b"GET / HTTP/9.9\r\nHost: a\r\n\r\n",
    "an upgrade": b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
    b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    "folded lines": b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: a\r\n b\r\n\r\n",
    "bare newlines": b"GET /health HTTP/1.1\nHost: localhost\n\n",
}
"""What is no HTTP, or just so."""

HELLO: Any = [{"role": "user", "content": "Say hello."}]
SMALL: dict[str, Any] = {"prompt": "Say hello.", "max_tokens": 4}
PERSON = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": PERSON}}]
ORDINARY: tuple[tuple[str, dict[str, Any]], ...] = (
    (COMPLETIONS, SMALL),
    (COMPLETIONS, {**SMALL, "stream": True, "stop": ["x"], "temperature": 0.7, "top_p": 0.9, "seed": 1}),
    (COMPLETIONS, {**SMALL, "n": 32, "logprobs": 20, "echo": True}),
    (COMPLETIONS, {**SMALL, "prompt": ["a", "b"], "prompt_logprobs": 20}),
    (COMPLETIONS, {**SMALL, "bad_words": ["hello "], "logit_bias": {"7": 1}, "allowed_token_ids": [7, 8]}),
    (COMPLETIONS, {**SMALL, "n": 4, "use_beam_search": True}),
    *((COMPLETIONS, {**SMALL, "structured_outputs": wanted}) for wanted in (
        {"json": PERSON}, {"regex": "[ab]+"}, {"choice": ["yes", "no"]}, {"grammar": 'root ::= "a"+'})),
    (CHAT, {"messages": HELLO, "max_tokens": 4}),
    (CHAT, {"messages": HELLO, "max_tokens": 4, "stream": True, "top_logprobs": 5, "logprobs": True}),
    (CHAT, {"messages": HELLO, "max_tokens": 4, "tools": TOOLS}),
    (CHAT, {"messages": HELLO, "max_tokens": 16, "tools": TOOLS, "tool_choice": "required"}),
    (RESPONSES, {"input": "Say hello.", "max_output_tokens": 16}),
    (MESSAGES, {"messages": HELLO, "max_tokens": 4}),
    (EMBEDDINGS, {"input": ["hello"] * 64}),
    ("/tokenize", {"prompt": "Say hello.", "return_token_strs": True}),
    ("/detokenize", {"tokens": [7, 8]}),
    ("/detokenize", {"tokens": "a word"}),
    ("/v1/nowhere", {}),
)  # fmt: skip
"""One small request of each kind that people send, two mistakes among them."""
