"""The APIs of the server: folders beside this file, whose endpoints are found and not listed.

Every file of such a folder that brings a `router` (fastapi.APIRouter) is served. Beside it may stand

    dialect   how errors are said, and how streams end; else that of the folder's __init__.py, else OpenAI's
    rules     {path: Rules} for those of its paths of which the doors ask something special

Files whose names begin with an underscore are left alone.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeVar

from fastapi import APIRouter
from starlette.routing import Route

from octavo import server
from octavo.errors import OctavoError
from octavo.server.errors import OPENAI, Dialect
from octavo.server.limits import Path, Paths, Rules

T = TypeVar("T")


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

    @property
    def routes(self) -> list[tuple[str, str]]:
        return [
            (method, route.path)
            for route in self.router.routes
            if isinstance(route, Route)
            for method in sorted(route.methods or ())
        ]


def find() -> list[Endpoints]:
    """The endpoints of every API, in alphabetical order.

    Raises:
        EndpointError: a file that cannot be imported, or brings something else under these names.
    """
    return [found for module, folder in _modules() if (found := _endpoints(module, folder)) is not None]


def table(every: list[Endpoints]) -> Paths:
    """What the doors ask at each path, and in whose words they refuse.

    Raises:
        EndpointError: two files serve one route, or one path in two dialects.
    """
    owners: dict[tuple[str, str], str] = {}
    paths: dict[str, Path] = {}
    for each in every:
        for method, path in each.routes:
            other = owners.setdefault((method, path), each.file)
            if other != each.file:
                raise EndpointError(f"two files serve {method} {path}: {other} and {each.file}")
            known = paths.setdefault(path, Path(path, each.dialect, each.rules.get(path, Rules())))
            if known.dialect != each.dialect:
                first = next(file for (_, served), file in owners.items() if served == path)
                raise EndpointError(f"{path} is served in two dialects: by {first} and by {each.file}")
    return Paths(paths)


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
    found = Endpoints(name, router, _typed(name, "dialect", dialect, Dialect), rules)
    for path in rules:
        _typed(name, f"rules[{path!r}]", rules[path], Rules)
        if path not in {served for _, served in found.routes}:
            raise EndpointError(f"{name} has rules for {path!r}, which it does not serve")
    return found


def _typed(file: str, name: str, value: Any, kind: type[T]) -> T:
    if not isinstance(value, kind):
        raise EndpointError(f"{file}: {name} is no {kind.__name__}, but {type(value).__name__}")
    return value
