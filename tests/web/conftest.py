"""Chromium on the page of a real server. Without Playwright or Chromium these tests are skipped, with the reason."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import servers
import spoken
from servers import Server

CHROMIUM = os.environ.get("CHROMIUM", shutil.which("chromium") or shutil.which("chromium-browser") or "")


@pytest.fixture(scope="session")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Starts servers on the hooked engine, whose prompts dictate the answers; all are stopped at the end."""
    model = spoken.long_context(tmp_path_factory.mktemp("model"))
    running: list[Server] = []

    def begin(**hook: Any) -> Server:
        server = servers.start(tmp_path_factory.mktemp("server"), model=model, hook={"users_db": "none", **hook})
        running.append(server)
        server.wait_listening()
        return server

    yield begin
    for server in running:
        server.kill()


@pytest.fixture(scope="session")
def server(start: Any) -> Server:
    """The server that most tests share: two milliseconds a step."""
    one: Server = start(kv_cache_memory=2**28, reasoning_parser="think", step_s=0.002)
    one.wait_ready()
    return one


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Closed with each module: while it runs, nothing else may use an event loop on this thread."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs Playwright (pip install 'bireme[browser]')")
    if not CHROMIUM:
        pytest.skip("needs Chromium (apt install chromium, or its path in CHROMIUM)")
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


class Tab:
    """A page, and what went wrong on it."""

    def __init__(self, page: Any, url: str) -> None:
        self.page = page
        self.url = url
        self.problems: list[str] = []
        page.set_default_timeout(60_000)
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("console", lambda message: self._note(message))

    def _note(self, message: Any) -> None:
        if message.type == "error" and "Failed to load resource" not in message.text:  # an answer of 4xx is no fault
            self.problems.append(message.text)

    def open(self, fragment: str = "") -> Any:
        self.page.goto(f"{self.url}/{fragment}")
        return self.page

    def ask(self, text: str) -> None:
        self.page.fill("#question", text)
        self.page.press("#question", "Enter")

    def done(self, number: int = 0) -> Any:
        """The answer with this number, once it is whole."""
        return self.page.locator(".message.assistant.done").nth(number)


@pytest.fixture
def tabs(browser: Any, server: Server) -> Iterator[Any]:
    """Opens pages; afterwards nothing must have gone wrong on any."""
    opened: list[Tab] = []
    contexts = []

    def make(url: str = "", context: Any = None, **options: Any) -> Tab:
        if context is None:
            context = browser.new_context(**options)
            contexts.append(context)
        opened.append(Tab(context.new_page(), url or server.url))
        return opened[-1]

    yield make
    problems = [problem for tab in opened for problem in tab.problems]
    for context in contexts:
        context.close()
    assert problems == []


@pytest.fixture
def tab(tabs: Any) -> Tab:
    one: Tab = tabs()
    one.open()
    return one


@pytest.fixture(scope="session")
def static_folder() -> Path:
    import bireme.server.web

    return Path(str(bireme.server.web.__file__)).parent / "static"
