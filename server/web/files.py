"""The page's files, read once, with everything that a browser is told about them."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from starlette.datastructures import Headers
from starlette.responses import Response

FOLDER = Path(__file__).parent / "static"

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}

#: Nothing from elsewhere, nothing inline, and no way to make markup of a string: not even by a mistake of ours.
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)

HEADERS = {
    "cache-control": "no-cache",  # asked for again each time; answered 304 while it is the same
    "content-security-policy": POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class PageFile:
    """One file, plain and compressed."""

    plain: bytes
    packed: bytes
    media_type: str
    etag: str

    @classmethod
    def read(cls, path: Path) -> PageFile:
        data = path.read_bytes()
        tag = hashlib.sha256(data).hexdigest()[:20]
        return cls(data, gzip.compress(data, mtime=0), TYPES[path.suffix], f'"{tag}"')


@cache
def page_files() -> Mapping[str, PageFile]:
    """Every file of the page by its path, ``js/app.js``. Nothing else can be asked for."""
    found = (path for path in sorted(FOLDER.rglob("*")) if path.is_file())
    return {path.relative_to(FOLDER).as_posix(): PageFile.read(path) for path in found}


def answer(file: PageFile, request: Headers) -> Response:
    """``file`` for a request with these headers: 304 where the browser has it, compressed where it may be."""
    headers = {**HEADERS, "etag": file.etag, "vary": "accept, accept-encoding"}
    if file.etag in (tag.strip().removeprefix("W/") for tag in request.get("if-none-match", "").split(",")):
        return Response(status_code=304, headers=headers)
    if "gzip" in request.get("accept-encoding", ""):
        return Response(file.packed, headers={**headers, "content-encoding": "gzip"}, media_type=file.media_type)
    return Response(file.plain, headers=headers, media_type=file.media_type)
