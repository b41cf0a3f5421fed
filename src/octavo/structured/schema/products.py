"""Lists of literals multiplied with each other, of which as few are kept as say enough."""

from __future__ import annotations

from collections.abc import Callable

from octavo.errors import UnsupportedError
from octavo.params.structured import PARAM
from octavo.structured.schema.outline import EVERYTHING, Alternative, Outline
from octavo.structured.schema.refs import LISTS, MAPS, SINGLE, Schemas, TooLargeError

MAX_CASES = 128
ABSORBED = 16
"""More lists than these are looked through for those that others cover."""
FEW = 4
"""Lists that are kept from one alternative of a oneOf to the next, at least."""
_HOLDING = frozenset(["$ref", "$dynamicRef", "pattern", *SINGLE, *LISTS, *MAPS])


class Products:
    """Multiplies lists.

    Args:
        most: lists for one place that are kept where violations make more.
        leave_out: told why not all are kept.
    """

    def __init__(self, schemas: Schemas, most: int, leave_out: Callable[[UnsupportedError], None]) -> None:
        self._schemas, self._most, self._leave_out = schemas, most, leave_out
        self._parts: dict[int, bool] = {}

    def close(self) -> None:
        """Nothing more is multiplied: forget whom to tell."""
        del self._leave_out

    def multiply(self, ours: list[Outline], others: list[Outline]) -> list[Outline]:
        """Each list of the one with each of the other, but for those that contradict each other."""
        if len(ours) == 1 and ours[0] is EVERYTHING:
            return others
        self._spend(ours, others)
        result = [both for one in ours for other in others if (both := one.meet(other)) is not None]
        return self.least(result, self._most)

    def _spend(self, ours: list[Outline], others: list[Outline]) -> None:
        members = sum(len(each.literals) for each in ours) * len(others)
        members += sum(len(each.literals) for each in others) * len(ours)
        self._schemas.spend(1 + len(ours) * len(others) + members // 16)  # copying a literal is no work

    def fewest(self, ours: list[Outline], others: list[Outline], most: int) -> list[Outline]:
        """As multiply() and then least(), of lists that all lead one way: what is not kept is not made."""
        if len(ours) * len(others) <= ABSORBED:
            return self.least(self.multiply(ours, others), most)
        self._spend(ours, others)
        pairs = [(one, other) for one in ours for other in others]
        sums = [(one.violated | other.violated, one.held | other.held) for one, other in pairs]
        mine, its = [self._large(one) for one in ours], [self._large(other) for other in others]
        large = [len(one | other) for one in mine for other in its]
        sizes = [(many, len(violated), len(held)) for many, (violated, held) in zip(large, sums, strict=True)]
        least: dict[int, Outline] = {}
        for count, at in enumerate(sorted(range(len(pairs)), key=sizes.__getitem__)):
            if count % 16 == 0:
                self._schemas.spend(1 + len(least))
            (one, other), (violated, held) = pairs[at], sums[at]
            shared = one.shared(other)
            # What is covered is not put together, which is the longer work.
            if shared is None or any(each.covers(held, violated, shared[0]) for each in least.values()):
                continue
            both = one.joined(other, *shared)
            if both is None or (
                both.types != shared[0]
                and any(each.covers(held, violated, both.types) for each in least.values())
            ):
                continue
            if len(least) == min(most, self._most):
                self._leave_out(too_many())
                fewest = min(large[each] for each in least)
                least = {each: one for each, one in least.items() if large[each] == fewest}
                break
            least[at] = both
        return [least[at] for at in sorted(least)]

    def least(self, found: list[Outline], most: int) -> list[Outline]:
        """Without those that others cover; of too many, those that violate the fewest things.

        Raises:
            UnsupportedError: there are too many ways through the author's own alternatives.
        """
        if len(found) <= min(most, ABSORBED):
            return found  # few enough to be looked through later
        groups: dict[frozenset[Alternative], list[Outline]] = {}
        for each in found:
            groups.setdefault(each.ways, []).append(each)
        if len(groups) > MAX_CASES:
            raise too_many()
        kept: set[int] = set()
        for group in groups.values():
            kept |= self._without_covered(group, max(1, most // len(groups)) if len(found) > most else most)
        return [each for each in found if id(each) in kept]

    def _without_covered(self, group: list[Outline], most: int) -> set[int]:
        """The ids of those that violate the fewest things and that no other one covers."""
        least: list[Outline] = []

        def size(one: Outline) -> tuple[int, int, int]:
            return len(self._large(one)), len(one.violated), len(one.held)

        for at, each in enumerate(sorted(group, key=size)):
            if at % 16 == 0:
                self._schemas.spend(1 + len(least))
            if any(other.covers(each.held, each.violated, each.types) for other in least):
                continue
            if len(least) == most:
                self._leave_out(too_many())
                fewest = min(size(one)[0] for one in least)
                least = [one for one in least if size(one)[0] == fewest]
                break
            least.append(each)
        return set(map(id, least))

    def _large(self, one: Outline) -> frozenset[tuple[str, int]]:
        """Of the properties that it violates, those of subschemas with subschemas.

        What violates such a one takes much text; of too many lists those without go before.
        """
        if not one.broken:
            return one.broken
        return frozenset(each for each in one.broken if self._has_parts(each[1]))

    def _has_parts(self, number: int) -> bool:
        found = self._parts.get(number)
        if found is None:
            node = self._schemas[number]
            found = self._parts[number] = not isinstance(node, bool) and not _HOLDING.isdisjoint(node)
        return found


def too_many() -> TooLargeError:
    return TooLargeError("the JSON schema has too many combinations of its parts", PARAM)
