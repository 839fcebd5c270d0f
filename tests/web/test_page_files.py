"""The page's files as a browser gets them, without a browser."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import pytest

BROWSER = "text/html,application/xhtml+xml,*/*;q=0.8"


def test_browsers_get_the_page_and_probes_a_word(server: Any) -> None:
    page = server.get("/", accept=BROWSER)
    assert page.status_code == 200 and page.headers["content-type"] == "text/html; charset=utf-8"
    assert "<!doctype html>" in page.text
    for accept in ("*/*", "application/json"):
        assert server.get("/", accept=accept).json()["name"] == "bireme"
    for headers in ({}, {"accept": BROWSER}):
        head = httpx.head(server.url + "/", headers=headers)
        assert head.status_code == 200 and head.content == b""


def test_dashboard_is_a_view_of_the_page(server: Any) -> None:
    answer = server.get("/dashboard")
    assert answer.status_code == 307 and answer.headers["location"] == "./#dashboard"


@pytest.mark.parametrize(
    ("path", "kind"),
    [("js/app.js", "text/javascript"), ("css/base.css", "text/css"), ("mark.svg", "image/svg+xml")],
)
def test_types_and_caching(server: Any, path: str, kind: str) -> None:
    first = server.get(f"/web/{path}")
    assert first.status_code == 200 and first.headers["content-type"].startswith(kind)
    assert first.headers["content-encoding"] == "gzip" and first.headers["cache-control"] == "no-cache"
    plain = server.get(f"/web/{path}", **{"accept-encoding": "identity"})
    assert plain.content == first.content and "content-encoding" not in plain.headers
    again = server.get(f"/web/{path}", **{"if-none-match": first.headers["etag"]})
    assert again.status_code == 304 and again.content == b""


def test_every_answer_forbids_what_the_page_does_not_do(server: Any) -> None:
    for path in ("/", "/web/js/app.js", "/web/css/chat.css"):
        headers = server.get(path, accept=BROWSER).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "script-src 'self';" in policy and "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy and headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("path", ["/web/", "/web/none.js", "/web/../files.py", "/web/%2e%2e/files.py", "/web/js"])
def test_nothing_else_is_served(server: Any, path: str) -> None:
    assert server.get(path).status_code == 404


def test_nothing_comes_from_elsewhere(static_folder: Path) -> None:
    """No host is named but in the vendored library's comments and an XML namespace, and every named file is there."""
    own = [path for path in static_folder.rglob("*") if path.suffix in (".html", ".css", ".js", ".svg")]
    own = [path for path in own if path.parent.name != "vendor"]
    assert len(own) > 20
    for path in own:
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"""["'(]\s*(?:https?:)?//[a-z]""", text), path
        for name in re.findall(r'from "([^"]+)"', text):
            assert (path.parent / name).is_file(), (path, name)
        for name in re.findall(r'(?:src|href)="web/([^"]+)"', text):
            assert (static_folder / name).is_file(), (path, name)


def test_the_page_makes_no_markup_of_text(static_folder: Path) -> None:
    for path in (static_folder / "js").glob("*.js"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|eval\(", text), path


def test_every_link_leads_somewhere(server: Any, static_folder: Path) -> None:
    text = (static_folder / "index.html").read_text(encoding="utf-8")
    links = set(re.findall(r'(?:href|src)="([^"]+)"', text))
    assert {"openapi.json", "web/js/app.js", "#question"} <= links
    for link in links:
        if link.startswith("#"):
            assert f'id="{link[1:]}"' in text, link
        else:
            assert server.get(f"/{link}").status_code == 200, link
