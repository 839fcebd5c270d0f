"""Bireme: one engine for many users, on a Mac and on a Linux GPU box alike."""

__version__ = "0.1.0"
__all__ = ["LLM", "GrammarSpec", "SamplingParams", "__version__"]


def __getattr__(name: str) -> object:
    """Import the public names on first use: ``import bireme`` itself stays light."""
    if name == "LLM":
        from .llm import LLM

        return LLM
    if name == "SamplingParams":
        from .core.request import SamplingParams

        return SamplingParams
    if name == "GrammarSpec":
        from .core.grammar import GrammarSpec

        return GrammarSpec
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
