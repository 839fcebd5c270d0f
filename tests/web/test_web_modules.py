"""The page's modules that touch no server, run where they run: in the browser."""

from __future__ import annotations

import json
from typing import Any

import pytest

STREAM = (
    'data: {"a":1}\n\n: comment\r\ndata: one\r\ndata: two\r\n\r\ndata:{"b":"\u2028é"}\n\nevent: x\n\ndata: [DONE]\n\n'
)
TEXT = (
    "Intro *with* emphasis\nand a break\n\n1. one\n2. two\n   - deep\n\n   more\n\n> quoted\n> lines\n\n"
    "```js\nlet a = '`';\n\nlet b;\n```\n\n| h | i |\n|---|:-:|\n| 1 | `2` |\n| <br> | &amp; |\n\nSetext\n======\n\n"
    "Last with [a link](https://example.org) and [reference] and ~~gone~~.\n\n- [x] done\n- [ ] open\n\n"
    "---\n\n<div>raw</div>\n"
)


def run(tab: Any, body: str, argument: Any = None) -> Any:
    return tab.page.evaluate(f"async (argument) => {{ {body} }}", argument)


def test_events_however_they_are_cut(tab: Any) -> None:
    found = run(
        tab,
        """
        const { EventReader } = await import("/web/js/sse.js");
        const all = [];
        for (let size = 1; size <= argument.length; size += 1) {
          const reader = new EventReader();
          const events = [];
          for (let at = 0; at < argument.length; at += size) events.push(...reader.push(argument.slice(at, at + size)));
          all.push(JSON.stringify(events));
        }
        return [...new Set(all)];
        """,
        STREAM,
    )
    assert [json.loads(one) for one in found] == [['{"a":1}', "one\ntwo", '{"b":"\u2028é"}', "[DONE]"]]


def test_markdown_streamed_is_markdown_whole(tab: Any) -> None:
    """Whatever the pieces, the elements at the end are those of the whole text; settled ones are never touched."""
    found = run(
        tab,
        """
        const { Markdown } = await import("/web/js/markdown.js");
        const html = (size) => {
          const box = document.createElement("div");
          const view = new Markdown(box);
          for (let at = size; at < argument.length; at += size) view.show(argument.slice(0, at));
          view.show(argument, true);
          return box.innerHTML;
        };
        const whole = html(argument.length);
        return { whole, other: [1, 2, 3, 7, 20].map(html).filter((one) => one !== whole) };
        """,
        TEXT,
    )
    assert found["other"] == []
    for mark in ("<ol", "<blockquote>", "<table>", "<h3>", "<em>", "<del>", 'type="checkbox"', "<hr>"):
        assert mark in found["whole"], mark
    assert "&lt;div&gt;raw&lt;/div&gt;" in found["whole"]


def test_blocks_that_are_done_stay(tab: Any) -> None:
    assert run(
        tab,
        """
        const { Markdown } = await import("/web/js/markdown.js");
        const box = document.createElement("div");
        const settled = [];
        const view = new Markdown(box, (text) => settled.push(text));
        view.show("first\\n\\n```js\\nlet a");
        const [paragraph, code] = [box.children[0], box.querySelector("code").firstChild];
        view.show("first\\n\\n```js\\nlet a = 1;\\nmore");
        const stayed = box.children[0] === paragraph && box.querySelector("code").firstChild === code;
        return stayed && settled.join() === "first";
        """,
    )


def test_a_very_long_answer_does_not_freeze_the_page(tab: Any) -> None:
    """20,000 tokens, shown five hundred at a time: in paragraphs, in one block of code, in one list. The work of a
    piece must not grow with what came before; it is counted in elements made, which no other load changes."""
    made = run(
        tab,
        """
        const { Markdown } = await import("/web/js/markdown.js");
        const create = document.createElement;
        const counts = {};
        const kinds = { paragraphs: "some words in a line\\n\\n", code: "let v = 1;\\n", list: "- an item of it\\n" };
        for (const [kind, piece] of Object.entries(kinds)) {
          const view = new Markdown(create.call(document, "div"));
          let text = kind === "code" ? "```js\\n" : "";
          let made = 0;
          document.createElement = function (...given) { made += 1; return create.apply(document, given); };
          for (let tokens = 0; tokens < 20000; tokens += 500) view.show((text += piece.repeat(100)));
          document.createElement = create;
          counts[kind] = made;
        }
        return counts;
        """,
    )
    assert made["paragraphs"] < 4500 and made["code"] < 20 and made["list"] < 8200, made


