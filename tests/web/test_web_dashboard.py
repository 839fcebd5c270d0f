"""The dashboard in Chromium, over a server that works."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from api_bodies import wait_for
from spoken import say


@contextmanager
def load(server: Any, users: int) -> Iterator[None]:
    """Streams of several users, none of which ends by itself soon; all are left at the end."""
    with ExitStack() as stack:
        client = stack.enter_context(server.client())
        for number in range(users):
            body = {
                "messages": [{"role": "user", "content": say("go on " * 300)}],
                "stream": True,
                "user": f"user-{number}",
            }
            stack.enter_context(client.stream("POST", "/v1/chat/completions", json=body))
        yield


def drawn(page: Any, canvas: str) -> int:
    """How many colours a canvas shows."""
    return int(
        page.evaluate(
            """(id) => {
                const canvas = document.getElementById(id);
                const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
                const colours = new Set();
                for (let at = 0; at < data.length; at += 4) if (data[at + 3]) colours.add(`${data.slice(at, at + 4)}`);
                return colours.size;
            }""",
            canvas,
        )
    )


def test_running_requests_and_their_steps(tab: Any, server: Any) -> None:
    page = tab.open("#dashboard")
    with load(server, 3):
        page.locator("#n-running", has_text="3").wait_for()
        assert wait_for(lambda: page.locator("#users tr").count() == 3)
        users = {row.split("\t")[0].strip() for row in page.locator("#users tr").all_inner_texts()}
        assert users == {"user-0", "user-1", "user-2"}
        assert wait_for(lambda: drawn(page, "timeline") >= 5, 3)  # ticks, words, three users
        assert drawn(page, "block-map") >= 2
        assert "in use" in page.locator("#block-map").get_attribute("aria-label")
        page.click("#pause")
        page.locator("#step-details summary").click()
        page.locator("#steps tr").first.wait_for()
        rows = page.locator("#steps tr").all_inner_texts()
        assert any(row.split("\t")[2] == "3" for row in rows), rows
        page.focus("#timeline")
        page.keyboard.press("ArrowLeft")
        tip = page.locator("#step-tip")
        assert tip.is_visible() and "decodes" in tip.inner_text()
        page.hover("#timeline")
    server.wait_idle()
    page.click("#pause")
    page.locator("#n-running", has_text="0").wait_for()
    page.locator("#objective", has_text="objective").wait_for()
    assert "go on" not in page.locator("#dashboard").inner_text()


def test_a_prompt_read_in_chunks_is_told(tab: Any, server: Any) -> None:
    page = tab.open("#dashboard")
    page.locator("#feed-state", has_text="live").wait_for()
    server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "q" * 3000}], "max_tokens": 3})
    page.locator("#step-details summary").click()

    def told() -> list[str]:
        page.click("#steps-refresh")
        return [row for row in page.locator("#steps tr").all_inner_texts() if "guest" in row or "you" in row]

    assert wait_for(told)


def test_nobody_looks_so_nothing_is_sent(tab: Any, server: Any) -> None:
    """Leaving the view closes the feed; the engine takes no notes from then on."""
    page = tab.open("#dashboard")
    page.locator("#feed-state", has_text="live").wait_for()
    closed: list[str] = []
    page.on("requestfailed", lambda request: closed.append(request.url))
    page.click("#tab-chat")
    page.locator("#dashboard").wait_for(state="hidden")
    assert wait_for(lambda: page.wait_for_timeout(50) or any("dashboard/events" in url for url in closed))


def test_nothing_moves_where_motion_is_unwelcome(tabs: Any) -> None:
    page = tabs(reduced_motion="reduce").open("#dashboard")
    assert page.evaluate("getComputedStyle(document.querySelector('#pause')).transitionDuration") == "0s"


def test_zoomed_to_twice_the_size(tabs: Any) -> None:
    """A window of 1280 pixels at 200 % has room for 640."""
    page = tabs(viewport={"width": 640, "height": 400}, device_scale_factor=2).open("#dashboard")
    assert page.evaluate("document.documentElement.scrollWidth") <= 640
