"""The floors of the house: a room imports only from rooms below it. Read from the syntax trees,
so that an import inside a function or under TYPE_CHECKING counts as well."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src" / "octavo"

# From the roof down. Rooms of one line stand side by side and do not know each other. One is not built yet,
# and stands here so that nothing grows into its place: cluster (several engines behind one server).
FLOORS: tuple[frozenset[str], ...] = tuple(
    frozenset(line.split())
    for line in (
        "entrypoints",
        "cli",
        "lab",
        "bench compat",
        "cluster",
        "server pipelines launch plan batcher quantize",
        "llm",
        "async_llm",
        "assembly prompts engine_args beam_search structured",
        "config",
        "runtime engine",
        "spec",
        "models",
        "sampling",
        "quant",
        "kernels",
        "checkpoints",
        "tokenizer",
        "pooling",
        "params",
        "confined",
        "checks",
        "errors",
    )
)
LEVEL = {room: level for level, rooms in enumerate(reversed(FLOORS)) for room in rooms}

# Doors that the floors alone would not allow, each with its reason.
DOORS = {
    ("runtime", "octavo.engine.step_plan"),  # the plain words of the executor protocol
    ("engine", "octavo.config"),  # SchedulerConfig: the numbers it is built from
}
ROOF = ("", "__main__")  # the package itself, which names what is in the rooms
TORCH_ROOMS = ("kernels/cuda",)

# What is read first, in the order of docs/core.md: one chat request, full pages, the ops in NumPy, llama. All
# else is an appendix, found by a registry or given as an argument.
_READ_FIRST = """
    errors checks params params.declare params.sampling params.outputs params.structured params.beams
    params.bias config.scheduler engine.request engine.step_plan engine.scheduler engine.draft_book
    engine.budget engine.step_builder engine.admission engine.turns engine.continuation engine.core
    engine.stats
    engine.page_pool engine.page_keys engine.prefix_cache engine.page_group engine.sources engine.kv_manager
    engine.integrity runtime.runner runtime.states runtime.simple_batches kernels.ops kernels.types
    kernels.operations
    kernels.forward_batch kernels.backend kernels.reference kernels.reference_math kernels.reference_kv
    kernels.trees models.families.llama models.parts models.registry models.layers
    models.rotary sampling.sampler sampling.sampling_batch sampling.logits sampling.distribution
    sampling.noise sampling.elementary server.openai.chat server.openai.body server.openai.shapes
    server.openai.fields server.openai.sampling server.openai.structured server.openai.answers
    server.openai.logprobs server.generation server.sse server.whole server.state server.engine server.errors
"""
CORE = tuple(f"octavo.{name}" for name in _READ_FIRST.split())
MOST_CORE_LINES = 10_000
# What the core imports all the same, each with its reason. None is added without one being taken away.
BESIDE_CORE = {
    "octavo.checkpoints.base": "a family reads a checkpoint; how files hold one is an appendix",
    "octavo.models.config": "numbers of any family, of which llama has few",
    "octavo.models.loader": "weights by name, whatever their format",
    "octavo.kernels.weight": "the layouts of weights, most of them quantized",
    "octavo.kernels.program": "a captured forward: the reference takes only its signature",
    "octavo.kernels.draws": "what compiled samplers take; sampling names the same dtypes",
    "octavo.sampling.sampling_rows": "what rows ask of the sampler: penalties, limits, grammars",
    "octavo.server.apis": "the registry of endpoints, of which each says its rules",
    "octavo.server.openai.reading": "the door to tools and reasoning",
}
Import = tuple[str, int]


def room_of(module: str) -> str:
    """octavo.engine.core -> engine; octavo -> the empty room, which holds the version only."""
    return module.split(".")[1] if "." in module else ""


def module_name(path: Path, source: Path = SOURCE) -> str:
    parts = ("octavo", *path.relative_to(source).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(tree: ast.AST, module: str, is_package: bool) -> Iterator[Import]:
    """(module imported, line) of every import statement and every import_module("literal") call.

    `from octavo import x` and `from octavo.room import x` give octavo.x and octavo.room: a room is
    known by the second name, so nothing finer is needed.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                keep = len(module.split(".")) - node.level + (1 if is_package else 0)
                base = ".".join([*module.split(".")[:keep], *filter(None, [base])])
            if base == "octavo":
                yield from ((f"octavo.{alias.name}", node.lineno) for alias in node.names)
            else:
                yield (base, node.lineno)
        elif isinstance(node, ast.Call) and _is_import_module(node.func) and node.args:
            name = node.args[0]
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                yield (name.value, node.lineno)


