"""A small stand-in for the Hub's HTTP interface on the loopback address: what the real client asks for, and no more."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class FakeHub:
    """Repositories by name, each a map of file name to content; ``gated`` and ``private`` ones are refused."""

    repos: dict[str, dict[str, bytes]] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    broken: set[str] = field(default_factory=set)  # file names whose transfer breaks off half way
    busy: bool = False  # asked about a model it answers 503
    fetched: list[str] = field(default_factory=list)  # files whose content was sent, in order
    endpoint: str = ""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: FakeHub

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(send_body=False)

    def do_GET(self) -> None:
        self._answer(send_body=True)

    def _answer(self, send_body: bool) -> None:
        path = self.path.split("?")[0].strip("/")
        if path.startswith("api/models/"):
            repo = "/".join(path.split("/")[2:4])
            self._info(repo)
        else:
            owner, name, _, _, *file = path.split("/")
            self._file(f"{owner}/{name}", "/".join(file), send_body)

    def _refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _info(self, repo: str) -> None:
        if self.hub.busy:
            return self._refuse(503, "")
        if repo in self.hub.gated:
            return self._refuse(403, "GatedRepo")
        if repo not in self.hub.repos:
            return self._refuse(401, "RepoNotFound")
        files = [{"rfilename": name, "size": len(data)} for name, data in self.hub.repos[repo].items()]
        body = json.dumps({"id": repo, "modelId": repo, "sha": COMMIT, "private": False, "siblings": files}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _file(self, repo: str, name: str, send_body: bool) -> None:
        data = self.hub.repos.get(repo, {}).get(name)
        if data is None:
            return self._refuse(404, "EntryNotFound")
        self.send_response(200)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if send_body:
            self.hub.fetched.append(name)
            if name in self.hub.broken:
                self.wfile.write(data[: len(data) // 2])
                self.close_connection = True
                self.connection.close()
            else:
                self.wfile.write(data)


@contextmanager
def serve(hub: FakeHub) -> Iterator[FakeHub]:
    """Answer for ``hub`` on a free port of the loopback address; its ``endpoint`` is set meanwhile."""
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
