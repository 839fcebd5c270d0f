"""A plan as text for people."""

from __future__ import annotations

from collections.abc import Sequence

from .chips import CHIPS, COMMON, Chip
from .plan import Plan
from .roofline import Roofline

_BAR = 60


def render(plan: Plan, chip: Chip | None = None) -> str:
    """The whole answer, plain text of at most some 100 columns."""
    parts = [_head(plan), _sizes(plan), _verdict(plan), _levers(plan), _exchange(plan), _speed(plan, chip)]
    parts.append("\n".join(f"Note: {note}." for note in plan.model.notes))
    return "\n\n".join(part for part in parts if part)


def gb(size: float) -> str:
    """Decimal gigabytes, as memory is sold; megabytes where small."""
    return f"{size / 1e9:.1f} GB" if abs(size) >= 0.95e9 else f"{size / 1e6:.0f} MB"


def _head(plan: Plan) -> str:
    weights, count = plan.model.weights, plan.model.weights.parameters
    size = "" if count is None else f", {count / 1e9:.2f} B parameters"
    if weights.num_experts and weights.active_parameters:
        size += f" of which {weights.active_parameters / 1e9:.2f} B work on a token"
    return f"{plan.model.name}: {plan.model.quantization}{size} ({weights.source})"


def _sizes(plan: Plan) -> str:
    per_token = plan.kv_bytes_per_token
    held = f"{plan.concurrency} x {plan.context:,} = {plan.concurrency * plan.context:,} tokens"
    rows = [
        ("weights", plan.weight_bytes, ""),
        ("buffers", plan.buffer_bytes, "" if plan.buffer_bytes else "not given and not counted"),
        (
            "KV cache",
            plan.kv_bytes,
            f"{held} in {plan.kv_cache_dtype}",
        ),
        ("total", plan.total_bytes, ""),
    ]
    lines = [f"{name:<10}{gb(size):>10}  {text}".rstrip() for name, size, text in rows]
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
        line = f"[{bar[:mark]}|{bar[mark:]}  <- {gb(budget)} end at |"
    word = f"OVER by {gb(over)}" if over > 0 else f"fits, {gb(-over)} left"
    pool = plan.room // plan.kv_bytes_per_token if plan.kv_bytes_per_token else 0
    return f"{line}\n{gb(plan.total_bytes)} of {gb(budget)}: {word}. The memory holds {pool:,} tokens in all."


def _levers(plan: Plan) -> str:
    levers = plan.levers()
    if not levers:
        return ""
    lines = [
        f"  {lever.change:<46}{gb(lever.total_bytes):>10}  {'fits' if lever.fits else 'too much'}" for lever in levers
    ]
    return "\n".join(["What would change it, each alone:", *lines])


def _exchange(plan: Plan) -> str:
    contexts, rows = plan.exchange()
    contexts = contexts[-8:]
    skip = -len(contexts)
    lines = ["Total by conversations and context" + (" (! over the budget):" if plan.memory_bytes else ":")]
    lines.append(f"{'':>6}" + "".join(f"{context:>12,}" for context in contexts))
    for count, totals in rows:
        cells = [f"{gb(total)}{_mark(plan, total)}" for total in totals[skip:]]
        lines.append(f"{count:>6}" + "".join(f"{cell:>12}" for cell in cells))
    if plan.room is not None:
        lines.append(f"{'fit':>6}" + "".join(f"{plan.conversations(context) or 0:>11} " for context in contexts))
    return "\n".join(lines)


def _mark(plan: Plan, total: int) -> str:
    if plan.memory_bytes is None:
        return ""
    return "!" if total > plan.memory_bytes else " "


def _speed(plan: Plan, chip: Chip | None) -> str:
    if plan.weight_bytes <= 0:
        return ""
    chips: Sequence[Chip] = [chip] if chip else [CHIPS[name] for name in COMMON]
    lines = ["Decoding, at most (published memory bandwidth and arithmetic; 60 to 85% of it is usual):"]
    lines.append(f"{'':>12}{'GB/s':>8}{'1 alone':>14}{f'{plan.concurrency} at once':>16}{'each':>12}")
    for one in chips:
        roof = Roofline(one, plan.model, plan.kv_bytes_per_token)
        alone = roof.decode_tokens_per_second(1, plan.context)
        all_ = roof.decode_tokens_per_second(plan.concurrency, plan.context)
        cells = f"{alone:>8.0f} tok/s{all_:>10.0f} tok/s{all_ / plan.concurrency:>6.0f} tok/s"
        fits = "" if plan.total_bytes <= one.memory_gb * 1e9 else f"  (has {one.memory_gb:g} GB at most)"
        lines.append(f"{one.name:>12}{one.bandwidth_gbs:>8g}{cells}{fits}")
    return "\n".join(lines)
