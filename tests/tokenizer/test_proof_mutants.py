"""The proof of templates is as strict as it says: a mistake in it changes what it says of some template."""

from __future__ import annotations

from types import ModuleType

import pytest

from octavo.tokenizer import template_proof
from octavo.tokenizer.chat_environment import parse_template
from support.chat_templates import PLAIN, QUADRATIC, UNPROVEN
from support.source_mutants import must_die


def proofs_are_right(module: ModuleType) -> None:
    expected = dict.fromkeys(PLAIN, 1) | dict.fromkeys(QUADRATIC, 2) | dict.fromkeys(UNPROVEN)
    for name, source in (PLAIN | QUADRATIC | UNPROVEN).items():
        found = module.degree(parse_template(source))
        assert found == expected[name], name


def test_the_proof_holds() -> None:
    proofs_are_right(template_proof)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("shared = origin < len(self._turns) - 1", "shared = False"),
        ("        self._all_in_each += not own", "        self._all_in_each += 0"),
        ("origin >= len(self._turns) - 1\n", "True\n"),
        ("            return KEPT\n", "            return 0\n"),
        ("(self._growth > 1 or self._joins(value))", "self._joins(value)"),
        ("(self._growth > 1 or self._joins(value))", "self._growth > 1"),
        ("max(1, written.pieces) * written.growth", "1"),
        ("            turn.names = {}  #", "            pass  #"),
        ("min(end[name] if name", "max(end[name] if name"),
        ("each = KEPT if origin == KEPT else len(self._turns)", "each = len(self._turns)"),
        ("if any(character.isdigit() for", "if any(False for"),
        (" and not (node.args or node.kwargs)", ""),
        ("        self._growth *= self._grown.get(name, 1)\n", ""),
        ("node.name not in self._variables and", "True and"),
        ("not 0 <= indent <= MAX_INDENT", "False"),
        ("                self._replace(given if not named else None)\n", "                pass\n"),
        ("made.discard(target.name)", "pass"),
    ],
)
def test_mistakes_in_it_are_noticed(right: str, wrong: str) -> None:
    must_die(template_proof, right, wrong, [proofs_are_right])