def _is_import_module(function: ast.expr) -> bool:
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name in ("import_module", "__import__")


def offence(importer: str, imported: str) -> str | None:
    """Why this import is forbidden, or None."""
    here, there = room_of(importer), room_of(imported)
    if here in ROOF or here == there or imported in ("octavo", "octavo.__version__"):
        return None
    if there not in LEVEL:
        return f"{imported}: the room {there!r} is on no floor (add it to FLOORS)"
    if LEVEL[there] < LEVEL[here]:
        return None
    if any(here == room and (imported + ".").startswith(door + ".") for room, door in DOORS):
        return None
    return f"{here} must not know {there}"


def sources() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def all_imports(path: Path) -> list[Import]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return list(imports_of(tree, module_name(path), path.name == "__init__.py"))


def test_every_room_is_on_a_floor() -> None:
    rooms = {path.relative_to(SOURCE).parts[0].removesuffix(".py") for path in sources()}
    assert rooms - {"__init__", *ROOF} <= set(LEVEL)


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_down(path: Path) -> None:
    module = module_name(path)
    wrong = [
        f"{path.name}:{line}: {reason}"
        for imported, line in all_imports(path)
        if imported.split(".")[0] == "octavo" and (reason := offence(module, imported))
    ]
    assert not wrong, "\n".join(wrong)


def test_engine_is_plain_python() -> None:
    """engine/ knows the standard library, params, checks, errors, config, and itself."""
    allowed = {"engine", "params", "errors", "config", "checks"}
    wrong = [
        f"{path.name}:{line}: {imported}"
        for path in (SOURCE / "engine").rglob("*.py")
        for imported, line in all_imports(path)
        if (room_of(imported) not in allowed if imported.startswith("octavo") else not _is_stdlib(imported))
    ]
    assert not wrong, "\n".join(wrong)


def test_structured_output_has_two_doors() -> None:
    """Who compiles asks octavo.structured; who asks about JSON schemas, octavo.structured.schema."""
    used = {
        imported
        for path in sources()
        if room_of(module_name(path)) != "structured"
        for imported, _ in all_imports(path)
        if room_of(imported) == "structured"
    }
    assert "octavo.structured" in used
    assert used <= {"octavo.structured", "octavo.structured.schema"}


def test_torch_stays_in_its_rooms() -> None:
    wrong = [
        f"{path.relative_to(SOURCE)}:{line}: {imported}"
        for path in sources()
        if not str(path.relative_to(SOURCE)).startswith(TORCH_ROOMS)
        for imported, line in all_imports(path)
        if imported.split(".")[0] in ("torch", "triton", "transformers")
    ]
    assert not wrong, "\n".join(wrong)


def own_modules(tree: ast.AST) -> set[str]:
    """The modules of ours that are imported anywhere in a tree, under TYPE_CHECKING too.

    `from octavo.kernels import trees` is octavo.kernels.trees, where that is a file.
    """
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if file_of(name).is_file() else str(node.module) for name in names}
    return {name for name in found if name.startswith("octavo.")}


def file_of(module: str) -> Path:
    path = SOURCE.joinpath(*module.split(".")[1:])
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def core_tree(module: str) -> ast.AST:
    return ast.parse(file_of(module).read_text("utf-8"))


