"""Paths of OpenAI, vLLM and their kin that nobody serves here."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import APIRouter
from starlette.requests import Request
from starlette.routing import BaseRoute, Match, compile_path
from starlette.types import Receive, Scope, Send

from octavo.server.apis import Path
from octavo.server.errors import ApiError

METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]
SCORES = "models are scored by the log-probabilities that /v1/completions gives with echo and logprobs"
VECTORS = "/v1/embeddings gives vectors"
BATCHES = "octavo run-batch answers a file of requests; a server answers requests one by one"

INSTEAD = {
    "/rerank": f"nothing reranks here: {VECTORS} to compare",
    "/v1/rerank": f"nothing reranks here: {VECTORS} to compare",
    "/v2/rerank": f"nothing reranks here: {VECTORS} to compare",
    "/score": f"pairs are not scored here: {VECTORS} to compare, and {SCORES}",
    "/v1/score": f"pairs are not scored here: {VECTORS} to compare, and {SCORES}",
    "/classify": "no classifiers are served: structured_outputs with a choice lets a model choose a label",
    "/pooling": f"{VECTORS}, with pooling last or mean",
    "/v1/moderations": "nothing is moderated here: structured_outputs with a choice lets a model judge",
    "/v1/images/generations": "answers are text",
    "/v1/images/edits": "answers are text",
    "/v1/images/variations": "answers are text",
    "/v1/audio/speech": "answers are text",
    "/v1/audio/transcriptions": "models read text alone",
    "/v1/audio/translations": "models read text alone",
    "/v1/realtime": "there are no sessions: /v1/responses and /v1/chat/completions stream",
    "/v1/files": f"no files are kept: {BATCHES}",
    "/v1/files/{name:path}": f"no files are kept: {BATCHES}",
    "/v1/uploads": f"no files are kept: {BATCHES}",
    "/v1/batches": BATCHES,
    "/v1/batches/{name:path}": BATCHES,
    "/v1/chat/completions/batch": BATCHES,
    "/v1/chat/completions/render": "POST /tokenize with messages gives the tokens of a conversation",
    "/v1/chat/completions/{name}": "chats are not kept: /v1/responses keeps what it answers",
    "/v1/conversations": "previous_response_id of /v1/responses goes on with a conversation",
    "/v1/conversations/{name:path}": "previous_response_id of /v1/responses goes on with a conversation",
    "/v1/responses/compact": "send the conversation with what should be kept; nothing sums it up here",
    "/v1/responses/{name}/cancel": "answers are made while the client waits: closing the connection ends one",
    "/v1/assistants": "/v1/responses has tools and previous_response_id",
    "/v1/threads": "previous_response_id of /v1/responses goes on with a conversation",
    "/v1/vector_stores": f"nothing is looked up here: {VECTORS} for a store of yours",
    "/v1/fine_tuning/jobs": "models are not trained here",
    "/v1/load_lora_adapter": "adapters are not served",
    "/v1/unload_lora_adapter": "adapters are not served",
    "/v1/engines": "/v1/models names what is served",
    "/load": "/metrics has the load",
    "/server_info": "/version, /v1/models and /metrics say what runs",
    "/props": "/version, /v1/models and /metrics say what runs",
    "/slots": "/metrics has the requests that run and wait",
    "/completion": "/v1/completions answers",
    "/infill": "only the end of a text is continued: /v1/completions",
    "/apply-template": "POST /tokenize with messages gives the tokens of a conversation",
    "/embedding": VECTORS,
}
"""What there is in a path's place."""


class Absent(BaseRoute):
    """All these paths as one route. As routes of FastAPI's they would take a server's start some forty times.

    Attributes:
        paths, methods: what a route has one of, for apis.Endpoints. Other methods are not there either.
    """

    methods = METHODS

    def __init__(self, instead: Mapping[str, str]) -> None:
        self.paths = list(instead)
        self._instead = instead
        self._patterns = [(compile_path(path)[0], path) for path in instead if "{" in path]

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """The route's path goes into the scope, as FastAPI puts its own routes there: metrics name it."""
        path = scope["path"]
        if path not in self._instead:
            path = next((known for pattern, known in self._patterns if pattern.match(path)), None)
        if path is None or scope["type"] != "http":
            return Match.NONE, {}
        return Match.FULL, {"route": Path(path)}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Nothing but the line."""
        path, instead = Request(scope).url.path[:100], self._instead[scope["route"].path]
        raise ApiError(404, f"there is no {path}: {instead}", "not_found_error", code="not_supported")


router = APIRouter()
router.routes.append(Absent(INSTEAD))
