"""``bireme bench ...``: the command lines of the benchmarks. Imports nothing heavy before a command runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..core.config import EngineConfig
from ..server import options
from ..server.commands.config_file import named
from ..server.commands.fail import fail

ENGINE = EngineConfig()

bench = typer.Typer(name="bench", help="Measure a server, or the engine without one.", no_args_is_help=True)


def _load(text: str, **limits: Any) -> Any:
    return typer.Option(help=text, rich_help_panel="Load", **limits)


def _engine(text: str, **limits: Any) -> Any:
    return typer.Option(help=text, rich_help_panel="Engine", **limits)


def _data(text: str, **limits: Any) -> Any:
    return typer.Option(help=text, rich_help_panel="Data", **limits)


def _result(text: str, *names: str, **limits: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel="Result", **limits)


# What a load is made of, for a server and for a simulated one.
_Burstiness = Annotated[float, _load("Open loop: 1 Poisson, below bursty, inf even.")]
_RampUpStrategy = Annotated[str, _load("linear or exponential, between the two rates below.")]
_RampUpStartRps = Annotated[float | None, _load("Open loop: first rate of a ramp.")]
_RampUpEndRps = Annotated[float | None, _load("Open loop: last rate of a ramp.")]
_MaxConcurrency = Annotated[int | None, _load("Open loop: at most so many at once; waiting counts.", min=1)]
_Dataset = Annotated[str, _data("random, prefix, multiturn, sharegpt, jsonl or trace.")]
_DatasetPath = Annotated[Path | None, _data("File of sharegpt, jsonl and trace.")]
_PromptLen = Annotated[int, _data("Tokens in.", min=1)]
_AnswerLen = Annotated[int | None, _data("Tokens out. Default: 128, or the file's.", min=1)]
_RangeRatio = Annotated[float, _data("Lengths vary evenly by so much either way.")]
_PrefixLen = Annotated[int, _data("prefix: tokens shared.", min=1)]
_NumPrefixes = Annotated[int, _data("prefix: how many different ones.", min=1)]
_Turns = Annotated[int, _data("multiturn: turns of a conversation.", min=1)]
_Think = Annotated[float, _data("multiturn: seconds before a next turn.", min=0)]
_LoadSeed = Annotated[int, _data("Of prompts, lengths and arrivals.", min=0)]
_Attainment = Annotated[float, _result("Share of requests that must meet it.", min=0, max=1)]


@bench.command("serve")
def serve(
    context: typer.Context,
    terms: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
    url: Annotated[
        str, typer.Option("--url", "--base-url", help="Base of any OpenAI-compatible API.")
    ] = "http://127.0.0.1:8000/v1",
    model: Annotated[str | None, typer.Option(help="Model to ask for. Default: the server's first.")] = None,
    api_key: Annotated[str, typer.Option(envvar="OPENAI_API_KEY", help="Sent as a bearer token.")] = "",
    chat: Annotated[bool, typer.Option(help="Use /chat/completions, not /completions.")] = False,
    tokenizer: Annotated[str | None, typer.Option(help="MODEL whose tokenizer makes prompts of exact length.")] = None,
    extra_body: Annotated[str, typer.Option(help="JSON object merged into every request.")] = "{}",
    ignore_eos: Annotated[bool, typer.Option(help="Ask for outputs of full length.")] = True,
    timeout: Annotated[float, typer.Option(help="Seconds for one request.", min=1)] = 600.0,
    against: Annotated[str | None, typer.Option(help="Paired mode: the base of a second server.")] = None,
    against_model: Annotated[str | None, typer.Option(help="Model to ask the second server for.")] = None,
    against_api_key: Annotated[str, typer.Option(help="Its bearer token. Default: that of --api-key.")] = "",
    rounds: Annotated[int, typer.Option(help="Paired mode: rounds.", min=1)] = 3,
    concurrency: Annotated[str, _load("Closed loop: users at once. Default: 1,4,8,16.")] = "",
    request_rate: Annotated[str, _load("Open loop: requests (multiturn: conversations) a second, 1,2,4 or inf.")] = "",
    burstiness: _Burstiness = 1.0,
    ramp_up_strategy: _RampUpStrategy = "linear",
    ramp_up_start_rps: _RampUpStartRps = None,
    ramp_up_end_rps: _RampUpEndRps = None,
    max_concurrency: _MaxConcurrency = None,
    num_prompts: Annotated[int | None, _load("Requests per level. Default: 4 a user, 30 s of a rate.", min=1)] = None,
    num_warmups: Annotated[int, _load("Requests before the first level.", min=0)] = 1,
    dataset: _Dataset = "random",
    dataset_path: _DatasetPath = None,
    input_len: _PromptLen = 256,
    output_len: _AnswerLen = None,
    range_ratio: _RangeRatio = 0.0,
    prefix_len: _PrefixLen = 512,
    num_prefixes: _NumPrefixes = 4,
    turns: _Turns = 4,
    think: _Think = 0.0,
    seed: _LoadSeed = 0,
    goodput: Annotated[list[str] | None, _result("Objective in ms: ttft:1000 tpot:50 e2el:9000.")] = None,
    attainment: _Attainment = 0.9,
    find_goodput: Annotated[bool, _result("Search for the largest load that meets the objective.")] = False,
    json_path: Annotated[Path | None, _result("Write everything measured here.", "--json")] = None,
    html_path: Annotated[Path | None, _result("Write a report with plots here.", "--html")] = None,
    label: Annotated[str, _result("Name of this run.")] = "",
    compare: Annotated[tuple[Path, Path] | None, _result("Compare two JSON results instead of measuring.")] = None,
) -> None:
    """Load a server and say what came of it: throughput, latency percentiles, goodput."""
    given = _given(dict(locals()))
    from .serve_command import run_serve

    _or_fail(run_serve, given)


_Json = Annotated[Path | None, typer.Option("--json", help="Write the record here.")]
_Device = Annotated[str, typer.Option(help="cpu, cuda, mlx; auto: the best there is.")]
_Model = Annotated[str, typer.Option(help="As for `bireme serve`.")]
_Threads = Annotated[int | None, typer.Option(help="On a CPU. Default: one per core.", min=1)]
_InputLen = Annotated[int, typer.Option(help="Tokens in.", min=1)]
_OutputLen = Annotated[int, typer.Option(help="Tokens out.", min=1)]
_Seed = Annotated[int, typer.Option(help="Of the prompts.", min=0)]


@bench.command("throughput")
def throughput(
    model: _Model = "demo",
    device: _Device = "auto",
    num_prompts: Annotated[int, typer.Option(help="Requests, all there at the start.", min=1)] = 64,
    max_num_seqs: Annotated[int, typer.Option(help="Sequences that run at once.", min=1)] = 16,
    input_len: _InputLen = 128,
    output_len: _OutputLen = 64,
    threads: _Threads = None,
    seed: _Seed = 0,
    json_path: _Json = None,
) -> None:
    """What the engine gets through, without a server: tokens and requests a second."""
    _offline("throughput", locals())


@bench.command("latency")
def latency(
    model: _Model = "demo",
    device: _Device = "auto",
    batch_size: Annotated[str, typer.Option(help="Requests that start together, e.g. 1,4,8.")] = "1,4,8",
    iterations: Annotated[int, typer.Option(help="Batches of each size.", min=1)] = 5,
    input_len: _InputLen = 128,
    output_len: _OutputLen = 32,
    threads: _Threads = None,
    seed: _Seed = 0,
    json_path: _Json = None,
) -> None:
    """How long batches take, without a server: whole, to their first tokens, and per token."""
    _offline("latency", locals())


@bench.command("host")
def host(
    sequences: Annotated[str, typer.Option(help="Running sequences, e.g. 1,64,256.")] = "1,64,256",
    steps: Annotated[int, typer.Option(help="Steps measured.", min=1)] = 1000,
    cpu_time: Annotated[bool, typer.Option(help="Count this thread's processor time: for busy machines.")] = False,
    json_path: _Json = None,
) -> None:
    """What scheduling and batch building cost per step, over a device that answers at once."""
    _offline("host", locals())


@bench.command("kernels")
def kernels(
    device: _Device = "auto",
    quick: Annotated[bool, typer.Option(help="Fewer shapes, shorter.")] = False,
    json_path: _Json = None,
) -> None:
    """The device's own kernels, beside plain torch."""
    _offline("kernels", locals())


