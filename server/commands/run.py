"""``bireme run``: a chat in the terminal, or one answer for a script."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .complete import complete_model
from .config_file import ENV_PREFIX
from .fail import EXIT_INTERRUPTED, fail

if TYPE_CHECKING:
    from ..terminal.connection import Connection
    from ..terminal.display import Display

#: How long the port of this machine is asked whether a server is there, in seconds.
_PROBE_S = 1.0
_SERVER, _SAMPLING, _OWN = "The server", "Sampling", "A server of the chat's own"


def _option(panel: str, text: str, *names: str, **limits: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=panel, **limits)


def run(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="As for 'bireme serve'. With --url: one of the server's names.",
            autocompletion=complete_model,
        ),
    ] = None,
    prompt: Annotated[str | None, typer.Argument(metavar="PROMPT", help="One question; without it: a chat.")] = None,
    system: Annotated[str, typer.Option(help="What the model is told before all else.")] = "",
    reasoning: Annotated[bool, typer.Option(help="Show what the model thinks before it answers.")] = True,
    keep_history: Annotated[bool, typer.Option("--history/--no-history", help="Keep what is typed.")] = True,
    url: Annotated[str | None, _option(_SERVER, "Chat with the server there.")] = None,
    port: Annotated[
        int, _option(_SERVER, "Port of this machine where a server that has MODEL is looked for.", min=1, max=65535)
    ] = 8000,
    api_key: Annotated[
        str | None, _option(_SERVER, "The server's key.", envvar=f"{ENV_PREFIX}_API_KEY", show_envvar=True)
    ] = None,
    temperature: Annotated[str, _option(_SAMPLING, "Default: the model's own.", metavar="NUMBER")] = "",
    top_p: Annotated[str, _option(_SAMPLING, "Default: the model's own.", metavar="NUMBER")] = "",
    max_tokens: Annotated[
        str, _option(_SAMPLING, "Of one answer. Default: what the context leaves.", metavar="N")
    ] = "",
    seed: Annotated[str, _option(_SAMPLING, "Makes answers repeatable.", metavar="N")] = "",
    device: Annotated[str | None, _option(_OWN, "auto, cpu, cuda, mlx, sim.")] = None,
    max_model_len: Annotated[int | None, _option(_OWN, "Context.", min=1)] = None,
    kv_cache_memory: Annotated[str | None, _option(_OWN, "Memory for the KV cache: 2GiB.")] = None,
    threads: Annotated[int | None, _option(_OWN, "cpu, cuda: threads of the CPU's own work.", min=1)] = None,
) -> None:
    """Chat with MODEL. With PROMPT, or with text on standard input: one answer, plain where it isn't a terminal.

    A server that runs here and has MODEL is used; else one is started for the chat alone, and ends with it.
    """
    from ..terminal.connection import ServerError
    from ..terminal.session import Session

    own = {"device": device, "max_model_len": max_model_len, "kv_cache_memory": kv_cache_memory, "threads": threads}
    try:
        sampling = Session("", system)
        for name, text in (("temperature", temperature), ("top_p", top_p), ("max_tokens", max_tokens), ("seed", seed)):
            sampling.set(name, text)
        with contextlib.ExitStack() as stack:
            key = next(iter((api_key or "").split()), None)  # the variable may hold several, as a server takes them
            connection, name, prompt = _connect(stack, model, prompt, url, port, key, own)
            session = Session(name, system, sampling.sampling)
            raise typer.Exit(_talk(session, connection, prompt, reasoning=reasoning, keep_history=keep_history))
    except BrokenPipeError:  # who read our output has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(1) from None
    except (ServerError, ValueError, OSError) as error:
        fail(error)
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None


def _connect(
    stack: contextlib.ExitStack,
    model: str | None,
    prompt: str | None,
    url: str | None,
    port: int,
    key: str | None,
    own: dict[str, Any],
) -> tuple[Connection, str, str | None]:
    """(server, the model's name there, prompt)."""
    from ..terminal.connection import Connection

    if url is not None:
        connection = Connection(url, key)
        names = connection.models()
        if prompt is None and model is not None and model not in names:
            model, prompt = None, model  # --url URL PROMPT
        if model is not None and model not in names:
            raise ValueError(f"{connection.url} has no model {model!r}; it has {', '.join(names) or 'none'}")
        return connection, model or _first(names, connection), prompt
    if not any(value is not None for value in own.values()):
        local = Connection(f"http://127.0.0.1:{port}", key, quick=_PROBE_S)
        if name := _served_here(local, model):
            return Connection(local.url, key), name, prompt
    if model is None:
        raise ValueError(f"name a MODEL, or --url of a server: none answers at 127.0.0.1:{port}; 'demo' is a small one")
    return *_start(stack, model, own), prompt


def _first(names: list[str], connection: Connection) -> str:
    if not names:
        raise ValueError(f"{connection.url} has no model")
    return names[0]


def _served_here(local: Connection, model: str | None) -> str | None:
    """The name of ``model`` (None: whichever) at the server on this machine's port, if one is there and has it."""
    from ..names import default_name
    from ..terminal.connection import ServerError

    try:
        names = local.models()
    except ServerError as error:
        if error.status == 401:
            typer.echo(f"bireme: the server at {local.url} asks for a key (--api-key)", err=True)
        return None
    if model is None:
        return names[0] if names else None
    return next((name for name in (model, default_name(model)) if name in names), None)


def _start(stack: contextlib.ExitStack, model: str, own: dict[str, Any]) -> tuple[Connection, str]:
    from ...backends.uses import ignored_options
    from ...core.config import EngineConfig
    from ..names import default_name
    from ..progress import LoadBar, resolve_model
    from ..settings import EngineSpec
    from ..sizes import parse_size
    from ..terminal.own_server import OwnServer

    memory = own["kv_cache_memory"]
    config = EngineConfig(
        max_model_len=own["max_model_len"], kv_cache_memory=None if memory is None else parse_size(memory)
    )
    path, name = resolve_model(model), default_name(model)
    if sys.stderr.isatty():
        typer.echo(f"Loading {model} ...", err=True)
    spec = EngineSpec(str(path), own["device"] or "auto", config, threads=own["threads"])
    connection = stack.enter_context(OwnServer(spec, name, LoadBar()))
    if ignored := ignored_options(connection.device(), config, spec.backend_options):  # nobody sees that server's log
        typer.echo(f"bireme: {ignored}", err=True)
    return connection, name


def _talk(session: Any, connection: Connection, prompt: str | None, *, reasoning: bool, keep_history: bool) -> int:
    """Chat, or answer once; the exit code."""
    from rich.console import Console

    from ..terminal.repl import chat, one_answer
    from ..users.store import default_path

    if not sys.stdin.isatty():
        prompt = "\n\n".join(part for part in (prompt, sys.stdin.read().strip()) if part)
        if not prompt:
            raise ValueError("there is no question: give a PROMPT, or text on standard input")
    if prompt is not None:
        answer = one_answer(session, connection, prompt, _display(reasoning=reasoning))
        return EXIT_INTERRUPTED if answer.stopped else 0
    file = default_path().with_name("chat_history") if keep_history else None
    facts = f"{session.model} at {connection.url}"
    chat(session, connection, Console(), facts=facts, reasoning=reasoning, history_file=file)
    return 0


def _display(*, reasoning: bool) -> Display:
    from rich.console import Console

    from ..terminal.display import MarkdownDisplay, PlainDisplay

    console = Console()
    return MarkdownDisplay(console, reasoning=reasoning) if console.is_terminal else PlainDisplay()
