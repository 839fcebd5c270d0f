"""The parts of the terminal's chat: its state, its commands, what is typed and how answers look."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from bireme.server.terminal.answer import Answer
from bireme.server.terminal.display import MarkdownDisplay, PlainDisplay, split_blocks
from bireme.server.terminal.prompt import read_message
from bireme.server.terminal.session import Session
from bireme.server.terminal.slash import COMMANDS, Chat, Leave, run_command

MARKDOWN = st.lists(
    st.sampled_from(
        ["text", "\n", "\n\n", "```", "~~~", "```py\n", "- item", "1. one", "    code", "# Head", " ", "`"]
    ),
    max_size=30,
).map("".join)


@given(MARKDOWN, st.lists(st.integers(1, 9), max_size=20))
def test_blocks_are_the_text_however_it_comes(text: str, sizes: list[int]) -> None:
    done, rest, at = [], "", 0
    for size in [*sizes, len(text)]:
        rest += text[at : at + size]
        at += size
        block, rest = split_blocks(rest)
        done.append(block)
        assert block == "" or block.endswith("\n")
    assert "".join(done) + rest == text


@given(st.lists(st.sampled_from(["x = 1\n", "\n", "  y\n", "~~~\n"]), min_size=1, max_size=10))
def test_fenced_code_is_never_cut(lines: list[str]) -> None:
    text = "before\n\n```\n" + "".join(lines)
    assert split_blocks(text) == ("before\n\n", "```\n" + "".join(lines))
    assert split_blocks(text + "```\n\nafter")[1] == "after"


def test_lists_are_not_cut_inside_an_item() -> None:
    assert split_blocks("- one\n\n  more of one\n") == ("", "- one\n\n  more of one\n")
    assert split_blocks("- one\n\nelse") == ("- one\n\n", "else")


def test_plain_display_adds_the_last_line_break() -> None:
    for pieces, shown in ((["a", "b"], "ab\n"), (["a\n"], "a\n"), ([], "")):
        out = io.StringIO()
        with PlainDisplay(out) as display:
            for piece in pieces:
                display.add(piece, "not shown")
        assert out.getvalue() == shown


def test_markdown_display_prints_each_block_once() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=False, width=60)
    with MarkdownDisplay(console) as display:
        display.add("", "let me think")
        for piece in ("# Head\n", "\nOne *two*", " three.\n\n", "- a\n- b\n"):
            display.add(piece, "")
    lines = [line.strip() for line in out.getvalue().splitlines() if line.strip()]
    assert lines[0] == "let me think" and "One two three." in lines
    assert sum("Head" in line for line in lines) == 1 and lines[-2:] == ["• a", "• b"]
    quiet = io.StringIO()
    with MarkdownDisplay(Console(file=quiet, width=60), reasoning=False) as display:
        display.add("", "let me think")
        display.add("yes", "")
    assert quiet.getvalue().split() == ["yes"]


def test_answers_cannot_command_the_terminal() -> None:
    out = io.StringIO()
    with MarkdownDisplay(Console(file=out, width=80)) as display:
        display.add("", "a\x1b]52;c;aGk=\x07b")
        display.add("red \x1b", "")
        display.add("[31m\x9b2J [text](http://elsewhere) \x00\r\x7f", "")
    assert not set(out.getvalue()) & set("\x1b\x07\x9b\x00\r\x7f")
    assert "http://elsewhere" in out.getvalue()  # where a link leads is seen


def read(*lines: str) -> str:
    typed = iter(lines)
    return read_message(lambda prompt: next(typed))


def test_messages_of_several_lines() -> None:
    assert read("one") == "one"
    assert read("one\\", "two") == "one\ntwo"
    assert read('"""', "a", "", "b", '"""') == "a\n\nb"
    assert read('"""a', 'b""" rest') == "a\nb"
    assert read('"""a"""') == "a"


def test_a_session_keeps_what_was_said(tmp_path: Path) -> None:
    one = Session("m", "be brief", {"temperature": 0.5})
    one.say("hi")
    one.answered("hello", "hm")
    one.say("again")
    one.answered("")  # stopped before a word came
    one.save(tmp_path / "chat.json")
    two = Session("other")
    two.load(tmp_path / "chat.json")
    assert (two.model, two.system, two.sampling) == ("other", "be brief", {"temperature": 0.5})
    assert [message["role"] for message in two.body()["messages"]] == ["system", "user", "assistant"]
    assert two.messages[1] == {"role": "assistant", "content": "hello", "reasoning_content": "hm"}
    assert two.body()["temperature"] == 0.5


@pytest.mark.parametrize(
    "text", ["[]", "{}", '{"messages": [{"role": "king", "content": "x"}]}', '{"messages": [{"role": "user"}]}', "{"]
)
def test_other_files_are_no_chats(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    session = Session("m", "kept")
    with pytest.raises(ValueError):
        session.load(tmp_path / "x.json")
    assert session.system == "kept"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("/load {}/nowhere.json", "No such file"),
        ("/save {}/nowhere/x.json", "No such file"),
        ("/load {}", "directory"),
        ("/save {}", "directory"),
        ("/load {}/bytes", "no saved chat"),
    ],
)
def test_files_that_do_not_serve_are_named_with_the_reason(tmp_path: Path, line: str, reason: str) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    told = run_command(Chat(Session("m"), Answer(), ""), line.format(tmp_path))
    assert str(tmp_path) in told and reason in told and "Errno" not in told and "codec" not in told


def test_commands(tmp_path: Path) -> None:
    chat = Chat(Session("m"), Answer(), "m at http://x")
    assert run_command(chat, "/system Be brief.") == "system: Be brief."
    assert run_command(chat, "/system none") == "system: (none)" and chat.session.system == ""
    run_command(chat, "/temperature 0.3")
    assert chat.session.sampling == {"temperature": 0.3}
    assert "must be from 0 to 100" in run_command(chat, "/temperature -1")
    run_command(chat, "/temperature default")
    assert chat.session.sampling == {}
    chat.session.say("hi")
    assert "1 messages" in run_command(chat, f"/save {tmp_path}/c.json")
    run_command(chat, "/clear")
    assert chat.session.messages == []
    assert "1 messages" in run_command(chat, f"/load {tmp_path}/c.json")
    assert "name a file" in run_command(chat, "/save")
    assert run_command(chat, "/stats") == "m at http://x\nno answer yet"
    assert "/help lists" in run_command(chat, "/nope")
    assert all(f"/{name}" in run_command(chat, "/help") for name in COMMANDS)
    for word in ("/exit", "/quit", "/bye"):
        with pytest.raises(Leave):
            run_command(chat, word)
