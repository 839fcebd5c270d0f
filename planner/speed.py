"""How fast a plan's model could decode at most, on known chips."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .chips import CHIPS, COMMON, KINDS, Chip
from .plan import Plan
from .roofline import Roofline


@dataclass(frozen=True, slots=True)
class Speed:
    """Tokens a second at most: of one sequence alone, and of all the plan's conversations together."""

    chip: Chip
    alone: float
    together: float


def speeds(plan: Plan, chip: Chip | None = None) -> list[Speed]:
    """On ``chip``, or on the usual ones of the plan's device; none where the weights are not known.

    Raises:
        ValueError: ``chip`` is no device of the plan's kind, or can't share a model where several devices are to.
    """
    if chip is not None and chip.name not in KINDS.get(plan.device, (chip.name,)):
        raise ValueError(f"chip {chip.name} is none that {plan.device} runs on; leave one of the two out")
    if plan.weight_bytes <= 0:
        return []
    return [_speed(plan, one) for one in ([chip] if chip else _usual(plan))]


def _usual(plan: Plan) -> Sequence[Chip]:
    names = KINDS.get(plan.device, COMMON)
    chips = [CHIPS[name] for name in COMMON if name in names]
    return [one for one in chips if plan.devices == 1 or one.link_gbs is not None]


def _speed(plan: Plan, chip: Chip) -> Speed:
    roof = Roofline(chip, plan.model, plan.kv_bytes_per_token, devices=plan.devices)
    alone, together = (roof.decode_tokens_per_second(count, plan.context) for count in (1, plan.concurrency))
    return Speed(chip, alone, together)
