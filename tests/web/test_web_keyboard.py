"""The page by keyboard alone: everything is reached, and the focus is never lost with what had it."""

from __future__ import annotations

from typing import Any

from spoken import say

LONG = "word " * 400


def focused(page: Any) -> str:
    """The focused element's id, else its label or text; "" where nothing has the focus."""
    told = """(() => {
        const held = document.activeElement;
        return held === document.body ? "" : held.id || held.getAttribute("aria-label") || held.innerText;
    })()"""
    return str(page.evaluate(told))


def tab_to(page: Any, name: str, key: str = "Tab") -> None:
    for _ in range(40):
        if focused(page) == name:
            return
        page.keyboard.press(key)
    raise AssertionError(f"{name} was not reached; the focus is at {focused(page)!r}")


def asked(page: Any, text: str) -> None:
    page.keyboard.insert_text(say(text))
    page.keyboard.press("Enter")


def test_keyboard_alone(tab: Any) -> None:
    """From the top: by Tab to everything, each with a ring to be seen; Enter sends, Escape stops."""
    page = tab.page
    page.locator("#model-name", has_text="spoken").wait_for()
    seen: list[str] = []
    page.keyboard.press("Tab")
    for _ in range(40):
        seen.append(page.evaluate("document.activeElement.id || document.activeElement.className"))
        ring = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert ring == "solid" or page.evaluate("document.activeElement === document.body"), seen[-1]
        if seen[-1] == "question":
            break
        page.keyboard.press("Tab")
    assert seen[-1] == "question"
    assert {"skip", "brand", "tab-dashboard", "settings-toggle", "new-chat", "thread", "set-system"} <= set(seen)
    page.keyboard.insert_text(say(LONG))
    page.keyboard.press("Enter")
    page.locator(".message.assistant .markdown p").first.wait_for()
    page.keyboard.press("Escape")
    tab.done().wait_for()
    assert "stopped" in tab.done().inner_text()


def test_the_focus_outlives_what_had_it(tab: Any) -> None:
    page = tab.page
    page.keyboard.insert_text(say("first"))
    tab_to(page, "send")
    page.keyboard.press("Space")
    assert focused(page) == "question"
    tab.done().wait_for()
    tab_to(page, "Regenerate", "Shift+Tab")
    page.keyboard.press("Enter")
    assert focused(page) == "thread"
    tab.done().wait_for()
    tab_to(page, "Edit")
    page.keyboard.press("Enter")
    assert focused(page) == "Edit the question"
    page.keyboard.press("Escape")
    assert focused(page) == "Edit"
    page.keyboard.press("Enter")
    page.keyboard.press("Control+a")
    asked(page, LONG)
    page.locator(".message.assistant .markdown p").first.wait_for()
    tab_to(page, "stop")
    page.keyboard.press("Enter")
    tab.done().wait_for()
    assert "stopped" in tab.done().inner_text() and focused(page) == "thread"


def test_escape_stops_wherever_the_focus_is_but_in_a_dialog(tab: Any) -> None:
    page = tab.page
    asked(page, LONG)
    page.locator(".message.assistant .markdown p").first.wait_for()
    page.locator(".remove").focus()
    page.keyboard.press("Enter")
    assert focused(page) == "Keep it"
    page.keyboard.press("Escape")
    assert focused(page).startswith("Remove “say:") and page.locator("#stop").is_visible()
    page.locator("#settings-toggle").focus()
    page.keyboard.press("Escape")
    tab.done().wait_for()
    assert "stopped" in tab.done().inner_text()


