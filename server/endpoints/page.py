"""The page at ``/`` and its files; programs that ask at ``/`` get a word instead."""

from __future__ import annotations

import orjson
from fastapi import APIRouter
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from ... import __version__
from ..web.files import answer, page_files

router = APIRouter(include_in_schema=False)


@router.get("/")
@router.head("/")
async def root(http: Request) -> Response:
    """A browser gets the page; a probe learns who answers."""
    if "text/html" in http.headers.get("accept", ""):
        return answer(page_files()["index.html"], http.headers)
    word = orjson.dumps({"name": "bireme", "version": __version__, "docs": "/openapi.json"})
    return Response(word, media_type="application/json", headers={"vary": "accept"})


@router.get("/web/{path:path}")
@router.head("/web/{path:path}")
async def web_file(http: Request, path: str) -> Response:
    """One of the page's files."""
    if file := page_files().get(path):
        return answer(file, http.headers)
    raise HTTPException(404)


@router.get("/dashboard")
@router.head("/dashboard")
async def dashboard() -> Response:
    """A short way to the dashboard."""
    return RedirectResponse("./#dashboard")
