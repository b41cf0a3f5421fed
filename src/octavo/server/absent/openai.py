"""Paths of OpenAI, vLLM and their kin that nobody serves here."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

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

router = APIRouter(include_in_schema=False)


async def absent(request: Request) -> Response:
    """Nothing but the line."""
    path = request.scope["route"].path
    message = f"there is no {request.url.path[:100]}: {INSTEAD[path]}"
    raise ApiError(404, message, "not_found_error", code="not_supported")


for _path in INSTEAD:
    router.add_api_route(_path, absent, methods=METHODS)
