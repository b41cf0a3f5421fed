"""Whether two lists contradict each other is told without putting them together, and alike."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from octavo.structured.schema.outline import EVERYTHING, Outline, outline
from octavo.structured.schema.refs import Schemas

NAMES = st.sampled_from("abc")
VALUES = st.sampled_from(["x", "y", 1, True, None])
MEMBERS = st.fixed_dictionaries(
    {},
    optional={
        "const": VALUES,
        "enum": st.lists(VALUES, min_size=1, max_size=3),
        "type": st.sampled_from(["string", "integer", "object"]),
    },
)
FIXED = st.fixed_dictionaries({"const": VALUES})
NEEDED = st.fixed_dictionaries(  # of these many have a property without a value in common
    {
        "type": st.just("object"),
        "required": st.just(["a"]),
        "properties": st.fixed_dictionaries({"a": FIXED}, optional={"b": FIXED}),
    }
)
LOOSE = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["object", "string", ["object", "null"]]),
        "required": st.lists(NAMES, min_size=1, max_size=2, unique=True),
        "properties": st.dictionaries(NAMES, MEMBERS, max_size=3),
        "additionalProperties": st.just(False),
        "enum": st.lists(VALUES, min_size=1, max_size=3),
    },
)


PARTS = st.one_of(LOOSE, NEEDED)


def outlines(parts: list[dict[str, Any]]) -> list[Outline]:
    """Of each part as it holds, and of each of its words violated."""
    schemas = Schemas({"allOf": parts})
    found: list[Outline | None] = [EVERYTHING]
    for part in parts:
        number = schemas.number(part)
        node = schemas[number]
        found.append(outline(schemas, [(number, word, True) for word in node]))
        for word in node:
            if word == "required" and len(node[word]) > 1:
                continue  # of one name when it is violated
            found.append(outline(schemas, [(number, word, False)]))
    return [each for each in found if each is not None]


@given(st.lists(PARTS, min_size=2, max_size=3))
def test_what_contradicts_meets_nothing(parts: list[dict[str, Any]]) -> None:
    found = outlines(parts)
    pairs = [both for one in found for other in found if (both := one.meet(other)) is not None]
    for one in [*found, *pairs[:8]]:
        for other in found:
            assert one.meets(other) is (one.meet(other) is not None)


def test_a_property_without_a_value_contradicts_objects_alone() -> None:
    one: dict[str, Any] = {"type": "object", "required": ["a"], "properties": {"a": {"const": 1}}}
    other: dict[str, Any] = {"properties": {"a": {"const": 2}}}
    loose = {word: value for word, value in one.items() if word != "type"}
    schemas = Schemas({"allOf": [one, other, loose]})

    def of(part: dict[str, Any]) -> Outline:
        number = schemas.number(part)
        found = outline(schemas, [(number, word, True) for word in schemas[number]])
        assert found is not None
        return found

    assert not of(one).meets(of(other))
    assert of(loose).meets(of(other))
