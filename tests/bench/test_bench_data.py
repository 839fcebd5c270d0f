"""What requests ask: made-up prompts of given lengths, and files of each kind, the broken ones among them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bireme.bench.data import draw
from bireme.bench.dataset import DataSpec
from bireme.bench.sources import IdSource, WordSource


def test_data_sets(tmp_path: Path) -> None:
    ids = IdSource(1000)
    first, second = (draw(DataSpec(input_len=50, range_ratio=0.2), ids, 40, number) for number in (0, 1))
    lengths = {len(session.turns[0].content) for session in first.sessions}
    assert min(lengths) >= 40 and max(lengths) <= 60 and len(lengths) > 5
    assert first.sessions != second.sessions  # a level's prompts are its own
    assert first.sessions == draw(DataSpec(input_len=50, range_ratio=0.2), ids, 40, 0).sessions
    shared = draw(DataSpec("prefix", prefix_len=30, num_prefixes=2, input_len=5), ids, 20)
    assert len({session.turns[0].content[:30] for session in shared.sessions}) == 2
    path = tmp_path / "file"
    turns = [{"from": "human", "value": "a b c d e f"}, {"from": "gpt", "value": "g " * 20}]
    path.write_text(json.dumps([{"conversations": turns}, {"conversations": turns[:1]}]), encoding="utf-8")
    (chat,) = draw(DataSpec("sharegpt", path), WordSource(1.0), 1).sessions
    assert (chat.turns[0].content, chat.turns[0].max_tokens) == ("a b c d e f", 20)
    path.write_text('{"prompt": [1, 2, 3], "max_tokens": 9}\n{"prompt": "text", "max_tokens": 9}\n', encoding="utf-8")
    found = {session.turns[0].content for session in draw(DataSpec("jsonl", path), ids, 2).sessions}
    assert found == {(1, 2, 3), "text"}


def test_levels_go_on_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("\n".join(json.dumps({"prompt": f"p{i}"}) for i in range(10)) + '\n{"ask": 1}\n', encoding="utf-8")
    spec = DataSpec("jsonl", path)
    first, second, third = (draw(spec, WordSource(), 4, number, 4 * number) for number in range(3))
    asked = [[session.turns[0].content for session in level.sessions] for level in (first, second, third)]
    assert not set(asked[0]) & set(asked[1]) and len(set(sum(asked, []))) == 10
    assert len(first.notes) == 1 and "1 of 11 entries" in first.notes[0] and "holds 10 usable" in third.notes[1]


@pytest.mark.parametrize(
    ("kind", "content", "message"),
    [
        ("jsonl", '{"prompt": "a"}\n{"prompt": ', "line 2"),
        ("jsonl", '{"prompt": "a", "max_tokens": "many"}', "max_tokens is 'many'"),
        ("jsonl", '{"prompt": ""}', "wanted is a prompt"),
        ("jsonl", '{"prompt": "a", "max_tokens": 1e999}', "max_tokens is inf"),
        ("trace", '{"timestamp": 3}', "wanted are timestamp"),
        ("trace", '{"timestamp": "soon", "input_length": 3, "output_length": 3}', "timestamp is 'soon'"),
        ("trace", '{"input_length": 3}', "wanted are timestamp"),
        ("sharegpt", "[]", "wanted is a question"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, kind: str, content: str, message: str) -> None:
    path = tmp_path / "file"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        draw(DataSpec(kind, path), WordSource(), 1)


def test_traces_keep_their_times_and_shared_blocks(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    lines = [
        {"timestamp": 3500, "input_length": 600, "output_length": 2, "hash_ids": [1, 3]},
        {"timestamp": 1000, "input_length": 700, "output_length": 3, "hash_ids": [1, 2]},
    ]
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    drawn = draw(DataSpec("trace", path), IdSource(1000), 10)
    assert drawn.due == [0, 2.5]
    a, b = (session.turns[0] for session in drawn.sessions)
    assert (len(a.content), len(b.content), a.max_tokens) == (700, 600, 3)
    assert a.content[:512] == b.content[:512] and a.content[512] != b.content[512]


def test_a_conversation_of_any_shape_is_used_or_left_out(tmp_path: Path) -> None:
    path, question, answer = tmp_path / "file", "one two three four five", "six seven eight nine"
    said = [{"from": "human", "value": question}, {"from": "gpt", "value": answer}]
    usable = [
        said,
        [{"from": "system", "value": "be kind to all of them"}, *said],
        [{"role": "assistant", "content": "what can I do for you"}, {"role": "user", "content": question}, said[1]],
        [{"value": question}, {"value": answer}],
    ]
    broken = [5, "abc", None, [], [3, None], said[:1], [{"from": "gpt", "value": answer}] * 2, [{"from": "human"}] * 2]
    entries = [*({"conversations": one} for one in [*usable, *broken]), 7, None, {}]
    path.write_text(json.dumps(entries), encoding="utf-8")
    drawn = draw(DataSpec("sharegpt", path), WordSource(1.0), 4)
    assert [session.turns[0].content for session in drawn.sessions] == [question] * 4
    assert len(drawn.notes) == 1 and f"{len(broken) + 3} of {len(entries)} entries are left out" in drawn.notes[0]


def test_lines_of_a_file_end_where_json_lines_end(tmp_path: Path) -> None:
    """Not at what else Unicode breaks lines at; and a byte order mark is no text."""
    path, prompt = tmp_path / "file", "one\u2028two\x85three"
    path.write_text(json.dumps({"prompt": prompt}, ensure_ascii=False) + "\r\n", encoding="utf-8-sig", newline="")
    (session,) = draw(DataSpec("jsonl", path), WordSource(), 1).sessions
    assert session.turns[0].content == prompt


def test_a_trace_is_sorted_and_what_has_no_length_is_left_out(tmp_path: Path) -> None:
    path, sizes = tmp_path / "file", {"input_length": 4, "output_length": 2}
    lines = [{"timestamp": 30.5} | sizes, {"timestamp": 10.25} | sizes, {"timestamp": 5, "input_length": 4}]
    lines += [{"timestamp": 6} | sizes | {"output_length": 0}, {"timestamp": 20, "hash_ids": 7} | sizes]
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    drawn = draw(DataSpec("trace", path), IdSource(1000), 10)
    assert drawn.due == pytest.approx([0, 0.00975, 0.02025]) and "2 of 5 entries" in drawn.notes[0]
