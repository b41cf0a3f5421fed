"""What a program must know of the server that it will use, as GET /v1/models says it."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from octavo.errors import InvalidRequestError, OctavoError

TIMEOUT_S = 10.0
MAX_BYTES = 1 << 20


class NoServerError(OctavoError):
    """No server answers there, or none that says what it serves."""


@dataclass(frozen=True, slots=True)
class Served:
    """A server and the model of it that is asked for.

    Attributes:
        url: where it is, without /v1 and without a slash at the end.
        model: a name under which it serves.
        context: most tokens of a prompt and its answer together.
        key: its API key; None: it asks for none.
    """

    url: str
    model: str
    context: int
    key: str | None = None


def served_at(url: str, model: str | None = None, key: str | None = None) -> Served:
    """Ask a server what it serves.

    Args:
        url: with or without /v1.
        model: one of its models; None: the first.

    Raises:
        InvalidRequestError: the URL is none of HTTP, or the server has no such model.
        NoServerError: nobody answers, or not as a server of models does.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise InvalidRequestError(f"--url takes an address such as http://127.0.0.1:8000, not {url[:100]!r}")
    base = url.rstrip("/").removesuffix("/v1")
    contexts = _contexts(_get(base, key), base)
    chosen = next(iter(contexts)) if model is None else model
    if chosen not in contexts:
        raise InvalidRequestError(
            f"the server at {base} has no model {chosen!r}; it has {', '.join(contexts)}"
        )
    return Served(base, chosen, contexts[chosen], key)


def _get(base: str, key: str | None) -> Any:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    request = urllib.request.Request(f"{base}/v1/models", headers=headers)
    # A proxy of the environment is not asked: the address is the user's own.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=TIMEOUT_S) as answer:
            return json.loads(answer.read(MAX_BYTES))
    except urllib.error.HTTPError as error:
        if error.code == 401:
            raise NoServerError(f"the server at {base} asks for a key: set OCTAVO_API_KEY") from None
        if error.code == 503:
            raise NoServerError(f"the server at {base} is not ready: it loads its model, or ends") from None
        raise NoServerError(f"{base}/v1/models answers {error.code}: it is no server of models") from None
    except (OSError, http.client.HTTPException) as error:
        why = getattr(error, "reason", None) or error
        raise NoServerError(f"no server answers at {base} ({why}): octavo serve MODEL starts one") from None
    except ValueError:
        raise NoServerError(f"{base}/v1/models answers no JSON: it is no server of models") from None


def _contexts(found: Any, base: str) -> dict[str, int]:
    """Each model's name, and its context in tokens."""
    data = found.get("data") if isinstance(found, dict) else None
    models = {
        each["id"]: each["max_model_len"]
        for each in (data if isinstance(data, list) else [])
        if isinstance(each, dict)
        and isinstance(each.get("id"), str)
        and isinstance(each.get("max_model_len"), int)
    }
    if not models:
        raise NoServerError(f"{base}/v1/models says no model and its max_model_len: it is no Octavo server")
    return models
