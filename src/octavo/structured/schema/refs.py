"""The subschemas of a JSON schema by number, and what their $refs mean."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any
from urllib.parse import unquote, urljoin

from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.params.structured import PARAM
from octavo.structured.regex_size import Repetitions
from octavo.structured.schema.drafts import NEWEST, draft_of, identifier, read
from octavo.structured.schema.equality import frozen

MAX_DEPTH = 64
MAX_SUBSCHEMAS = 5_000
MAX_WORK = 100_000
"""Steps of working a schema out, each of some microseconds of the interpreter."""

# Where subschemas stand: in the keyword itself, in a list, in an object by name.
SINGLE = ("additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then",
          "unevaluatedItems", "unevaluatedProperties")  # fmt: skip
LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_NAMES = frozenset(["$anchor", "$comment", "$defs", "$id", "$schema", "definitions"])  # they demand nothing
MAPS = ("$defs", "definitions", "dependentSchemas", "patternProperties", "properties")
_ORDER = {word: at for at, word in enumerate([*SINGLE, *LISTS, *MAPS])}
"""Words that hold subschemas, in the order in which these are numbered."""
_ANCHORS = frozenset(["$anchor", "$dynamicAnchor"])
_NOTED = frozenset([*_ORDER, *_ANCHORS])
"""Words that _add() looks at; most subschemas have none."""
_NAMED = frozenset(["$schema", "$id", "id"])
_SINGLE, _LISTS, _MAPS, _REFERENCES = map(frozenset, (SINGLE, LISTS, MAPS, ("$ref", "$dynamicRef")))


class TooLargeError(UnsupportedError):
    """With fewer alternatives it may be small enough."""


class Schemas:
    """Numbers every subschema; 0 is the whole.

    Raises:
        InvalidRequestError: something that is no schema. UnsupportedError: a draft that cannot be followed.
    """

    def __init__(self, schema: Any) -> None:
        self._nodes: list[Any] = []
        self._own: dict[int, Any] = {}  # as their draft alone reads them, where that differs
        self._given: list[Any] = []  # as they stand in the whole, which pointers are about
        self._bases: list[tuple[str, int]] = []  # (URI, draft)
        self._number: dict[int, int] = {}  # by identity: the schema is ours while we work on it
        self._places: dict[str, int] = {}  # absolute URI with anchor -> number
        self._targets: dict[tuple[str, str], int] = {}  # of (base, reference)
        self._dynamic: dict[str, list[int]] = {}  # the places of each $dynamicAnchor
        self._values: dict[int, frozenset[Any]] = {}
        self._alike: dict[int, int] = {}  # the first subschema that says the same
        self._first: dict[Any, int] = {}
        self._demands: dict[int, frozenset[tuple[int, bool]]] = {}
        self._repetitions = Repetitions()
        self._left = MAX_WORK
        self._parts = 0
        self._add(schema, ("", NEWEST), 0)

    @property
    def exact(self) -> Schemas:
        """The same as each draft alone reads it (see drafts.py): what is concluded from violations."""
        return _Exact(self) if self._own else self

    def spend(self, steps: int) -> None:
        """Count work.

        Raises:
            TooLargeError: it is more than MAX_WORK in all.
        """
        self._left -= steps
        if self._left < 0:
            raise TooLargeError("the JSON schema has too many combinations of its parts", PARAM)

    def __len__(self) -> int:
        """How many subschemas of the whole are known."""
        return self._parts

    def __getitem__(self, number: int) -> Any:
        return self._nodes[number]

    def demand(self, schema: Any) -> frozenset[tuple[int, bool]]:
        """A subschema that stands in one as a conjunction of its own; one that allows all is none."""
        number = self.number(schema)
        found = self._demands.get(number)
        if found is None:
            node = self._nodes[number]
            found = frozenset() if node is True or node == {} else frozenset([(number, True)])
            self._demands[number] = found
        return found

    def number(self, schema: Any) -> int:
        """The number of a subschema that stands in one, or of the first one that says the same."""
        if schema is True or schema is False:
            return self._plain(schema)
        number = self._number[id(schema)]
        found = self._alike.get(number)
        return self._as_first(number) if found is None else found

    def _as_first(self, number: int) -> int:
        found = self._alike.get(number)
        if found is None:
            node = self._nodes[number]
            plain = type(node) is dict and len(node) == 1 and type(node.get("type")) is str
            if plain and number not in self._own:  # most say no more, and lead nowhere
                found = self._alike[number] = self._first.setdefault((("type", node["type"]),), number)
                return found
            self._alike[number] = number  # of whoever comes back here by a $ref
            says = ("boolean", node) if isinstance(node, bool) else self._says(number)
            if len(says) == 1 and says[0][0] == "$ref" and isinstance(says[0][1], int):
                found = self._as_first(says[0][1])
            else:
                found = self._first.setdefault(says, number)
            self._alike[number] = found
        return found

    def _says(self, number: int) -> tuple[Any, ...]:
        """What a subschema says, by word; equal for those that mean the same."""
        node, own = self._nodes[number], self._own.get(number)
        found: list[tuple[Any, ...]] = [] if own is None else [("own", tuple(own))]
        for word, value in node.items():
            if word in _NAMES:
                continue
            if isinstance(value, str) and word not in _REFERENCES:  # as most are: the names of types
                found.append((word, value))
            elif word in _SINGLE:
                found.append((word, self.number(value)))
            elif word in _LISTS:
                found.append((word, *map(self.number, value)))
            elif word in _MAPS:  # their order is the answer's
                found.append((word, *[(name, self.number(part)) for name, part in value.items()]))
            elif word in _REFERENCES:
                found.append((word, self._meant(number, value), word == "$ref" or number))
            else:
                found.append((word, frozen(value)))
        if len(found) > 1:
            found.sort(key=itemgetter(0))
        return tuple(found)

    def _meant(self, number: int, reference: Any) -> Any:
        try:
            return self.target(number, reference)
        except InvalidRequestError:  # it is told where something depends on it
            return frozen(reference), self._bases[number]

    def values(self, number: int) -> frozenset[Any]:
        """The enum of a subschema, each value frozen()."""
        if number not in self._values:
            self._values[number] = frozenset(map(frozen, self._nodes[number]["enum"]))
        return self._values[number]

    def synthetic(self, schema: Any, base: int = 0) -> int:
        """A number for a schema that does not stand in the whole (its parts may)."""
        return self._as_first(self._append(schema, schema, self._bases[base]))

    def _append(self, node: Any, given: Any, base: tuple[str, int]) -> int:
        number = len(self._nodes)
        self._nodes.append(node)
        self._given.append(given)
        self._bases.append(base)
        self._number[id(node)] = self._number[id(given)] = number
        return number

    def _plain(self, value: bool) -> int:
        key = "true" if value else "false"
        if key not in self._places:
            self._places[key] = len(self._nodes)
            self._nodes.append(value)
            self._given.append(value)
            self._bases.append(("", NEWEST))
        return self._places[key]

    def target(self, number: int, reference: Any) -> int:
        """The subschema that a $ref in subschema `number` means."""
        if not isinstance(reference, str):
            raise InvalidRequestError("$ref must be a string", PARAM)
        key = self._bases[number][0], reference
        found = self._targets.get(key)
        if found is None:
            found = self._targets[key] = self._resolved(*key)
        return found

    def _resolved(self, base: str, reference: str) -> int:
        document, _, fragment = urljoin(base, reference).partition("#")
        if not fragment.startswith("/") and fragment:
            found = self._places.get(f"{document}#{fragment}")
        else:
            found = self._places.get(document)
            if found is not None and fragment:
                found = self._pointer(found, fragment)
        if found is None:
            raise UnsupportedError(f"$ref {reference[:100]!r} does not point into the schema", PARAM)
        return found

    def dynamic_target(self, number: int, reference: Any) -> int:
        """The subschema that a $dynamicRef in subschema `number` means.

        It is that of a $ref, unless that one is a $dynamicAnchor: then the outermost resource that was
        entered and has such an anchor decides. The whole schema's own is always entered first, and where
        there is only one there is no choice.

        Raises:
            UnsupportedError: it depends on the way that led to the place.
        """
        found = self.target(number, reference)
        name = reference.partition("#")[2]
        node = self._nodes[found]
        if not isinstance(node, Mapping) or node.get("$dynamicAnchor") != name:
            return found
        places = self._dynamic[name]
        outermost = [place for place in places if self._bases[place][0] == self._bases[0][0]]
        if len(places) > 1 and not outermost:
            raise UnsupportedError(
                f"$dynamicRef {reference[:100]!r} with several $dynamicAnchors is not supported",
                PARAM,
            )
        return (outermost or places)[0]

    def _pointer(self, start: int, pointer: str) -> int | None:
        node, at = self._given[start], start
        for part in pointer.split("/")[1:]:
            key = unquote(part).replace("~1", "/").replace("~0", "~")
            if isinstance(node, Mapping) and key in node:
                node = node[key]
            elif isinstance(node, list) and key.isdigit() and int(key) < len(node):
                node = node[int(key)]
            else:
                return None
            at = self._number.get(id(node), at)
        if isinstance(node, bool):
            return self._plain(node)
        if isinstance(node, Mapping) and id(node) not in self._number:
            self._add(node, self._bases[at], 0)  # it stands in an annotation
        return self._number.get(id(node))

    def _add(self, given: Any, base: tuple[str, int], depth: int) -> None:
        if depth > MAX_DEPTH:
            raise InvalidRequestError(f"the JSON schema is nested deeper than {MAX_DEPTH}", PARAM)
        if len(self._nodes) > MAX_SUBSCHEMAS:
            raise InvalidRequestError(f"the JSON schema has more than {MAX_SUBSCHEMAS} parts", PARAM)
        if given is True or given is False:
            if not self._nodes:
                self._append(given, given, base)
            return
        if not isinstance(given, (dict, Mapping)):  # asking for a dict is faster, and it is one
            raise InvalidRequestError(
                f"a JSON schema must be an object or a boolean, not {_name(given)}", PARAM
            )
        self._parts += 1
        if not self._nodes or not _NAMED.isdisjoint(given):
            draft = draft_of(given, base[1])
            schema, own = read(given, draft, self._repetitions)
            base = self._enter(given, base[0], draft), draft
        else:
            schema, own = read(given, base[1], self._repetitions)
        number = self._append(schema, given, base)
        if own is not schema:
            self._own[number] = own
            self._number[id(own)] = number
        if number == 0:
            self._places.setdefault("", number)
        if _NOTED.isdisjoint(schema):
            return
        for keyword in () if _ANCHORS.isdisjoint(schema) else ("$anchor", "$dynamicAnchor"):
            if isinstance(name := schema.get(keyword), str):
                self._places[f"{base[0]}#{name}"] = number
                if keyword == "$dynamicAnchor":
                    self._dynamic.setdefault(name, []).append(number)
        if holding := [word for word in schema if word in _ORDER]:
            for part in _parts(schema, holding):
                self._add(part, base, depth + 1)

    def _enter(self, schema: Mapping[str, Any], base: str, draft: int) -> str:
        """The base URI of a subschema, which may name itself; the next number is its."""
        name = identifier(schema, draft)
        if name is not None:
            base, _, anchor = urljoin(base, name).partition("#")
            if anchor and draft <= 7:
                self._places.setdefault(f"{base}#{anchor}", len(self._nodes))
            if anchor and name.startswith("#"):
                return base
        if name is not None or not self._nodes:
            self._places.setdefault(base, len(self._nodes))
        return base


class _Exact(Schemas):
    """The same numbers, without the words that are foreign to a subschema's draft."""

    def __init__(self, schemas: Schemas) -> None:
        self.__dict__ = schemas.__dict__

    def __getitem__(self, number: int) -> Any:
        return self._own.get(number, self._nodes[number])

    @property
    def exact(self) -> Schemas:
        return self


def _parts(schema: Mapping[str, Any], holding: list[str]) -> Iterator[Any]:
    """What stands in some words of a subschema."""
    if len(holding) > 1:
        holding.sort(key=_ORDER.__getitem__)
    for keyword in holding:
        parts = schema[keyword]
        if keyword in _MAPS:
            if not isinstance(parts, (dict, Mapping)):
                raise InvalidRequestError(f"{keyword} must be an object of schemas", PARAM)
            loose = keyword in ("$defs", "definitions")  # what no $ref means may be anything
            yield from (p for p in parts.values() if not loose or isinstance(p, (dict, Mapping, bool)))
        elif keyword in _SINGLE:
            yield parts
        else:
            if not isinstance(parts, Sequence) or isinstance(parts, str) or not parts:
                raise InvalidRequestError(f"{keyword} must be a non-empty list of schemas", PARAM)
            yield from parts


def _name(value: Any) -> str:
    names = {str: "a string", int: "a number", float: "a number", list: "a list"}
    return "null" if value is None else names.get(type(value), "something else")
