"""The chat in Chromium: typed, streamed, stopped, in two tabs, on a narrow screen."""

from __future__ import annotations

from typing import Any

import pytest
from api_bodies import wait_for
from spoken import call, say, say_call

LONG = "word " * 400
MARKDOWN = "# Title\n\n- one **bold**\n- two `code`\n\n```py\nx = 1 < 2\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n"
ATTACK = (
    "<img src=x onerror=alert(1)> <script>alert(2)</script>\n\n[click](javascript:alert(3)) "
    "[data](data:text/html,x) ![pic](https://example.org/track.png)\n\n<iframe src=//e></iframe>\n"
)


def aborted(server: Any) -> float:
    return float(server.metrics()['vllm:request_success_total{finished_reason="abort"}'])


def test_typed_streamed_and_rendered(tab: Any) -> None:
    tab.ask(
        say("# Title\n\n- one **bold**\n- two `code`\n\n```py\nx = 1 < 2\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n")
    )
    answer = tab.done()
    answer.wait_for()
    assert answer.locator("h3").inner_text() == "Title"
    assert answer.locator("li").all_inner_texts() == ["one bold", "two code"]
    assert answer.locator("strong").inner_text() == "bold"
    assert answer.locator("pre code").text_content() == "x = 1 < 2"
    assert answer.locator(".language").inner_text() == "py"
    assert answer.locator("td").all_inner_texts() == ["1", "2"]
    facts = answer.locator(".facts").inner_text()
    assert "tokens" in facts and "first after" in facts and "tokens/s" in facts and "prompt" in facts
    assert "complete" in tab.page.locator("#announcements").text_content()


def test_answers_can_attack_nobody(tab: Any) -> None:
    tab.page.on("dialog", lambda dialog: tab.problems.append(f"a dialog: {dialog.message}"))
    tab.ask(say(ATTACK))
    answer = tab.done()
    answer.wait_for()
    body = answer.locator(".markdown").last
    assert "<img src=x onerror=alert(1)>" in body.inner_text() and "<iframe src=//e></iframe>" in body.inner_text()
    assert body.locator("img, script, iframe").count() == 0
    assert [link.get_attribute("href") for link in body.locator("a").all()] == ["https://example.org/track.png"]


def test_stop_ends_the_request_in_the_engine(tab: Any, server: Any) -> None:
    before = aborted(server)
    tab.ask(say(LONG))
    tab.page.locator(".message.assistant .markdown p").first.wait_for()
    tab.page.click("#stop")
    tab.done().wait_for()
    assert wait_for(lambda: aborted(server) == before + 1)
    server.wait_idle()
    assert server.metrics()["bireme:kv_blocks_live"] == 0
    answer = tab.done().inner_text()
    assert "stopped" in answer and 0 < answer.count("word") < 400


def test_a_second_question_regenerating_and_editing(tab: Any) -> None:
    tab.ask(say("first"))
    tab.done().wait_for()
    tab.ask(say("second"))
    tab.done(1).wait_for()
    assert tab.page.locator(".message").count() == 4
    tab.page.get_by_role("button", name="Regenerate").click()
    tab.done(1).wait_for()
    tab.page.get_by_role("button", name="Edit").click()
    tab.page.get_by_label("Edit the question").fill(say("third"))
    tab.page.keyboard.press("Enter")
    tab.page.locator(".message.assistant.done", has_text="third").wait_for()
    texts = tab.page.locator(".message.assistant .markdown:visible").all_inner_texts()
    assert [text for text in texts if text] == ["first", "third"]


def test_reasoning_stands_apart(tab: Any) -> None:
    tab.ask(say("<think>step by step</think>\n\nfour"))
    answer = tab.done()
    answer.wait_for()
    details = answer.locator("details.reasoning")
    assert details.is_visible() and details.get_attribute("open") is None
    details.locator("summary").click()
    assert "step by step" in details.inner_text()
    assert answer.locator(":scope > .markdown").inner_text() == "four"


def test_tool_calls_are_shown_and_answered(tab: Any) -> None:
    page = tab.page
    page.locator("#settings-form summary").click()
    page.fill("#set-tools", '[{"type": "function", "function": {"name": "depth", "parameters": {"type": "object"}}}]')
    tab.ask(say_call("depth", place="the bay"))
    tab.done().wait_for()
    shown = page.locator(".call")
    assert "depth" in shown.locator("h3").inner_text() and '"place": "the bay"' in shown.locator("pre").inner_text()
    page.get_by_label("Result of depth").last.fill(say("12 metres"))
    page.get_by_role("button", name="Send results").click()
    page.locator(".message.assistant.done", has_text="12 metres").wait_for()
    assert call("depth", {"place": "the bay"}) not in page.locator("#messages").inner_text()


def test_broken_tools_are_said_before_anything_is_sent(tab: Any) -> None:
    tab.page.locator("#settings-form summary").click()
    tab.page.fill("#set-tools", "{not json")
    tab.ask("hello")
    assert "not JSON" in tab.page.locator("#chat-problem").inner_text()
    assert tab.page.locator(".message").count() == 0 and tab.page.input_value("#question") == "hello"


def test_two_tabs_at_once(tabs: Any) -> None:
    """Each streams its own conversation; both are kept, and each sees the other's in its list."""
    one = tabs()
    two = tabs(context=one.page.context)
    for tab, word in ((one, "left"), (two, "right")):
        tab.open()
        tab.ask(say(f"{word} " * 40))
    for tab, word in ((one, "left"), (two, "right")):
        tab.done().wait_for()
        assert tab.done().locator(".markdown").last.inner_text().count(word) == 40
    assert wait_for(lambda: one.page.locator(".chat-title").count() == 2)
    two.page.reload()
    assert two.done().locator(".markdown").last.inner_text().count("right") == 40