def test_who_is_in_the_list_of_chats_stays_there(tab: Any) -> None:
    page = tab.page
    for text in ("one", "two"):
        page.locator("#new-chat").focus()
        page.keyboard.press("Enter")
        assert focused(page) == "question"
        asked(page, text)
        tab.done().wait_for()
    titles = page.locator(".chat-title").all_inner_texts()
    tab_to(page, titles[1], "Shift+Tab")
    page.keyboard.press("Enter")  # opened, and its question has the focus
    asked(page, LONG)
    tab_to(page, titles[1], "Shift+Tab")
    page.keyboard.press("Escape")  # the end of the answer brings it to the list's top
    tab.page.locator(".message.assistant.done").nth(1).wait_for()
    assert focused(page) == titles[1] and page.locator(".chat-title").first.inner_text() == titles[1]
    for left in (f"Remove “{titles[0]}”", "new-chat"):
        tab_to(page, f"Remove “{page.locator('.chat-title').first.inner_text()}”")
        page.keyboard.press("Enter")
        tab_to(page, "Remove")
        page.keyboard.press("Enter")
        page.locator("#remove-dialog").wait_for(state="hidden")
        assert focused(page) == left


def test_the_first_link_leads_to_the_question_from_the_dashboard_too(tab: Any) -> None:
    page = tab.open("#dashboard")
    page.locator(".skip").focus()
    page.keyboard.press("Enter")
    page.locator("#question").wait_for()
    assert focused(page) == "question"


def test_sides_over_a_narrow_thread(tabs: Any) -> None:
    page = tabs(viewport={"width": 360, "height": 640}).open()
    tab_to(page, "settings-toggle")
    page.keyboard.press("Enter")
    assert focused(page) == "set-system"
    page.keyboard.press("Escape")
    assert focused(page) == "settings-toggle" and page.locator("#side-settings").is_hidden()
    assert page.locator("#settings-toggle").get_attribute("aria-expanded") == "false"
    tab_to(page, "list-toggle", "Shift+Tab")
    page.keyboard.press("Enter")
    assert focused(page) == "new-chat"
    page.keyboard.press("Enter")
    assert focused(page) == "question" and page.locator("#side-list").is_hidden()


def test_a_key_is_typed_or_refused(start: Any, tabs: Any) -> None:
    keyed = start(api_keys=["sesame"])
    keyed.wait_ready()
    tab = tabs(keyed.url)
    page = tab.open()
    tab_to(page, "question")
    asked(page, "inside")
    page.locator("#key-dialog[open]").wait_for()
    assert focused(page) == "key-input"
    page.keyboard.press("Escape")
    tab.done().wait_for()
    assert "key" in tab.done().inner_text() and focused(page) == "question"
    tab_to(page, "Try again", "Shift+Tab")
    page.keyboard.press("Enter")
    page.locator("#key-dialog[open]").wait_for()
    page.keyboard.insert_text("sesame")
    page.keyboard.press("Enter")
    page.locator(".message.assistant.done", has_text="inside").wait_for()


def test_a_key_refused_on_the_dashboard_is_asked_for_when_that_is_opened_again(start: Any, tabs: Any) -> None:
    keyed = start(api_keys=["sesame"])
    keyed.wait_ready()
    page = tabs(keyed.url).open("#dashboard")
    page.locator("#key-dialog[open]").wait_for()
    page.keyboard.press("Escape")
    page.locator("#feed-problem", has_text="without a key").wait_for()
    page.wait_for_timeout(2500)  # longer than between two tries of a lost connection
    assert page.locator("#key-dialog").is_hidden()
    tab_to(page, "tab-chat")
    page.keyboard.press("Enter")
    tab_to(page, "tab-dashboard")
    page.keyboard.press("Enter")
    page.locator("#key-dialog[open]").wait_for()
    page.keyboard.insert_text("sesame")
    page.keyboard.press("Enter")
    page.locator("#feed-state", has_text="live").wait_for()
    assert page.locator("#feed-problem").inner_text() == ""


def test_the_words_of_a_step_go_with_escape(tab: Any, server: Any) -> None:
    page = tab.open("#dashboard")
    page.locator("#feed-state", has_text="live").wait_for()
    server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": say("a")}]})
    page.locator("#timeline").focus()
    tip = page.locator("#step-tip")
    for _ in range(50):
        page.keyboard.press("ArrowLeft")
        if tip.is_visible():
            break
        page.wait_for_timeout(100)
    assert tip.is_visible()
    page.keyboard.press("Escape")
    assert tip.is_hidden()
