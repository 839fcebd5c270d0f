"""Text fidelity of outputs: the scripted answers, in every cut, with and without stop strings."""

from __future__ import annotations

from itertools import pairwise

import gguf
import pytest
import scripted

from bireme.core.output import OutputText
from bireme.core.request import FinishReason, SequenceOutput, TokenLogprob
from bireme.models.text import TextModel

ENDING = [key for key, trigger in scripted.TRIGGERS.items() if key != "7"]
END = scripted.SPECIAL_IDS["<|im_end|>"]


def deltas(model: TextModel, ids: tuple[int, ...], stop: tuple[str, ...] = (), include_stop: bool = False) -> list[str]:
    output = OutputText(model.tokenizer, stop, include_stop)
    return [*(output.push([token]) for token in ids), output.flush()]


@pytest.mark.parametrize("key", ENDING)
def test_deltas_joined_are_the_text(byte_level: TextModel, key: str) -> None:
    trigger = scripted.TRIGGERS[key]
    assert "".join(deltas(byte_level, trigger.token_ids)) == trigger.text
    assert OutputText(byte_level.tokenizer).push(trigger.token_ids).rstrip() == trigger.text.rstrip("\ufffd").rstrip()


@pytest.mark.parametrize("key", ["1", "2"])
def test_a_character_split_over_tokens_comes_whole(byte_level: TextModel, key: str) -> None:
    pieces = deltas(byte_level, scripted.TRIGGERS[key].token_ids)
    assert [piece for piece in pieces if piece] == [scripted.TRIGGERS[key].text]


def test_a_character_never_completed_is_replaced_at_the_end_only(byte_level: TextModel) -> None:
    pieces = deltas(byte_level, scripted.TRIGGERS["3"].token_ids)
    assert pieces == ["caf", "", "\ufffd"]


@pytest.mark.parametrize("key", ["0", "1", "2"])
def test_sentencepiece_output_keeps_its_leading_space_and_joins_bytes(spm: TextModel, key: str) -> None:
    """A07"""
    trigger = scripted.SPM_TRIGGERS[key]
    vocabulary = gguf.GGUFReader(scripted.SCRIPTED_SPM).fields["tokenizer.ggml.tokens"].contents()
    tokens = tuple(vocabulary.index(token) for token in trigger["tokens"])
    pieces = deltas(spm, tokens)
    assert "".join(pieces) == trigger["text"]
    assert not any("\ufffd" in piece for piece in pieces)
    assert spm.tokenizer.decode(tokens, continues=True) == trigger["text"]


@pytest.mark.parametrize(
    ("key", "stop", "text"),
    [
        ("4", "DEFGHIJ", "abc"),
        ("4", "J", "abcDEFGHI"),
        ("D", "4", '{"answer": '),
        ("8", "arg", '<tool_call>\n{"name": "get_weather", "'),
        ("0", " hello", ""),
        ("1", "😀", ""),
    ],
)
def test_text_ends_before_a_stop_string(byte_level: TextModel, key: str, stop: str, text: str) -> None:
    trigger = scripted.TRIGGERS[key]
    assert "".join(deltas(byte_level, trigger.token_ids, (stop,))) == text
    assert OutputText(byte_level.tokenizer, (stop,)).push(trigger.token_ids) == text
    assert "".join(deltas(byte_level, trigger.token_ids, (stop,), include_stop=True)) == text + stop


def test_the_start_of_a_stop_string_is_held_until_it_is_decided(byte_level: TextModel) -> None:
    pieces = deltas(byte_level, scripted.TRIGGERS["4"].token_ids, ("DEFGHIJ",))
    assert pieces == ["abc", "", "", "", "", "", ""]


def test_text_held_for_a_stop_string_is_given_out_at_the_end(byte_level: TextModel) -> None:
    pieces = deltas(byte_level, scripted.TRIGGERS["5"].token_ids, (" tre\nAAAA",))
    assert "".join(pieces) == "uno due tre"
    assert pieces[-1] == " tre"


def test_the_stop_string_that_is_complete_first_wins(byte_level: TextModel) -> None:
    output = OutputText(byte_level.tokenizer, ("GHIJklm", "FGH", "cDEFGH"))
    text = output.push(scripted.TRIGGERS["4"].token_ids)
    assert (text, output.stopped, output.num_tokens) == ("ab", "cDEFGH", 4)
    assert output.push([65]) == "" and output.flush() == ""


def test_an_empty_stop_string_is_refused(byte_level: TextModel) -> None:
    with pytest.raises(ValueError, match="at least one character"):
        OutputText(byte_level.tokenizer, ("a", ""))


def test_offsets_say_where_each_token_begins(byte_level: TextModel) -> None:
    trigger = scripted.TRIGGERS["4"]
    output = OutputText(byte_level.tokenizer)
    output.push(trigger.token_ids)
    pieces = [trigger.text[a:b] for a, b in pairwise([*output.offsets, output.length])]
    assert pieces == ["abc", "DEF", "G", "HI", "J", "klm"]


def sequence_output(ids: tuple[int, ...], reason: FinishReason | None = None) -> SequenceOutput:
    scores = tuple(TokenLogprob(-0.5, (token,), (-0.5,)) for token in ids)
    return SequenceOutput("r", 0, ids, scores, reason)


def test_the_end_token_is_counted_and_is_no_text(byte_level: TextModel) -> None:
    text = byte_level.output(skip_special_tokens=False)
    first = text.feed(sequence_output((263,)))
    last = text.feed(sequence_output((195, END), FinishReason.STOP))
    assert (first.text, last.text) == ("caf", "\ufffd")
    assert (last.token_ids, last.offsets, last.finish_reason) == ((195, END), (3, 4), FinishReason.STOP)
    assert text.num_tokens == 3 and not last.abort


def test_a_stop_string_ends_a_sequence_the_engine_still_runs(byte_level: TextModel) -> None:
    text = byte_level.output(("GHI",))
    ids = scripted.TRIGGERS["4"].token_ids
    delta = text.feed(sequence_output(ids))
    assert (delta.text, delta.stop, delta.finish_reason) == ("abcDEF", "GHI", FinishReason.STOP)
    assert delta.abort and delta.token_ids == ids[:4]
    assert delta.logprobs is not None and len(delta.logprobs) == 4
    late = text.feed(sequence_output((65, END), FinishReason.STOP))
    assert (late.text, late.token_ids, late.finish_reason, text.num_tokens) == ("", (), None, 4)


def test_a_stop_string_in_the_last_step_is_a_stop_and_not_a_length(byte_level: TextModel) -> None:
    text = byte_level.output(("HI",))
    delta = text.feed(sequence_output(scripted.TRIGGERS["4"].token_ids[:4], FinishReason.LENGTH))
    assert (delta.text, delta.finish_reason) == ("abcDEFG", FinishReason.STOP)