@pytest.mark.parametrize("module", CORE)
def test_the_core_imports_itself_alone(module: str) -> None:
    wrong = own_modules(core_tree(module)) - {*CORE, *BESIDE_CORE}
    assert not wrong, "an appendix; give it as an argument, find it by a registry, or know it by a protocol"


def test_the_core_is_read_in_an_afternoon() -> None:
    lines = sum(len(file_of(module).read_text("utf-8").splitlines()) for module in CORE)
    assert lines <= MOST_CORE_LINES
    used = set[str]().union(*(own_modules(core_tree(module)) for module in CORE))
    assert used >= set(BESIDE_CORE), "what nobody imports any more needs no excuse"


def test_the_page_of_the_core_reads_it_in_order() -> None:
    page = (SOURCE.parents[1] / "docs" / "core.md").read_text("utf-8")
    named = re.findall(r"^\d+\. `([\w/]+)\.py`", page, re.MULTILINE)
    assert tuple("octavo." + name.removesuffix("/__init__").replace("/", ".") for name in named) == CORE


@pytest.mark.parametrize(
    ("statement", "imported"),
    [
        ("from octavo.engine.beams import BeamGroup", {"octavo.engine.beams"}),
        ("def f():\n    from octavo.engine.groups import windows", {"octavo.engine.groups.windows"}),
        ("if TYPE_CHECKING:\n    from octavo.server.metrics import Metrics", {"octavo.server.metrics"}),
        ("from octavo.config import SchedulerConfig", {"octavo.config"}),
        ("from octavo import checks, llm", {"octavo.checks", "octavo.llm"}),
        ("import octavo.llm", {"octavo.llm"}),
        ("from octavo import __version__\nimport numpy", set()),
    ],
)
def test_the_judge_of_the_core_sees(statement: str, imported: set[str]) -> None:
    assert own_modules(ast.parse(statement)) == imported
    assert imported & {*CORE, *BESIDE_CORE} <= {"octavo.checks"}


def _is_stdlib(module: str) -> bool:
    return module.split(".")[0] in sys.stdlib_module_names


@pytest.mark.parametrize(
    ("importer", "statement", "forbidden"),
    [
        ("octavo.engine.core", "def f():\n    import octavo.runtime.runner", True),
        ("octavo.engine.core", "from ..config import SchedulerConfig", False),
        ("octavo.runtime.runner", "from octavo.engine.step_plan import StepPlan", False),
        ("octavo.runtime.runner", "from octavo.engine.planner import X", True),
        ("octavo.runtime.runner", "from octavo.engine import scheduler", True),
        ("octavo.runtime.runner", "from octavo.spec.ngram import X", False),
        ("octavo.sampling.sampling_rows", "from octavo.structured.grammar import X", True),
        ("octavo.spec.ngram", "from octavo.models.load import load_model", False),
        ("octavo.spec.ngram", "from octavo.runtime.runner import X", True),
        ("octavo.engine.scheduler", "from octavo.runtime.runner import X", True),
        ("octavo.kernels.cpu", "from octavo import llm", True),
        ("octavo.kernels.cpu", "importlib.import_module('octavo.models.families.llama')", True),
        ("octavo.kernels.cpu", "from octavo import __version__", False),
        ("octavo.server.app", "from octavo.llm import AsyncLLM", False),
        ("octavo.server.app", "from octavo.lab.simulate import X", True),
        ("octavo.bench.sweep", "from octavo.lab.trace import X", True),
        ("octavo.models.families.llama", "from octavo.attic import x", True),
    ],
)
def test_the_judge_can_convict(importer: str, statement: str, forbidden: bool) -> None:
    found = list(imports_of(ast.parse(statement), importer, is_package=False))
    assert len(found) == 1
    assert bool(offence(importer, found[0][0])) is forbidden
