"""``bireme plan``: the command line of the planner. Imports nothing heavy before it runs."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from ..core.config import EngineConfig
from ..server.commands.fail import fail


def _given(text: str, **limits: Any) -> Any:
    return typer.Option(help=text, rich_help_panel="Instead of a model", **limits)


def plan(
    model: Annotated[
        str | None, typer.Argument(help="A .gguf file, model folder, config.json, Hub id (headers only) or 'demo'.")
    ] = None,
    memory: Annotated[
        str | None, typer.Option(help="The budget, of each device: 16GB, 24GiB. Default: the chip's, if one is named.")
    ] = None,
    concurrency: Annotated[int, typer.Option(help="Conversations at once.", min=1)] = 20,
    context: Annotated[int, typer.Option(help="Tokens in each.", min=1)] = 4096,
    kv_cache_dtype: Annotated[
        str | None, typer.Option(help="auto, f16, bf16, f32, int8, fp8, q8_0, q4_0, ... Default: the device's.")
    ] = None,
    device: Annotated[
        str, typer.Option(help="As held on cpu, cpu-exact, cuda, mlx, mlx-linux; any: as stored.")
    ] = "any",
    chip: Annotated[str | None, typer.Option(help="Speed on this one: m4-max, rtx-4090, h100, ...")] = None,
    tensor_parallel: Annotated[
        int, typer.Option(help="Devices that share the model, as in `bireme serve`.", min=1)
    ] = 1,
    max_num_batched_tokens: Annotated[
        int, typer.Option(help="Tokens in one step, for the buffers.", min=1)
    ] = EngineConfig().max_num_batched_tokens,
    weights: Annotated[str | None, typer.Option(help="Size of all the weights: 5GB. Default: the model's.")] = None,
    buffers: Annotated[str | None, typer.Option(help="Size of each device's work memory. Default: reckoned.")] = None,
    layers: Annotated[int | None, _given("Layers that attend.", min=1)] = None,
    kv_heads: Annotated[int | None, _given("K/V heads in each.", min=1)] = None,
    head_dim: Annotated[int | None, _given("Elements of each head.", min=1)] = None,
    window: Annotated[int | None, _given("Tokens a sliding layer holds.", min=1)] = None,
    global_every: Annotated[int | None, _given("One layer in so many has no window.", min=1)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what fits: weights, KV cache and buffers against a memory, and what would change it. Reads no weights."""
    from .chips import find_chip
    from .open import open_shape
    from .request import PlanRequest, budget, make_plan, typed_shape
    from .show import render
    from .speed import speeds

    try:
        if (model is None) == all(one is None for one in (layers, kv_heads, head_dim, window, global_every)):
            raise ValueError("name a MODEL, or give --layers, --kv-heads and --head-dim: one of the two")
        shape = typed_shape(layers, kv_heads, head_dim, window, global_every) if model is None else open_shape(model)
        named = find_chip(chip) if chip else None
        if memory is not None:
            budget(memory)
        memory = f"{named.memory_gb:g}GB" if named and memory is None else memory
        held = (memory, weights, buffers)
        asked = PlanRequest(
            concurrency, context, kv_cache_dtype, device, *held, max_num_batched_tokens, tensor_parallel
        )
        found = make_plan(shape, asked)
        rates = speeds(found, named)
    except (ValueError, OSError) as error:
        fail(error)
    if not as_json:
        typer.echo(render(found, named))
        return
    keys = ("chip", "one_alone_tokens_per_second", "all_tokens_per_second")
    speed = [dict(zip(keys, (one.chip.name, one.alone, one.together), strict=True)) for one in rates]
    typer.echo(json.dumps(found.as_dict() | {"speed_at_most": speed}, indent=1))
