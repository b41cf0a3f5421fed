"""GET /: that there is something here, for programs; for people a page with links."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from octavo.server.apis import Rules

LINKS = {
    "v1/models": "the model that is served, under each of its names",
    "health": "whether requests are served",
    "metrics": "numbers for Prometheus",
    "version": "the version of Octavo",
    "openapi.json": "every path and its fields (OpenAPI)",
}
"""Relative, so that they lead on behind a proxy that serves this below a path of its own."""
ROWS = "\n".join(f'<li><a href="{path}">/{path}</a>: {what}</li>' for path, what in LINKS.items())
PAGE = f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Octavo</title>
<h1>Octavo</h1>
<p>A server of language models. Programs ask it at <code>/v1</code>: it speaks OpenAI's API, Anthropic's at
<code>/v1/messages</code>, and TGI's at <code>/generate</code>. <code>octavo run</code> and
<code>octavo chat</code> talk with a model on a terminal.</p>
<ul>
{ROWS}
</ul>
<p>Where the server has keys, all but <code>/health</code> asks for one.</p>
</html>
"""
HEADERS = {"vary": "accept", "content-security-policy": "default-src 'none'; frame-ancestors 'none'"}

router = APIRouter()
rules = {"/": Rules(keyed=False)}


@router.get("/")
async def root(request: Request) -> Response:
    """The name and where the API is; a browser gets a page. Neither says which model or version it is."""
    if "text/html" in request.headers.get("accept", ""):
        return HTMLResponse(PAGE, headers=HEADERS)
    return JSONResponse({"name": "octavo", "api": "/v1"}, headers={"vary": "accept"})
