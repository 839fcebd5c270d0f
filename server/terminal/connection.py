"""One server as the terminal's chat sees it: its models, its health, and answers as they come. HTTP, nothing else."""

from __future__ import annotations

import http.client
import json
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

#: How long a server may take to answer what needs no model, in seconds.
QUICK_S = 5.0


class ServerError(OSError):
    """The server can't be reached or refused; ``status`` is the HTTP status, or 0."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Delta:
    """What one chunk adds."""

    content: str = ""
    reasoning: str = ""
    finish: str | None = None
    usage: Mapping[str, Any] | None = None


class Connection:
    """Talks to the server at ``url``, which may end in ``/v1``. Each request has a connection of its own."""

    def __init__(self, url: str, key: str | None = None, *, quick: float = QUICK_S) -> None:
        """Raises ``ValueError``: no http(s) address."""
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is no address of a server; it looks like http://127.0.0.1:8000")
        self.url = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1')}"
        self._parts, self._path = parts, parts.path.rstrip("/").removesuffix("/v1")
        self._headers = {"Content-Type": "application/json"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        self._quick = quick

    def models(self) -> list[str]:
        """The ids that the server serves. Raises ``ServerError``."""
        status, body = self._get("/v1/models")
        if status != 200:
            raise ServerError(_message(body, status), status)
        try:
            return [str(card["id"]) for card in json.loads(body)["data"]]
        except (ValueError, KeyError, TypeError):
            raise ServerError(f"what answers at {self.url} is no OpenAI-compatible server") from None

    def health(self) -> tuple[int, dict[str, Any]]:
        """Status and body of ``/health``. Raises ``ServerError``: nobody answers."""
        status, body = self._get("/health")
        try:
            found = json.loads(body)
        except ValueError:
            found = {}
        return status, found if isinstance(found, dict) else {}

    def device(self) -> str:
        """What the model of a server of ours runs on. Raises ``ServerError``."""
        status, body = self._get("/server_info")
        if status != 200:
            raise ServerError(_message(body, status), status)
        return str(json.loads(body)["backend"]["device"])

    def stream(self, body: Mapping[str, Any]) -> Generator[Delta, None, None]:
        """An answer to a chat, piece by piece. Closing it hangs up, which ends the answer at the server too.

        Raises:
            ServerError: refused, or broken off.
        """
        asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
        link = self._link(None)
        try:
            yield from self._deltas(link, json.dumps(asked).encode())
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, ServerError):
                raise
            raise ServerError(f"the connection to {self.url} was lost: {error or type(error).__name__}") from None
        finally:
            link.close()

    def _deltas(self, link: http.client.HTTPConnection, body: bytes) -> Generator[Delta, None, None]:
        link.request("POST", f"{self._path}/v1/chat/completions", body, self._headers)
        response = link.getresponse()
        if response.status != 200:
            raise ServerError(_message(response.read(), response.status), response.status)
        while line := response.readline():
            if not line.startswith(b"data:"):
                continue
            data = line[5:].strip()
            if data == b"[DONE]":
                return
            yield _delta(json.loads(data))
        raise ServerError("the server broke the answer off")

    def _get(self, path: str) -> tuple[int, bytes]:
        link = self._link(self._quick)
        try:
            link.request("GET", self._path + path, headers=self._headers)
            response = link.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            raise ServerError(f"no server answers at {self.url}: {error or type(error).__name__}") from None
        finally:
            link.close()

    def _link(self, timeout: float | None) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        assert self._parts.hostname
        return kind(self._parts.hostname, self._parts.port, timeout=timeout)


def _delta(chunk: dict[str, Any]) -> Delta:
    if error := chunk.get("error"):
        raise ServerError(str(error.get("message", error)) if isinstance(error, dict) else str(error))
    choice: dict[str, Any] = next(iter(chunk.get("choices") or ()), {})
    delta = choice.get("delta") or {}
    return Delta(
        delta.get("content") or "",
        delta.get("reasoning_content") or delta.get("reasoning") or "",
        choice.get("finish_reason"),
        chunk.get("usage"),
    )


def _message(body: bytes, status: int) -> str:
    """What an error says: OpenAI's form, else the status."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"the server answered with status {status}"
