"""Compiling: what comes out, what is refused and why, and what a grammar that breaks the library leaves behind."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator

import pytest
import scripted
from grammar_walk import demo_vocabulary

from bireme import LLM, GrammarSpec, SamplingParams
from bireme.core.grammar import GrammarError
from bireme.grammar.compiler import GrammarCompiler
from bireme.models.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def compiler() -> Iterator[GrammarCompiler]:
    vocabulary = demo_vocabulary()
    one = GrammarCompiler.of(vocabulary.tokenizer, frozenset(vocabulary.table.ends), timeout=1.0, kept=4)
    yield one
    one.close()


def schema(value: object) -> GrammarSpec:
    return GrammarSpec("json_schema", json.dumps(value))


def chained(levels: int) -> GrammarSpec:
    """Definitions that name each other, so deep that the library's stack breaks."""
    defs = {f"d{i}": {"type": "array", "items": {"$ref": f"#/$defs/d{i + 1}"}} for i in range(levels)}
    return schema({"$defs": {**defs, f"d{levels}": {"type": "null"}}, "$ref": "#/$defs/d0"})


def test_equal_specifications_are_compiled_once(compiler: GrammarCompiler) -> None:
    spec = GrammarSpec("regex", "[0-9]{4}", field="guided_regex")
    assert compiler.compile(spec) is compiler.compile(GrammarSpec("regex", "[0-9]{4}", field="other"))


def test_the_least_lately_used_is_forgotten(compiler: GrammarCompiler) -> None:
    first = compiler.compile(GrammarSpec("regex", "first"))
    for i in range(4):
        compiler.compile(GrammarSpec("regex", f"other{i}"))
    assert compiler.compile(GrammarSpec("regex", "first")) is not first


def test_a_kind_that_there_is_not() -> None:
    with pytest.raises(ValueError, match="'xml'; it must be one of json_schema, regex, choice, grammar"):
        GrammarSpec("xml", "x")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (schema({"type": "strng"}), "strng"),
        (schema({"$ref": "#/nowhere"}), "nowhere"),
        (schema({"enum": []}), "empty"),
        (schema({"type": "array", "uniqueItems": True}), "uniqueItems"),
        (GrammarSpec("json_schema", "["), "EOF"),
        (GrammarSpec("regex", "(a"), "regex"),
        (GrammarSpec("grammar", "root ::= ("), "Expected"),
        (GrammarSpec("grammar", "start: start"), "nothing"),
        (GrammarSpec("choice", "[]"), "none"),
        (GrammarSpec("choice", "yes"), "a list of strings"),
        (GrammarSpec("choice", "[1, 2]"), "a list of strings"),
    ],
)
def test_what_can_not_be_compiled_is_an_error_with_a_reason(
    compiler: GrammarCompiler, spec: GrammarSpec, words: str
) -> None:
    with pytest.raises(GrammarError, match=words) as error:
        compiler.compile(spec)
    assert 3 < len(str(error.value)) < 500


def test_what_breaks_the_library_breaks_nothing_else(compiler: GrammarCompiler) -> None:
    with pytest.raises(GrammarError, match="too deeply"):
        compiler.compile(chained(3000))
    with pytest.raises(GrammarError, match="longer than 1 s"):
        compiler.compile(schema({"type": "integer", "multipleOf": 1000003}))
    assert compiler.compile(chained(20)).first_mask.any()


def test_a_cancelled_one_is_not_worked_on_and_can_be_asked_for_again(compiler: GrammarCompiler) -> None:
    slow = [compiler.submit(schema({"type": "integer", "multipleOf": 1000003 + 2 * i})) for i in range(2)]
    spec = GrammarSpec("regex", "cancelled")
    waiting = compiler.submit(spec)
    assert waiting.cancel()
    again = compiler.submit(spec)
    assert again is not waiting and again.result(30).first_mask.any()
    assert all(isinstance(one.exception(30), GrammarError) for one in slow)


def test_nothing_is_started_before_the_first_grammar() -> None:
    vocabulary = demo_vocabulary()
    before = threading.active_count()
    GrammarCompiler.of(vocabulary.tokenizer, frozenset(vocabulary.table.ends), timeout=1.0, kept=4).close()
    assert threading.active_count() == before


def test_a_vocabulary_is_read_once_and_before_the_first_grammar_where_that_is_asked() -> None:
    vocabulary, asked = demo_vocabulary(), threading.Event()
    reads = []

    def read() -> Tokenizer:
        reads.append(threading.current_thread())
        asked.set()
        return vocabulary.tokenizer

    compiler = GrammarCompiler(read, frozenset(vocabulary.table.ends), timeout=1.0, kept=4)
    assert not reads
    compiler.prepare()
    assert asked.wait(30)
    futures = [compiler.submit(GrammarSpec("regex", text)) for text in ("one", "two", "three")]
    assert all(future.result(30).first_mask.any() for future in futures)
    assert len(reads) == 1 and reads[0] is not threading.main_thread()
    compiler.close()


def test_a_vocabulary_that_is_of_no_use_refuses_each_grammar_with_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    def read() -> Tokenizer:
        raise OSError("tokenizer.json has gone")

    compiler = GrammarCompiler(read, frozenset(), timeout=1.0, kept=4)
    for text in ("one", "two", "three"):
        with pytest.raises(GrammarError, match="tokenizer.json has gone"):
            compiler.compile(GrammarSpec("regex", text))
    assert caplog.text.count("can't be held to schemas or grammars: tokenizer.json has gone") == 1
    compiler.close()


def test_end_tokens_and_control_tokens_are_no_text() -> None:
    vocabulary = demo_vocabulary()
    spec = GrammarSpec("regex", "(.|\\n)*")
    assert vocabulary.allows(spec, "any text at all\n")
    assert not vocabulary.allows(spec, "<|im_start|>user")  # encoded as the control token it is
    walked = [vocabulary.walk(spec, seed) for seed in range(5)]
    assert not any("<|" in text for text in walked if text)


def test_llm_follows_grammars_without_a_server() -> None:
    options = {"max_num_seqs": 4, "kv_cache_memory": 16 << 20, "cpu_precision": "exact"}
    with LLM(str(scripted.SCRIPTED), device="cpu", max_model_len=128, progress=False, **options) as llm:
        params = SamplingParams(
            temperature=1.5, seed=1, max_tokens=30, n=3, grammar=GrammarSpec("regex", "[a-c]{2}-[0-9]")
        )
        answers = llm.generate("x0", params, progress=False)[0].outputs
        assert all(len(one.text) == 4 and one.text[2] == "-" and one.finish_reason == "stop" for one in answers)
        with pytest.raises(ValueError, match="strng"):
            llm.generate("x0", SamplingParams(grammar=schema({"type": "strng"})), progress=False)
