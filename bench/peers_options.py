"""The options of ``make bench-peers``, and the servers' names."""

from __future__ import annotations

import argparse
from pathlib import Path

OURS, LLAMA, LLAMA_Q4_0, MLX_LM, TRANSFORMERS = "bireme", "llama.cpp", "llama.cpp Q4_0", "mlx-lm", "transformers"


def parser(about: str) -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(prog="bireme.bench.peers", description=about)
    found.add_argument("--model", default="demo", help="as for `bireme serve`; llama.cpp needs a GGUF file")
    found.add_argument("--device", default="cpu", help="our device; llama.cpp runs on the CPU")
    found.add_argument("--threads", type=_count, default=_cores(), help="of each server (default: the cores)")
    found.add_argument("--concurrency", type=_count, nargs="+", default=[1, 4, 8, 16])
    found.add_argument("--prompt-tokens", type=_count, default=200)
    found.add_argument("--output-tokens", type=_count, default=64)
    found.add_argument(
        "--prefix-tokens", type=_count_or_none, default=1000, help="of the shared prefix; 0: leave that table out"
    )
    found.add_argument("--rounds", type=_count, default=2)
    peers = [LLAMA, LLAMA_Q4_0, MLX_LM, TRANSFORMERS]
    found.add_argument("--peers", nargs="*", choices=peers, default=peers[:2])
    found.add_argument("--html", type=_path, default="bench-peers.html", help="the report; '': none")
    found.add_argument("--json", type=_path, help="also write everything measured to this file")
    return found


def _count(text: str, least: int = 1) -> int:
    value = int(text) if text.strip().isdecimal() else -1
    if value < least:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {least} on")
    return value


def _count_or_none(text: str) -> int:
    return _count(text, 0)


def _path(text: str) -> Path | None:
    return Path(text) if text else None


def _cores() -> int:
    from ..backends.select import usable_cores

    return usable_cores()
