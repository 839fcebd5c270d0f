"""``bireme bench ...``: the command lines of the benchmarks. Imports nothing heavy before a command runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

bench = typer.Typer(name="bench", help="Measure a server, or predict one.", no_args_is_help=True)


def _load(text: str, **limits: Any) -> Any:
    return typer.Option(help=text, rich_help_panel="Load", **limits)


def _data(text: str, **limits: Any) -> Any:
    return typer.Option(help=text, rich_help_panel="Data", **limits)


def _result(text: str, *names: str, **limits: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel="Result", **limits)


@bench.command("serve")
def serve(
    terms: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
    url: Annotated[str, typer.Option(help="Base of any OpenAI-compatible API.")] = "http://127.0.0.1:8000/v1",
    model: Annotated[str | None, typer.Option(help="Model to ask for. Default: the server's first.")] = None,
    api_key: Annotated[str, typer.Option(envvar="OPENAI_API_KEY", help="Sent as a bearer token.")] = "",
    chat: Annotated[bool, typer.Option(help="Use /chat/completions, not /completions.")] = False,
    tokenizer: Annotated[str | None, typer.Option(help="MODEL whose tokenizer makes prompts of exact length.")] = None,
    extra_body: Annotated[str, typer.Option(help="JSON object merged into every request.")] = "{}",
    ignore_eos: Annotated[bool, typer.Option(help="Ask for outputs of full length.")] = True,
    timeout: Annotated[float, typer.Option(help="Seconds for one request.", min=1)] = 600.0,
    against: Annotated[str | None, typer.Option(help="Paired mode: the base of a second server.")] = None,
    against_model: Annotated[str | None, typer.Option(help="Model to ask the second server for.")] = None,
    rounds: Annotated[int, typer.Option(help="Paired mode: rounds.", min=1)] = 3,
    concurrency: Annotated[str, _load("Closed loop: users at once, e.g. 1,4,8,16.")] = "",
    request_rate: Annotated[str, _load("Open loop: requests a second, e.g. 1,2,4 or inf.")] = "",
    burstiness: Annotated[float, _load("Open loop: 1 Poisson, below bursty, inf even.")] = 1.0,
    ramp_up_strategy: Annotated[str, _load("linear or exponential, between the two rates below.")] = "linear",
    ramp_up_start_rps: Annotated[float | None, _load("Open loop: first rate of a ramp.")] = None,
    ramp_up_end_rps: Annotated[float | None, _load("Open loop: last rate of a ramp.")] = None,
    max_concurrency: Annotated[int | None, _load("Open loop: at most so many at once; waiting counts.", min=1)] = None,
    num_prompts: Annotated[int | None, _load("Requests per level. Default: by the level.", min=1)] = None,
    num_warmups: Annotated[int, _load("Requests before the first level.", min=0)] = 1,
    dataset: Annotated[str, _data("random, prefix, multiturn, sharegpt, jsonl or trace.")] = "random",
    dataset_path: Annotated[Path | None, _data("File of sharegpt, jsonl and trace.")] = None,
    input_len: Annotated[int, _data("Tokens in.", min=1)] = 256,
    output_len: Annotated[int | None, _data("Tokens out. Default: 128, or the file's.", min=1)] = None,
    range_ratio: Annotated[float, _data("Lengths vary evenly by so much either way.")] = 0.0,
    prefix_len: Annotated[int, _data("prefix: tokens shared.", min=1)] = 512,
    num_prefixes: Annotated[int, _data("prefix: how many different ones.", min=1)] = 4,
    turns: Annotated[int, _data("multiturn: turns of a conversation.", min=1)] = 4,
    seed: Annotated[int, _data("Of prompts, lengths and arrivals.")] = 0,
    goodput: Annotated[list[str] | None, _result("Objective in ms: ttft:1000 tpot:50 e2el:9000.")] = None,
    attainment: Annotated[float, _result("Share of requests that must meet it.", min=0, max=1)] = 0.9,
    find_goodput: Annotated[bool, _result("Search for the largest load that meets the objective.")] = False,
    json_path: Annotated[Path | None, _result("Write everything measured here.", "--json")] = None,
    html_path: Annotated[Path | None, _result("Write a report with plots here.", "--html")] = None,
    label: Annotated[str, _result("Name of this run.")] = "",
    compare: Annotated[tuple[Path, Path] | None, _result("Compare two JSON results instead of measuring.")] = None,
) -> None:
    """Load a server and say what came of it: throughput, latency percentiles, goodput."""
    from .serve_command import run_serve

    _or_fail(run_serve, locals())


def _or_fail(call: Any, options: dict[str, Any]) -> None:
    """Run a command; what is wrong with the input becomes one line, failures of requests exit code 1."""
    try:
        code = call(options)
    except (ValueError, OSError) as error:
        typer.echo(f"bireme: {' '.join(str(error).split())}", err=True)
        raise typer.Exit(2) from None
    raise typer.Exit(code)
