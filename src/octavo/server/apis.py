"""The APIs of the server: folders beside this file, whose endpoints are found and not listed.

Every file of such a folder that brings a `router` (fastapi.APIRouter) is served. Beside it may stand

    dialect   how errors are said, and how streams end; else that of the folder's __init__.py, else OpenAI's
    rules     {path: Rules} for those of its paths whose limits are special
    claims    {path: Claim} for requests to another file's path that are told by their body (claims.py)

Files whose names begin with an underscore are left alone.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeVar

from fastapi import APIRouter
from starlette.routing import BaseRoute, Route, compile_path

from octavo import server
from octavo.errors import OctavoError
from octavo.server.claims import Claim
from octavo.server.errors import OPENAI, Dialect

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Rules:
    """What LimitsMiddleware asks of a request to a path.

    Attributes:
        keyed: an API key, where the server has any. False: GET and HEAD need none, other methods do.
        counted: methods whose requests hold a place while they are answered: refused when there are too many,
            while the model loads and while the server drains, and bounded in the size of their bodies.
        batched: the path may stand in a batch file.
        queued: its requests wait for the engine, and are refused unread while no more may wait.
    """

    keyed: bool = True
    counted: frozenset[str] = frozenset({"POST"})
    batched: bool = False
    queued: bool = False


@dataclass(frozen=True, slots=True)
class Path:
    """A path as its endpoints declare it: /v1/models/{name}."""

    path: str
    dialect: Dialect = OPENAI
    rules: Rules = Rules()


class Paths(dict[str, Path]):
    """The table of every path that is served.

    What is not in it has the rules of any other path. Its dialect is that of the longest path in the
    table that it continues: a client that asks /v1/messages/x expects the words of /v1/messages.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        super().__init__((each.path, each) for each in paths)
        self._longest_first = sorted(self, key=len, reverse=True)
        self._patterns = [(compile_path(path)[0], each) for path, each in self.items() if "{" in path]

    def __missing__(self, path: str) -> Path:
        for pattern, each in self._patterns:
            if pattern.match(path):
                return each
        above = next((known for known in self._longest_first if path.startswith(known + "/")), None)
        return Path(path, OPENAI if above is None else self[above].dialect)


class EndpointError(OctavoError):
    """A file of endpoints cannot be served; the message names it."""


@dataclass(frozen=True, slots=True)
class Endpoints:
    """One file's.

    Attributes:
        file: its module, without `octavo.server.`
        routes: (method, path) of each of its routes.
    """

    file: str
    router: APIRouter
    dialect: Dialect
    rules: Mapping[str, Rules]
    claims: Mapping[str, Claim]

    @property
    def routes(self) -> list[tuple[str, str]]:
        return [
            (method, path)
            for route in self.router.routes
            for path in _paths(route)
            for method in sorted(getattr(route, "methods", None) or ())
        ]

    def takes(self, path: str) -> bool:
        """Whether it serves the path by more than GET."""
        return any(served == path and method != "GET" for method, served in self.routes)


def find() -> list[Endpoints]:
    """The endpoints of every API, in alphabetical order.

    Raises:
        EndpointError: a file that cannot be imported, or brings something else under these names.
    """
    return [found for module, folder in _modules() if (found := _endpoints(module, folder)) is not None]


def table(every: list[Endpoints]) -> Paths:
    """What LimitsMiddleware asks at each path, and in whose words they refuse.

    Raises:
        EndpointError: two files serve one route, or one path in two dialects.
    """
    owners: dict[tuple[str, str], str] = {}
    served: dict[str, dict[str, Endpoints]] = {}
    for each in every:
        for method, path in each.routes:
            other = owners.setdefault((method, path), each.file)
            if other != each.file:
                raise EndpointError(f"two files serve {method} {path}: {other} and {each.file}")
            served.setdefault(path, {})[each.file] = each
    return Paths(_path(path, list(files.values())) for path, files in served.items())


def in_order(every: Iterable[Endpoints]) -> list[BaseRoute]:
    """All routes, as a request is held against one after the other: patterns last, as they may hide paths.

    The app has them as its own. FastAPI's include_router() would make each a second time, at the first
    request, and hold a request twice against every route of the file that answers it.
    """

    def place(route: BaseRoute) -> int:
        paths = _paths(route)
        return 1 if len(paths) != 1 else 2 * ("{" in paths[0])

    return sorted((route for each in every for route in each.router.routes), key=place)


def claims(every: Iterable[Endpoints], paths: Paths) -> dict[str, Claim]:
    """What is claimed of others' paths.

    Raises:
        EndpointError: nobody serves such a path, or two files claim it.
    """
    found: dict[str, Claim] = {}
    for each in every:
        for path, claim in each.claims.items():
            if path not in paths:
                raise EndpointError(f"{each.file} claims {path!r}, which nobody serves")
            if found.setdefault(path, claim) is not claim:
                raise EndpointError(f"two files claim {path}; {each.file} is one of them")
    return found


def _paths(route: BaseRoute) -> list[str]:
    """Those that a route takes: one, or several (absent.openai)."""
    several: list[str] = getattr(route, "paths", [])
    return [route.path] if isinstance(route, Route) else several


def _path(path: str, files: Sequence[Endpoints]) -> Path:
    """As its files declare it; those that are only got from leave it to another, where there is one."""
    first, *others = [each for each in files if each.takes(path)] or files
    for other in others:
        if other.dialect != first.dialect:
            raise EndpointError(f"{path} is served in two dialects: by {first.file} and by {other.file}")
    return Path(path, first.dialect, first.rules.get(path, Rules()))


def _modules() -> Iterator[tuple[ModuleType, ModuleType]]:
    """(file, its folder)."""
    for folder in pkgutil.iter_modules(server.__path__):
        if not folder.ispkg or folder.name.startswith("_"):
            continue
        package = _import(folder.name)
        for file in pkgutil.iter_modules(package.__path__):
            if not file.name.startswith("_"):
                yield _import(f"{folder.name}.{file.name}"), package


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(f"{server.__name__}.{name}")
    except Exception as error:
        raise EndpointError(f"{name} cannot be imported: {type(error).__name__}: {error}") from error


def _endpoints(module: ModuleType, folder: ModuleType) -> Endpoints | None:
    """What a module brings; None: nothing to serve."""
    if not hasattr(module, "router"):
        return None
    name = module.__name__.removeprefix(f"{server.__name__}.")
    router = _typed(name, "router", module.router, APIRouter)
    dialect = getattr(module, "dialect", getattr(folder, "dialect", OPENAI))
    rules = _typed(name, "rules", getattr(module, "rules", {}), dict)
    claimed = _typed(name, "claims", getattr(module, "claims", {}), dict)
    found = Endpoints(name, router, _typed(name, "dialect", dialect, Dialect), rules, claimed)
    for path in claimed:
        _typed(name, f"claims[{path!r}]", claimed[path], Claim)
    for path in rules:
        _typed(name, f"rules[{path!r}]", rules[path], Rules)
        if path not in {served for _, served in found.routes}:
            raise EndpointError(f"{name} has rules for {path!r}, which it does not serve")
    return found


def _typed(file: str, name: str, value: Any, kind: type[T]) -> T:
    if not isinstance(value, kind):
        raise EndpointError(f"{file}: {name} is no {kind.__name__}, but {type(value).__name__}")
    return value
