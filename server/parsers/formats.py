"""The formats known, and which of them a chat template uses: found by marks that its text holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from . import harmony, mistral, sections
from .gemma_calls import FUNCTION_GEMMA, GEMMA_4, GemmaCalls, GemmaMarks
from .harmony import HarmonyParser
from .loose_calls import LooseCalls
from .machine import Parser
from .mistral import MistralCalls
from .sections import DEEPSEEK, KIMI, SectionCalls
from .tagged import TaggedCalls
from .tools import Tools
from .xml_calls import GlmCalls, QwenXmlCalls

AUTO, NONE = "auto", "none"


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How a model writes calls."""

    name: str
    make: Callable[[Tools], Parser]
    marks: tuple[tuple[str, ...], ...] = ()  # a template with all marks of one of these uses this format
    specials: tuple[str, ...] = ()  # control tokens that the parser must see
    short_ids: bool = False  # the template takes calls' ids of nine letters and digits only


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """How a model marks its reasoning."""

    name: str
    opening: str
    closing: str
    marks: tuple[str, ...]  # a template with one of these uses this format


def _sections(name: str, marks: sections.SectionMarks) -> ToolFormat:
    return ToolFormat(name, lambda tools: SectionCalls(tools, marks), ((marks.call,),), marks.all)


def _gemma(name: str, marks: GemmaMarks) -> ToolFormat:
    specials = (marks.opening, marks.closing, marks.quote)
    return ToolFormat(name, lambda tools: GemmaCalls(tools, marks), ((marks.opening,),), specials)


def _tagged(name: str, opening: str, closing: str, *marks: str) -> ToolFormat:
    make = lambda tools: TaggedCalls(tools, opening, closing)  # noqa: E731
    return ToolFormat(name, make, tuple((mark,) for mark in (opening, *marks)), (opening, closing))


#: In the order in which they are looked for: what is more special stands first.
TOOL_FORMATS: tuple[ToolFormat, ...] = (
    ToolFormat("harmony", HarmonyParser, (("<|channel|>", "<|message|>"),), harmony.SPECIALS),
    _sections("deepseek", DEEPSEEK),
    _sections("kimi", KIMI),
    ToolFormat(
        "glm",
        GlmCalls,
        (("<arg_key>",),),
        ("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    ),
    ToolFormat("qwen3_coder", QwenXmlCalls, (("<function=", "<parameter="),), ("<tool_call>", "</tool_call>")),
    ToolFormat(
        "mistral",
        MistralCalls,
        (("[TOOL_CALLS]",), ("[AVAILABLE_TOOLS]",)),
        (mistral.OPENING, mistral.ARGS, mistral.CALL_ID),
        short_ids=True,
    ),
    _gemma("functiongemma", FUNCTION_GEMMA),
    _gemma("gemma4", GEMMA_4),
    _tagged("hermes", "<tool_call>", "</tool_call>"),
    _tagged("phi4", "<|tool_call|>", "<|/tool_call|>"),
    _tagged("lfm2", "<|tool_call_start|>", "<|tool_call_end|>", "<|tool_list_start|>"),
    _tagged("nemotron", "<TOOLCALL>", "</TOOLCALL>"),
    ToolFormat(
        "llama3",
        lambda tools: LooseCalls(tools, "<|python_tag|>"),
        (("<|python_tag|>",), ("<|start_header_id|>", '"parameters"')),
        ("<|python_tag|>",),
    ),
    ToolFormat("gemma", LooseCalls, (("tool_code",), ("<start_of_turn>", "tools"))),
    ToolFormat("json", LooseCalls),
)
#: What a template that offers tools in no known way is taken for.
ANY_JSON = "json"

REASONING_FORMATS: tuple[ReasoningFormat, ...] = (
    ReasoningFormat("mistral", "[THINK]", "[/THINK]", ("[THINK]",)),
    ReasoningFormat("seed", "<seed:think>", "</seed:think>", ("<seed:think>",)),
    ReasoningFormat("gemma4", "<|channel>thought", "<channel|>", ("<|channel>thought",)),
    ReasoningFormat("think", "<think>", "</think>", ("</think>", "<think>")),
)
HARMONY = "harmony"

#: Names that other servers have for these formats.
TOOL_ALIASES = {
    "openai": HARMONY,
    "deepseek_v3": "deepseek",
    "deepseek_v31": "deepseek",
    "kimi_k2": "kimi",
    "glm45": "glm",
    "qwen3_xml": "qwen3_coder",
    "qwen": "hermes",
    "llama3_json": "llama3",
    "granite": "phi4",
    "phi4_mini_json": "phi4",
    "pythonic": "json",
    "generic": "json",
}
REASONING_ALIASES = {
    "deepseek_r1": "think",
    "deepseek-r1": "think",
    "qwen3": "think",
    "glm45": "think",
    "openai_gptoss": HARMONY,
    "seed_oss": "seed",
}