def test_an_answer_out_of_its_chunks(tab: Any) -> None:
    calls = (
        {"index": 0, "id": "c1", "function": {"name": "f", "arguments": "{"}},
        {"index": 0, "function": {"arguments": "}"}},
    )
    chunks = [
        {"choices": [{"delta": {"role": "assistant", "content": ""}}]},
        {"choices": [{"delta": {"reasoning_content": "hm"}}], "usage": {"prompt_tokens": 9, "completion_tokens": 1}},
        {"choices": [{"delta": {"content": "yes"}}]},
        *({"choices": [{"delta": {"tool_calls": [call]}}]} for call in calls),
        {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]},
        {
            "choices": [],
            "usage": {"prompt_tokens": 9, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 8}},
        },
    ]
    found = run(
        tab,
        """
        const { Reply } = await import("/web/js/reply.js");
        const reply = new Reply(1000);
        argument.forEach((chunk, at) => reply.take(chunk, 1100 + 100 * at));
        return { ...reply, ttft: reply.ttft, rate: reply.rate };
        """,
        chunks,
    )
    assert (found["content"], found["reasoning"], found["finish"]) == ("yes", "hm", "tool_calls")
    assert found["calls"] == [{"id": "c1", "name": "f", "arguments": "{}"}]
    assert found["usage"] == {"prompt": 9, "completion": 5, "cached": 8}
    assert found["ttft"] == 0.2 and round(found["rate"], 6) == round(4 / 0.3, 6)


def test_history_keeps_lanes_shares_and_the_last_minute(tab: Any) -> None:
    found = run(
        tab,
        """
        const { History } = await import("/web/js/history.js");
        const { fit } = await import("/web/js/blockmap.js");
        const history = new History();
        const user = (name) => ({ name, own: name === "b", running: 1, waiting: 0 });
        const users = [user("a"), user("b")];
        const blocks = { num_blocks: 2, per_cell: 1, used: "AQA=", shared: "AAA=", cached: "AAE=" };
        const snapshot = (time, sequences, steps) => history.take({
          state: "ok", time, blocks, sequences, steps, users,
          stats: { steps: time, tokens_generated: 10 * time, prompt_tokens_computed: 0, prompt_tokens_cached: 0 },
        });
        const sequences = [[7, "r7", 0, 64, 0, 1, false], [8, "r8", 1, 32, 16, 0, false]];
        const first = [1, 0.5, 0.1, [7], [[8, 16, 16]]];
        snapshot(1, sequences, [first, [2, 0.6, 0.1, [7, 8], []], [3, 0.7, 0.1, null, []]]);
        const lanes = [history.sequences.get(7).lane, history.sequences.get(8).lane];
        const shares = Object.fromEntries([...history.shares()].map(([user, one]) => [user.name, one]));
        const repeated = history.steps[2].decodes;
        snapshot(2, [[7, "r7", 0, 64, 0, 9, true]], []);
        snapshot(100, [[9, "r9", 0, 5, 0, 1, false]], [[50, 99, 0.5, [9], []]]);
        const cells = [[1, 300, 200], [4096, 400, 240], [91, 500, 300]].map(([n, w, h]) => {
          const { size, columns } = fit(n, w, h);
          return size * columns <= w + 1e-9 && size * Math.ceil(n / columns) <= h + 1e-9;
        });
        const { rates, steps } = history;
        return { lanes, shares, repeated, left: [...history.sequences.keys()], steps: steps.length, rates, cells };
        """,
    )
    assert found["lanes"] == [0, 1] and found["repeated"] == [7, 8] and found["cells"] == [True] * 3
    assert found["shares"]["a"] == pytest.approx({"made": 3 / 5, "read": 0})
    assert found["shares"]["b"] == pytest.approx({"made": 2 / 5, "read": 16 / 5})
    assert found["steps"] == 1 and 7 not in found["left"] and 9 in found["left"]
    assert found["rates"][0]["made"] == 10
