"""How text is cut into words before byte-level BPE: one record per ``tokenizer.ggml.pre`` name.

A GGUF file names its rule and does not hold it, so the rules stand here. The expressions are those of each model's
own ``tokenizer.json``, written for Oniguruma, the engine of the ``tokenizers`` library. A wrong rule gives wrong ids
without any error, so a name that isn't in the table is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

_CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_TAIL}"
_QWEN2 = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_TAIL}"
_QWEN35 = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_TAIL}"
)
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
_CASED = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
)
_SLASHED_TAIL = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_TAIL}"
_TEKKEN = rf"{_CASED[0]}|{_CASED[1]}|\p{{N}}|{_SLASHED_TAIL}"
_GPT4O = rf"{_CASED[0]}{_CONTRACTION}?|{_CASED[1]}{_CONTRACTION}?|\p{{N}}{{1,3}}|{_SLASHED_TAIL}"
_ASCII_PUNCTUATION = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"
_DEEPSEEK_V3 = (
    rf"{_ASCII_PUNCTUATION}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_TAIL}"
)
_CASED_RANGES = (  # code points: the cased letters of an older Unicode, spelt out as DeepSeek's file does
    "41-5a 61-7a b5 c0-d6 d8-f6 f8-1ba 1bc-1bf 1c4-293 295-2af 370-373 376 377 37b-37d 37f 386 388-38a 38c "
    "38e-3a1 3a3-3f5 3f7-481 48a-52f 531-556 10a0-10c5 13a0-13f5 13f8-13fd 1c90-1cba 1cbd-1cbf 1d00-1d2b "
    "1d6b-1d77 1d79-1d9a 1e00-1f15 1f18-1f1d 1f20-1f45 1f48-1f4d 1f50-1f57 1f59 1f5b 1f5d 1f5f-1f7d 1f80-1fb4 "
    "1fb6-1fbc 1fbe 1fc2-1fc4 1fc6-1fcc 1fd0-1fd3 1fd6-1fdb 1fe0-1fec 1ff2-1ff4 1ff6-1ffc 2102 2107 210a-2113 "
    "2115 2119-211d 2124 2126 2128 212a-212d 212f-2134 2139 213c-213f 2145-2149 214e 2183 2184 2c00-2c7b "
    "2c7e-2ce4 2ceb-2cee 2cf2 2cf3 a640-a66d a680-a69b a722-a76f a771-a787 a78b-a78e ab70-abbf fb00-fb06 "
    "fb13-fb17 ff21-ff3a ff41-ff5a 10400-1044f 104b0-104d3 104d8-104fb 10c80-10cb2 10cc0-10cf2 118a0-118df "
    "1e900-1e943"
)
_DEEPSEEK_LETTERS = (
    r"\s?[" + "".join("-".join(rf"\x{{{point}}}" for point in span.split("-")) for span in _CASED_RANGES.split()) + "]+"
)
_CASCADE = "|".join(rf"\s{{{n}}}(?!\S)" for n in ("512", "256", "128", "64", "32", "16", "8", "4", "1,2"))
_JAIS2 = _LLAMA3.removesuffix(r"|\s+(?!\S)|\s+") + rf"|{_CASCADE}|\s"
_SEED_CODER = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_TAIL}"
_BAILING = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """``splits`` are applied one after the other to what is left; each match, and each gap, becomes a word."""

    splits: tuple[str, ...]
    normalize_nfc: bool = False
    ignore_merges: bool = False  # a word that is in the vocabulary is one token, reachable by merges or not
    add_bos: bool = False  # unless the file says otherwise

    def build(self) -> Any:
        """The equivalent ``tokenizers`` pre-tokenizer, byte mapping included."""
        from tokenizers import Regex, pre_tokenizers

        steps: list[Any] = [pre_tokenizers.Split(Regex(split), "isolated") for split in self.splits]
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
        return pre_tokenizers.Sequence(steps)


_gpt2 = PreTokenizer((_GPT2,))
_gpt2_nfc = replace(_gpt2, normalize_nfc=True)
_single_digits = PreTokenizer((r"\p{N}", _GPT2))
_llama3 = PreTokenizer((_LLAMA3,))
_qwen2 = PreTokenizer((_QWEN2,))
_deepseek_v3 = PreTokenizer((r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", _DEEPSEEK_V3))
_gpt4o = PreTokenizer((_GPT4O,))

#: What a file without a name, or with the name "default", is read with: it suits no model in particular.
DEFAULT = PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"))


def _table() -> Iterator[tuple[str, PreTokenizer]]:
    def each(names: str, rule: PreTokenizer) -> Iterator[tuple[str, PreTokenizer]]:
        return ((name, rule) for name in names.split())

    yield from each("gpt-2 phi-2 gigachat a.x-4.0 mellum exaone4 jais trillion granite-docling", _gpt2)
    yield from each("olmo mpt", _gpt2_nfc)
    yield from each("smollm starcoder refact codeshell exaone minerva-7b mellum2", _single_digits)
    yield "command-r", replace(_single_digits, normalize_nfc=True)
    yield from each(
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2",
        replace(_llama3, ignore_merges=True, add_bos=True),
    )
    yield from each("smaug-bpe dbrx glm4 chatglm-bpe", _llama3)
    yield from each("qwen2 megrez", replace(_qwen2, normalize_nfc=True))
    yield from each("deepseek-r1-qwen kormo stablelm2 hunyuan solar-open grok-2", _qwen2)
    yield "qwen35", PreTokenizer((_QWEN35,), normalize_nfc=True)
    yield (
        "deepseek-llm",
        PreTokenizer(
            (
                r"[\r\n]",
                _DEEPSEEK_LETTERS,
                r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
                r"\s+$",
                "[一-龥ࠀ-一가-\ud7ff]+",
                r"\p{N}+",
            )
        ),
    )
    yield "deepseek-coder", PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+", r"\p{N}"))
    yield from each("deepseek-v3 hunyuan-dense joyai-llm", _deepseek_v3)
    yield "falcon", PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]"))
    yield from each("bloom poro-chat gpt3-finnish", PreTokenizer((_BLOOM,)))
    yield "viking", PreTokenizer((_BLOOM, r"\p{N}"))
    yield "tekken", PreTokenizer((_TEKKEN,), ignore_merges=True, add_bos=True)
    yield from each("gpt-4o llama4 kanana2 minimax-m2", _gpt4o)
    yield "jais-2", PreTokenizer((_JAIS2,))
    yield "seed-coder", PreTokenizer((_SEED_CODER,))
    yield from each("bailingmoe bailingmoe2 llada-moe", PreTokenizer((_BAILING,)))


PRE_TOKENIZERS: dict[str, PreTokenizer] = dict(_table())
