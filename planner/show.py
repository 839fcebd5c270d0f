"""A plan as text for people."""

from __future__ import annotations

from ..server.sizes import decimal_text
from .chips import Chip
from .plan import Plan
from .speed import speeds

_BAR = 60


def render(plan: Plan, chip: Chip | None = None) -> str:
    """The whole answer, plain text of at most some 100 columns."""
    parts = [_head(plan), _sizes(plan), _verdict(plan), _levers(plan), _exchange(plan), _speed(plan, chip)]
    parts.append("\n".join(f"Note: {note}." for note in plan.model.notes))
    return "\n\n".join(part for part in parts if part)


def _millions(count: float) -> str:
    return f"{count / 1e9:.2f} B" if count >= 1e9 else f"{count / 1e6:.3g} M"


def _head(plan: Plan) -> str:
    model, weights, count = plan.whole, plan.whole.weights, plan.whole.weights.parameters
    size = "" if count is None else f", {_millions(count)} parameters"
    if weights.num_experts and weights.active_parameters:
        size += f" of which {_millions(weights.active_parameters)} work on a token"
    head = f"{model.name}: {model.quantization}{size} ({weights.source})"
    return (
        head if plan.devices == 1 else f"{head}\n{plan.devices} devices share it; all sizes are those of one of them."
    )


def _sizes(plan: Plan) -> str:
    per_token = plan.kv_bytes_per_token
    held = f"{plan.concurrency} x {plan.context:,} = {plan.concurrency * plan.context:,} tokens"
    rows = [
        ("weights", plan.weight_bytes, "" if plan.weight_bytes else "not given and not counted"),
        ("buffers", plan.buffer_bytes, "" if plan.buffer_bytes else "not given and not counted"),
        (
            "KV cache",
            plan.kv_bytes,
            f"{held} in {plan.kv_cache_dtype}",
        ),
        ("total", plan.total_bytes, ""),
    ]
    lines = [f"{name:<10}{decimal_text(size):>10}  {text}".rstrip() for name, size, text in rows]
    return "\n".join([*lines, "", f"One token costs {per_token:,} bytes ({per_token / 1024:g} KiB) of KV cache."])


def _verdict(plan: Plan) -> str:
    if plan.memory_bytes is None or plan.over_bytes is None or plan.room is None:
        return ""
    budget, over = plan.memory_bytes, plan.over_bytes
    scale = _BAR / max(budget, plan.total_bytes)
    sizes = (("W", plan.weight_bytes), ("B", plan.buffer_bytes), ("K", plan.kv_bytes))
    bar = "".join(letter * round(size * scale) for letter, size in sizes)[:_BAR]
    mark = min(_BAR, round(budget * scale))
    line = f"[{bar:<{mark}}" + ("]" if len(bar) <= mark else "")
    if len(bar) > mark:
        line = f"[{bar[:mark]}|{bar[mark:]}  <- {decimal_text(budget)} end at |"
    word = f"OVER by {decimal_text(over)}" if over > 0 else f"fits, {decimal_text(-over)} left"
    pool = plan.room // plan.kv_bytes_per_token if plan.kv_bytes_per_token else 0
    if plan.weight_bytes or plan.buffer_bytes:
        line += "\n W weights, B buffers, K KV cache"
    used = f"{decimal_text(plan.total_bytes)} of {decimal_text(budget)}"
    windows = any(layer.window for layer in plan.model.layers)
    every = ", where every layer keeps them all" if windows else " in all"
    return f"{line}\n{used}: {word}. The memory holds {pool:,} tokens{every}."


def _levers(plan: Plan) -> str:
    levers = plan.levers()
    if not levers:
        return ""
    lines = [
        f"  {lever.change:<46}{decimal_text(lever.total_bytes):>10}  {'fits' if lever.fits else 'too much'}"
        for lever in levers
    ]
    return "\n".join(["What would change it, each alone:", *lines])


def _exchange(plan: Plan) -> str:
    contexts, rows = plan.exchange()
    contexts = contexts[-8:]
    skip = -len(contexts)
    lines = ["Total by conversations and context" + (" (! over the budget):" if plan.memory_bytes else ":")]
    lines.append(f"{'':>6}" + "".join(f"{context:>12,}" for context in contexts))
    for count, totals in rows:
        cells = [f"{decimal_text(total)}{_mark(plan, total)}" for total in totals[skip:]]
        lines.append(f"{count:>6}" + "".join(f"{cell:>12}" for cell in cells))
    if plan.room is not None:
        lines.append(f"{'fit':>6}" + "".join(f"{plan.conversations(context) or 0:>11} " for context in contexts))
    return "\n".join(lines)


def _mark(plan: Plan, total: int) -> str:
    if plan.memory_bytes is None:
        return ""
    return "!" if total > plan.memory_bytes else " "


def _speed(plan: Plan, chip: Chip | None) -> str:
    found = speeds(plan, chip)
    if not found:
        return ""
    what = "memory bandwidth and arithmetic" + (", links between devices" if plan.devices > 1 else "")
    lines = [f"Decoding, at most (published {what}; 60 to 85% of it is usual):"]
    lines.append(f"{'':>12}{'GB/s':>8}{'1 alone':>16}{f'{plan.concurrency} at once':>18}{'each':>14}")
    for one in found:
        rates = (one.alone, one.together, one.together / plan.concurrency)
        cells = "".join(f"{rate:>{width},.0f} tok/s" for rate, width in zip(rates, (10, 12, 8), strict=True))
        memory = one.chip.memory_gb
        fits = "" if plan.total_bytes <= memory * 1e9 else f"  (has {memory:g} GB at most)"
        lines.append(f"{one.chip.name:>12}{one.chip.bandwidth_gbs:>8g}{cells}{fits}")
    return "\n".join(lines)