def test_the_same_conversation_in_two_tabs_loses_nothing(tabs: Any) -> None:
    one = tabs()
    one.open()
    one.ask(say("root"))
    one.done().wait_for()
    two = tabs(context=one.page.context)
    two.open()
    two.page.locator(".chat-title").click()
    for tab, word in ((one, "left"), (two, "right")):
        tab.ask(say(f"{word} " * 25))
    for tab in (one, two):
        tab.done(1).wait_for()
    titles = one.page.locator(".chat-title").all_inner_texts()
    assert len(titles) == 2
    found = set()
    for number in range(2):
        one.page.locator(".chat-title").nth(number).click()
        found.add(one.done(1).locator(".markdown").last.inner_text().split()[0])
    assert found == {"left", "right"}


def test_narrow_screen(tabs: Any) -> None:
    tab = tabs(viewport={"width": 360, "height": 640})
    page = tab.open()
    tab.ask(say("wide " + "x" * 150 + "\n\n```\n" + "y" * 150 + "\n```\n"))
    tab.done().wait_for()
    for view in ("#chat", "#dashboard"):
        page.goto(f"{tab.url}/{view}")
        if view == "#dashboard":
            page.locator("#latencies", has_text="ms").wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, view
    page.goto(f"{tab.url}/#chat")
    assert page.locator("#side-settings").is_hidden() and page.locator("#send").is_visible()
    page.click("#settings-toggle")
    assert page.locator("#set-temperature").is_visible()
    assert page.locator("#settings-toggle").get_attribute("aria-expanded") == "true"


def test_scrolled_up_stays_where_it_is(tab: Any) -> None:
    page = tab.page
    tab.ask(say("line\n\n" * 120))
    page.locator(".message.assistant p").nth(40).wait_for()
    box = page.locator("#thread")
    assert box.evaluate("e => e.scrollHeight - e.scrollTop - e.clientHeight") < 60
    box.evaluate("e => { e.scrollTop = 0 }")
    count = page.locator(".message.assistant p").count()
    assert wait_for(lambda: page.locator(".message.assistant p").count() > count + 10)
    assert box.evaluate("e => e.scrollTop") == 0 and page.locator("#to-end").is_visible()
    page.click("#to-end")
    tab.done().wait_for()
    assert box.evaluate("e => e.scrollHeight - e.scrollTop - e.clientHeight") < 60


@pytest.mark.parametrize(("scheme", "dark"), [("light", False), ("dark", True)])
def test_colours_follow_the_system(tabs: Any, scheme: str, dark: bool) -> None:
    page = tabs(color_scheme=scheme).open()
    luminance = page.evaluate(
        "getComputedStyle(document.documentElement).backgroundColor.match(/[0-9.]+/g).slice(0, 3).map(Number)"
    )
    assert (sum(luminance) / 3 < 60) is dark


def test_a_key_is_asked_for_and_kept_for_the_tab(start: Any, tabs: Any) -> None:
    keyed = start(api_keys=["sesame"])
    keyed.wait_ready()
    tab = tabs(keyed.url)
    page = tab.open()
    tab.ask(say("inside"))
    page.fill("#key-input", "wrong")
    page.keyboard.press("Enter")
    page.locator("#key-dialog[open]").wait_for()
    page.fill("#key-input", "sesame")
    page.keyboard.press("Enter")
    tab.done().wait_for()
    assert "inside" in tab.done().inner_text()
    page.reload()
    tab.page.goto(f"{keyed.url}/#dashboard")
    page.locator("#feed-state", has_text="live").wait_for()
    assert page.evaluate("[sessionStorage.getItem('bireme.key'), JSON.stringify(localStorage)]")[0] == "sesame"
    assert "sesame" not in page.evaluate("JSON.stringify(localStorage)")


def test_a_question_waits_while_the_model_loads(start: Any, tabs: Any) -> None:
    tab = tabs(start(load_s=1.5).url)
    page = tab.open()
    tab.ask(say("ready now"))
    page.locator(".notice", has_text="loading").first.wait_for()
    tab.done().wait_for()
    assert "ready now" in tab.done().inner_text()


def test_a_full_queue_is_waited_for(start: Any, tabs: Any) -> None:
    full = start(max_num_seqs=1, max_queue=1, step_s=0.01)
    full.wait_ready()
    for _ in range(3):  # how long to wait is said by the pace at which requests end
        full.post("/v1/chat/completions", {"messages": [{"role": "user", "content": say("a")}]})
    tab = tabs(full.url)
    page = tab.open()
    bodies = [{"messages": [{"role": "user", "content": say("z" * 150)}], "stream": True} for _ in range(2)]
    with full.client() as client:
        with (
            client.stream("POST", "/v1/chat/completions", json=bodies[0]),
            client.stream("POST", "/v1/chat/completions", json=bodies[1]),
        ):
            tab.ask(say("my turn"))
            page.locator(".notice", has_text="Trying again in").wait_for()
    tab.done().wait_for()
    assert "my turn" in tab.done().inner_text()


def test_a_lost_engine_is_said_and_asked_again(start: Any, tabs: Any) -> None:
    frail = start(restart_delay=0.1)
    frail.wait_ready()
    tab = tabs(frail.url)
    page = tab.open()
    tab.ask(say(LONG))
    page.locator(".message.assistant .markdown p").first.wait_for()
    frail.engine().kill()
    tab.done().wait_for()
    assert "lost" in page.locator(".message.assistant .notice.error").inner_text()
    assert page.get_by_role("button", name="Try again").is_visible()
    tab.ask(say("again"))
    page.locator(".message.assistant.done", has_text="again").wait_for()