def _offline(name: str, options: dict[str, Any]) -> None:
    def run(given: dict[str, Any]) -> int:
        from .offline import run_offline
        from .traffic_options import counts

        for option, plural in (("batch_size", "batch_sizes"), ("sequences", "sequences")):
            if option in given:
                given[plural] = counts(option.replace("_", "-"), given[option])
        return run_offline(name, given)

    _or_fail(run, options)


def _given(values: dict[str, Any]) -> dict[str, Any]:
    """A command's options by name, and under ``named`` those of them that somebody gave."""
    context = values.pop("context")
    return values | {"named": named(context)}


def _or_fail(call: Any, options: dict[str, Any]) -> None:
    """Run a command; what is wrong with the input becomes one line, failures of requests exit code 1."""
    from ..backends.select import DeviceUnavailableError

    try:
        code = call(options)
    except (ValueError, OSError, ImportError, MemoryError, DeviceUnavailableError) as error:
        fail(error)
    raise typer.Exit(code)


def simulate(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="A model as for `bireme plan`: headers or config.json are enough.")],
    terms: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
    chip: Annotated[str, typer.Option(help="Device: m4-max, rtx-4090, a100-80gb, h100, h200, ...")] = "h100",
    memory: Annotated[str | None, typer.Option(help="Its memory. Default: 90% of the chip's.")] = None,
    tensor_parallel: options.TensorParallel = 1,
    replicas: Annotated[int, typer.Option(help="So many servers of their own, each with the whole model.", min=1)] = 1,
    routing: Annotated[str, typer.Option(help="Which replica: turns, or prefix (prompts that begin alike).")] = "turns",
    efficiency: Annotated[
        float | None, typer.Option(help="Share of the published figures reached. Default: 0.7.", min=0.01, max=1)
    ] = None,
    overhead_ms: Annotated[float | None, typer.Option(help="Fixed cost of a step. Default: 0.5.", min=0)] = None,
    fit: Annotated[Path | None, typer.Option(help="Cost model out of a JSON of `bench serve`.")] = None,
    front_ms: Annotated[
        float | None, typer.Option(help="HTTP side per request, one by one. Default: fitted, or 0.", min=0)
    ] = None,
    policies: Annotated[str, typer.Option(help="'bireme', 'all', or names from the table, with commas.")] = "all",
    max_num_seqs: options.MaxNumSeqs = ENGINE.max_num_seqs,
    max_num_batched_tokens: options.MaxNumBatchedTokens = ENGINE.max_num_batched_tokens,
    max_model_len: Annotated[int | None, _engine("Context per sequence. Default: the model's.", min=1)] = None,
    kv_cache_dtype: Annotated[str, _engine("As in `bireme plan`.")] = "f16",
    block_size: options.BlockSize = ENGINE.block_size,
    max_stall_ms: options.MaxStallMs = ENGINE.max_stall_ms,
    max_queue: Annotated[int | None, _engine("Waiting requests. Default: no limit.", min=1)] = None,
    max_queue_per_user: options.MaxQueuePerUser = ENGINE.max_queue_per_user,
    slo: options.SloOption = None,
    slo_policy: options.SloPolicy = ENGINE.slo_policy,
    enable_prefix_caching: options.EnablePrefixCaching = ENGINE.enable_prefix_caching,
    weights: Annotated[str, _engine("Users who send in turn, by the weights of their shares: 1,1,3.")] = "",
    concurrency: Annotated[str, _load("Closed loop: users at once, over all devices.")] = "",
    request_rate: Annotated[str, _load("Open loop: requests a second (as bench serve), over all devices.")] = "",
    burstiness: _Burstiness = 1.0,
    ramp_up_strategy: _RampUpStrategy = "linear",
    ramp_up_start_rps: _RampUpStartRps = None,
    ramp_up_end_rps: _RampUpEndRps = None,
    max_concurrency: _MaxConcurrency = None,
    num_prompts: Annotated[int | None, _load("Requests per level.", min=1)] = None,
    dataset: _Dataset = "random",
    dataset_path: _DatasetPath = None,
    input_len: _PromptLen = 1024,
    output_len: _AnswerLen = None,
    range_ratio: _RangeRatio = 0.0,
    prefix_len: _PrefixLen = 512,
    num_prefixes: _NumPrefixes = 4,
    turns: _Turns = 4,
    think: _Think = 0.0,
    seed: _LoadSeed = 0,
    goodput: Annotated[list[str] | None, _result("Objective in ms: ttft:1000 tpot:50. Default: that of --slo.")] = None,
    attainment: _Attainment = 0.9,
    find_goodput: Annotated[bool, _result("Search for the largest load that meets it, under each policy.")] = False,
    json_path: Annotated[Path | None, _result("Write everything here.", "--json")] = None,
    html_path: Annotated[Path | None, _result("Write a timeline of the first steps here.", "--html")] = None,
) -> None:
    """Predict how a device would serve a load: the real scheduler and caches, a computed device."""
    given = _given(dict(locals()))
    from .simulate_command import run_simulate

    _or_fail(run_simulate, given)
