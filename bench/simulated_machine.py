"""The device that is simulated, and what its step times stand on: a chip's roofline, or a fit to a measured run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from ..core.config import EngineConfig
from ..core.memory import kv_bytes_per_token, kv_element_bytes
from ..planner.chips import find_chip
from ..planner.devices import work_bytes
from ..planner.plan import USUAL_HEAD_DIM
from ..planner.request import budget, kv_type
from ..planner.roofline import Roofline
from ..planner.shape import ModelShape
from ..planner.tensor_parallel import share_of
from .fit import Reach, fit_front, fit_run
from .results import read_run
from .simulation import Machine
from .traffic_options import Options

_RESERVE = 0.9  # share of a chip's memory that a server may plan for
_USUAL_LEN = 32768  # where nothing says how long a context may be
#: Of a roofline where nothing is said: the share of the published figures reached, and a step's fixed milliseconds.
EFFICIENCY, OVERHEAD_MS = 0.7, 0.5


@dataclass(frozen=True, slots=True)
class Simulated:
    """A machine, what its figures stand on in one line, and what a reader must know of that."""

    machine: Machine
    basis: str
    notes: tuple[str, ...] = ()
    reach: Reach | None = None  # of a fit


def simulated_machine(options: Options, shape: ModelShape, config: EngineConfig) -> Simulated:
    """The machine that ``options`` ask for, with ``shape`` on it.

    Raises:
        ValueError: the model doesn't fit, or options that say nothing, or nothing together.
    """
    for name in ("overhead_ms", "front_ms"):
        if options[name] == float("inf"):
            raise ValueError(f"{name.replace('_', '-')} is inf; it must be a number of milliseconds")
    limits = [length for length in (options["max_model_len"], shape.max_position) if length]
    most = min(limits, default=_USUAL_LEN)
    tokens = min(_pool_tokens(options, shape, config), most * config.max_num_seqs)  # as a server's pool
    made = _fitted if options["fit"] else _on_chip
    found = made(options, shape, tokens, most)
    machine, basis = found.machine, found.basis
    if machine.front:
        basis += f", {machine.front * 1e3:.1f} ms of HTTP a request"
    pool = f"a KV pool of {tokens:,} tokens"
    if options["replicas"] > 1:
        pool = f"{options['replicas']} replicas, each with {pool}, chosen by {options['routing']}"
    return replace(found, basis=f"{basis}; {pool}")


def _pool_tokens(options: Options, shape: ModelShape, config: EngineConfig) -> int:
    """Tokens for which there is room beside weights, buffers and recurrent layers' states, on each device."""
    devices, per_token = options["tensor_parallel"], _per_token(options, shape)
    share = share_of(shape, devices)
    usual = round(find_chip(options["chip"]).memory_gb * 1e9 * _RESERVE)
    memory = budget(options["memory"]) if options["memory"] else usual
    states = config.max_num_seqs * sum(layer.state_bytes for layer in share.layers)
    buffers = work_bytes(share, "any", config) + states
    room = memory - share.weights.total_bytes - buffers
    if room < 16 * per_token:
        each = "" if devices == 1 else f" each of {devices} devices"
        raise ValueError(
            f"{shape.name} does not fit{each}: weights {share.weights.total_bytes} and buffers {buffers} bytes leave "
            f"{room} of {memory} for the KV cache"
        )
    return max(16, room // max(1, per_token))


def _per_token(options: Options, shape: ModelShape) -> int:
    """Bytes of a token's keys and values on each device."""
    element = kv_element_bytes(kv_type(options["kv_cache_dtype"], "any"), shape.head_dim or USUAL_HEAD_DIM)
    return kv_bytes_per_token(share_of(shape, options["tensor_parallel"]).layers, element)


def _on_chip(options: Options, shape: ModelShape, tokens: int, most: int) -> Simulated:
    devices = options["tensor_parallel"]
    efficiency = EFFICIENCY if options["efficiency"] is None else options["efficiency"]
    overhead = OVERHEAD_MS if options["overhead_ms"] is None else options["overhead_ms"]
    share, per_token = share_of(shape, devices), _per_token(options, shape)
    roof = Roofline(find_chip(options["chip"]), share, per_token, efficiency, overhead / 1e3, devices)
    name = options["chip"] if devices == 1 else f"{devices} x {options['chip']}"
    basis = f"a roofline of {name} at {efficiency:.0%} and {overhead:g} ms a step"
    return Simulated(Machine(roof.seconds, tokens, most, (options["front_ms"] or 0.0) / 1e3), basis)


def _fitted(options: Options, shape: ModelShape, tokens: int, most: int) -> Simulated:
    for name, given in (("efficiency", options["efficiency"]), ("overhead-ms", options["overhead_ms"])):
        if given is not None:
            raise ValueError(f"--fit has the step times of what was measured; leave out --{name}")
    if options["tensor_parallel"] > 1:
        raise ValueError("--fit has the step times of what was measured; leave out --tensor-parallel")
    run = read_run(Path(options["fit"]))
    cost = fit_run(run)
    front = fit_front(run, cost) if options["front_ms"] is None else options["front_ms"] / 1e3
    measured = str(run.get("model_id") or "")
    found = []
    names = (options["model"].removesuffix("config.json"), shape.name.removesuffix("config.json"))
    if measured and _plain(measured) not in map(_plain, names):
        found.append(
            f"the step times are those of {measured}, and {options['model']} is simulated: right if both name one model"
        )
    if not options["memory"]:
        found.append(f"the KV pool is that of {options['chip']}, not of what was measured; give its --memory")
    machine = run.get("machine")
    where = f" on {machine['cpu']}" if isinstance(machine, dict) and machine.get("cpu") else ""
    basis = f"fitted from {options['fit']}: {measured or 'a model'}, measured{where}"
    return Simulated(Machine(cost, tokens, most, front), basis, tuple(found), Reach.of(run))


def _plain(name: str) -> str:
    """A model's name without its folder, its ending and its punctuation."""
    stem = name.rstrip("/").rpartition("/")[2].removesuffix(".gguf")
    return "".join(letter for letter in stem.casefold() if letter.isalnum())
