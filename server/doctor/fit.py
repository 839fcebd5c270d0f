"""Whether a model fits a machine, by the planner's arithmetic."""

from __future__ import annotations

from ...backends.host_memory import KV_MOST, KV_SHARE
from ...backends.mlx.work import WORKING_SET_SHARE
from ...core.config import EngineConfig
from ...planner.open import open_shape
from ...planner.plan import Plan
from ...planner.request import PlanRequest, make_plan
from ..report import CONVERSATION
from ..sizes import size_text
from .check import FAIL, OK, WARN, Finding
from .machine import Machine


def fits(machine: Machine, model: str) -> Finding:
    """The planner's verdict on ``model`` (a path, a Hub id whose headers are fetched, or ``demo``) on this machine."""
    try:
        shape = open_shape(model)
        budget, where = _budget(machine)
        context = min(CONVERSATION, shape.max_position or CONVERSATION)
        asked = PlanRequest(concurrency=1, context=context, device=machine.chosen or "any", memory=str(budget))
        plan = make_plan(shape, asked)
    except (ValueError, OSError) as error:
        return Finding("model", FAIL, f"{model} can't be read: {' '.join(str(error).split())}")
    return _verdict(machine, model, plan, where)


def _verdict(machine: Machine, model: str, plan: Plan, where: str) -> Finding:
    assert plan.memory_bytes is not None and plan.room is not None
    count = plan.conversations(plan.context) or 0
    text = (
        f"{model} ({plan.model.quantization}): {size_text(plan.weight_bytes)} of weights and "
        f"{size_text(plan.buffer_bytes)} of work memory in {size_text(plan.memory_bytes)} ({where})"
    )
    if count < 1:
        fix = "use a smaller quantisation or a smaller model; 'bireme plan' shows what would change it"
        return Finding("model", FAIL, f"{text}: too large", fix)
    text += f"; the rest holds {count:,} conversation{'' if count == 1 else 's'} of {plan.context:,} tokens"
    if machine.chosen == "cpu":
        size = min(plan.room, int(machine.memory_free * KV_SHARE), KV_MOST)
        usual = size // plan.kv_of(1, plan.context) if plan.kv_of(1, plan.context) else count
        text += f", {usual:,} in what a server takes by itself ({size_text(size)}; more: --kv-cache-memory)"
    if count < 4:
        return Finding("model", WARN, text, "a smaller quantisation or --kv-cache-dtype int8 makes room for more")
    return Finding("model", OK, text)


def _budget(machine: Machine) -> tuple[int, str]:
    """(bytes that model and cache may take, of what)."""
    if machine.chosen == "cuda" and machine.gpus:
        share = EngineConfig().gpu_memory_fraction
        return int(machine.gpus[0].free * share), f"{share:.0%} of what {machine.gpus[0].name} has free"
    if machine.chosen == "mlx" and machine.apple and machine.apple.working_set:
        return int(machine.apple.working_set * WORKING_SET_SHARE), f"{WORKING_SET_SHARE:.0%} of what Metal recommends"
    return machine.memory_free, "free memory"
