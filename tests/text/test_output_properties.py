"""Outputs, whatever the tokens and however they are cut: the pieces are the whole, in linear time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Inner
from tokenizers import decoders, models

from bireme.core.output import OutputText
from bireme.core.stops import StopMatcher
from bireme.models.text import TextModel
from bireme.models.tokenizer import Tokenizer
from bireme.models.vocabulary import Vocabulary


def cut(ids: Sequence[int], places: list[int]) -> list[list[int]]:
    edges = sorted({0, len(ids), *(place % (len(ids) + 1) for place in places)})
    return [list(ids[a:b]) for a, b in zip(edges, edges[1:], strict=False)]


def joined(output: OutputText, pieces: list[list[int]]) -> str:
    return "".join([*(output.push(piece) for piece in pieces), output.flush()])


# Runs of spaces, all bytes, special ids and everything else of both scripted vocabularies.
IDS = st.lists(st.integers(0, 351) | st.sampled_from([32] * 3 + [240, 159, 152, 128, 306, 307, 259]), max_size=60)
CUTS = st.lists(st.integers(0, 60), max_size=8)


@settings(max_examples=400, deadline=None)
@given(ids=IDS, places=CUTS, skip=st.booleans())
def test_pieces_joined_are_the_full_decode(
    byte_level: TextModel, spm: TextModel, ids: list[int], places: list[int], skip: bool
) -> None:
    """A22"""
    for tokenizer in (byte_level.tokenizer, spm.tokenizer):
        whole = tokenizer.decode(ids, skip_special_tokens=skip, continues=True)
        output = OutputText(tokenizer, skip_special_tokens=skip)
        assert joined(output, cut(ids, places)) == whole
        assert output.length == len(whole)


@settings(max_examples=100, deadline=None)
@given(ids=st.lists(st.integers(0, 49151), max_size=60), places=CUTS)
def test_pieces_joined_are_the_full_decode_of_the_demo_model(
    demo: TextModel, ids: list[int], places: list[int]
) -> None:
    assert joined(OutputText(demo.tokenizer), cut(ids, places)) == demo.tokenizer.decode(ids)


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=40), places=CUTS)
def test_no_replacement_character_comes_out_of_whole_text(byte_level: TextModel, text: str, places: list[int]) -> None:
    output = OutputText(byte_level.tokenizer)
    ids = byte_level.tokenizer.encode(text, parse_special=False)
    pieces = [output.push(piece) for piece in cut(ids, places)]
    assert "".join(pieces) == text.encode("utf-8", "replace").decode() and output.flush() == ""


STOPS = st.lists(st.text("ab ", min_size=1, max_size=4), min_size=1, max_size=3)


@settings(max_examples=500, deadline=None)
@given(text=st.text("ab ", max_size=30), stops=STOPS, places=st.lists(st.integers(0, 30), max_size=6))
def test_stop_strings_are_found_as_in_the_whole_text(text: str, stops: list[str], places: list[int]) -> None:
    ends = [match.end() + len(stop) for stop in stops for match in re.finditer(f"(?={stop})", text)]
    end = min(ends, default=None)
    found = max((stop for stop in stops if end is not None and text[:end].endswith(stop)), key=len, default=None)
    want = text if end is None or found is None else text[: end - len(found)]

    matcher, out, stopped = StopMatcher(stops), "", None
    edges = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    for a, b in zip(edges, edges[1:], strict=False):
        piece, stopped = matcher.push(text[a:b])
        out += piece
        if stopped is not None:
            break
        held = text[len(out) : b]
        assert held == "" or any(stop.startswith(held) for stop in stops)
    assert (out + ("" if stopped else matcher.flush()), stopped) == (want, found)


@dataclass
class Counting:
    """A tokenizer that counts the ids it is asked about."""

    tokenizer: Tokenizer
    asked: int = 0
    special_ids: frozenset[int] = frozenset()
    context_free: bool = True
    decoded: list[int] = field(default_factory=list)

    def token_bytes(self, token_id: int) -> bytes:
        self.asked += 1
        return self.tokenizer.token_bytes(token_id)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        self.asked += len(ids)
        return self.tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)


@pytest.mark.parametrize("context_free", [True, False])
def test_detokenising_is_linear(byte_level: TextModel, context_free: bool) -> None:
    """A21"""
    asked = []
    for length in (1000, 8000):
        counting = Counting(byte_level.tokenizer, context_free=context_free)
        output = OutputText(counting, ("never seen",))
        ids = byte_level.tokenizer.encode("the quick brown fox " * length)[:length]
        assert joined(output, [[i] for i in ids]) == byte_level.tokenizer.decode(ids)
        asked.append(counting.asked)
    assert asked[1] <= 9 * asked[0]


def library_tokenizer(decoder: object, words: Sequence[str]) -> Tokenizer:
    inner = Inner(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=words[0]))
    inner.decoder = decoder
    vocabulary = Vocabulary(inner, [word.encode() for word in words], {}, None, None, context_free=False)
    return Tokenizer(vocabulary, len(words))


SPACES = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
DECODERS = {
    "wordpiece": (decoders.WordPiece(), ["the", "##s", "n't", ".", ",", "do", "##é", "a"]),
    "bpe": (decoders.BPEDecoder(), ["the</w>", "s", "n</w>", ".</w>", "do", "é</w>", "a"]),
    "ctc": (decoders.CTC(), ["<pad>", "|", "a", "b", "c", "é"]),
    "byte_level": (decoders.ByteLevel(), ["Ġ", "ð", "Ł", "ĺ", "Ģ", "a", "Ã", "©"]),
    "fused": (decoders.Sequence(SPACES), ["▁", "▁a", "<0xF0>", "<0x9F>", "<0x98>", "<0x80>", "b"]),
}


@pytest.mark.parametrize("name", DECODERS)
@settings(max_examples=60, deadline=None)
@given(numbers=st.lists(st.integers(0, 50), max_size=200), places=CUTS)
def test_decoders_that_look_around_give_the_full_decode_too(name: str, numbers: list[int], places: list[int]) -> None:
    """A22"""
    decoder, words = DECODERS[name]
    tokenizer = library_tokenizer(decoder, words)
    ids = [number % len(words) for number in numbers]
    assert joined(OutputText(tokenizer), cut(ids, places)) == tokenizer.decode(ids)


RUNS = st.lists(st.tuples(st.lists(st.integers(0, 50), min_size=1, max_size=4), st.integers(1, 40)), max_size=4)


@pytest.mark.parametrize("name", DECODERS)
@settings(max_examples=60, deadline=None)
@given(runs=RUNS, places=CUTS)
def test_what_comes_again_and_again_is_decoded_as_a_whole_too(
    name: str, runs: list[tuple[list[int], int]], places: list[int]
) -> None:
    """A22: longer than the window, so that what is decided at a run's end must not be forgotten in its middle."""
    decoder, words = DECODERS[name]
    tokenizer = library_tokenizer(decoder, words)
    ids = [number % len(words) for part, times in runs for number in part * times]
    assert joined(OutputText(tokenizer), cut(ids, places)) == tokenizer.decode(ids)
