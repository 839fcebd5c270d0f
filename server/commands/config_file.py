"""Settings of ``bireme serve`` from a file: ``--config FILE``, else ``bireme.toml`` here, else the user's own file.

The command line goes before the environment, the environment before the file, the file before the defaults.
"""

from __future__ import annotations

import difflib
import os
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

#: As a file: none at all, whatever lies in the usual places.
NO_FILE = "none"
#: Looked for in the working directory.
FILE_NAME = "bireme.toml"
#: What the environment variables of the options begin with.
ENV_PREFIX = "BIREME"

#: Parameters that make no sense in a file.
_NOT_SETTINGS = ("help", "config_file", "show_config")
_SECRET = "api_key"
#: How like an option's a variable's name must be to be taken for a slip.
_LOOKS_LIKE = 0.88


def user_file() -> Path:
    """The user's own file, there or not."""
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "bireme" / "config.toml"


def find_file(given: str | None) -> Path | None:
    """The file to read: the one named, else the first that exists of the usual two. Raises ``typer.BadParameter``."""
    if given == NO_FILE:
        return None
    if given:
        path = Path(given).expanduser()
        if not path.is_file():
            raise typer.BadParameter(f"there is no file {path}; name a TOML file, or '{NO_FILE}'")
        return path
    return next((path for path in (Path(FILE_NAME), user_file()) if path.is_file()), None)


def read_settings(path: Path, ctx: typer.Context) -> dict[str, Any]:
    """The file's values by parameter name, each checked as on the command line. Raises ``typer.BadParameter``."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"{path}: {error}") from None
    table = tables.pop("serve", {})
    if tables or not isinstance(table, Mapping):
        wrong = next(iter(tables), "serve")
        raise typer.BadParameter(f"{path}: {wrong!r} is not known there; settings stand in the table [serve]")
    params = _settings(ctx)
    return {_known(path, key, params): _checked(path, key, value, params, ctx) for key, value in table.items()}


def _settings(ctx: typer.Context) -> dict[str, Any]:
    """The command's parameters that a file may set, by name."""
    return {str(param.name): param for param in ctx.command.params if param.name not in _NOT_SETTINGS}


def _known(path: Path, key: str, params: Mapping[str, Any]) -> str:
    name = key.replace("-", "_")
    if name in params:
        return name
    near = difflib.get_close_matches(name, list(params), n=1, cutoff=0.5)
    hint = f"; did you mean {_key(near[0])!r}?" if near else "; 'bireme serve --help' lists the options"
    raise typer.BadParameter(f"{path}: [serve] has no setting {key!r}{hint}")


def _checked(path: Path, key: str, value: Any, params: Mapping[str, Any], ctx: typer.Context) -> Any:
    """The value, in the words of the command line; a list where the option may be repeated."""
    param = params[key.replace("-", "_")]
    try:
        if getattr(param, "is_flag", False):
            if not isinstance(value, bool):
                raise ValueError("wanted: true or false")
            return value
        if getattr(param, "multiple", False):
            value = [_word(one) for one in (value if isinstance(value, list) else [value])]
        else:
            value = _word(value)
        param.process_value(ctx, value)
        return value
    except (ValueError, typer.BadParameter) as error:
        what = "(not shown)" if param.name == _SECRET else f"{value!r}"
        reason = getattr(error, "message", str(error))
        raise typer.BadParameter(f"{path}: [serve] {key} = {what}: {reason}") from None


def _word(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError("wanted: a number or a text")
    return str(value)


def load(ctx: typer.Context, given: str | None) -> str | None:
    """The option's callback: makes the file's values the defaults. Returns the file that was read."""
    if ctx.resilient_parsing:
        return given
    _drop_kubernetes_port()
    _check_environment(ctx)
    path = find_file(given)
    if path is None:
        return given
    found = read_settings(path, ctx)
    ctx.default_map = {**(ctx.default_map or {}), **found}
    if not given:
        typer.echo(f"Settings are taken from {path}.", err=True)
    if _SECRET in found and (mode := _mode_for_keys(path)):
        typer.echo(f"bireme: {path} holds an API key that others can read: chmod {mode} {path}", err=True)
    return str(path)


def _mode_for_keys(path: Path) -> str:
    """What a file with keys should be set to; "" where it is as it should be.

    Of somebody else's file the group's right is what we read it by: a service's file belongs to root.
    """
    found = path.stat()
    ours = found.st_uid == os.geteuid()
    open_to = stat.S_IROTH | stat.S_IRGRP if ours else stat.S_IROTH
    return "" if not found.st_mode & open_to else "600" if ours else "640"


def _drop_kubernetes_port() -> None:
    """Kubernetes gives the pods beside a service called ``bireme`` a variable of this name, and means another thing."""
    name = f"{ENV_PREFIX}_PORT"
    if os.environ.get(name, "").startswith("tcp://"):
        typer.echo(f"bireme: {name}={os.environ.pop(name)} is Kubernetes' word for a service; ignored", err=True)


def _check_environment(ctx: typer.Context) -> None:
    """A variable with a wrong value is an error that names it; one that only looks like an option's is said."""
    known = {f"{ENV_PREFIX}_{str(param.name).upper()}": param for param in _settings(ctx).values()}
    for name, param in known.items():
        try:
            if (value := param.value_from_envvar(ctx)) is not None:
                param.process_value(ctx, value)
        except typer.BadParameter as error:
            raise typer.BadParameter(f"{name}: {error.message}", param_hint="the environment") from None
    for name in os.environ:
        if name.startswith(f"{ENV_PREFIX}_") and name not in known:
            if near := difflib.get_close_matches(name, known, n=1, cutoff=_LOOKS_LIKE):
                typer.echo(f"bireme: {name} is no option's variable and is ignored; {near[0]} is one", err=True)


def show(ctx: typer.Context) -> str:
    """The settings in effect as a file that could be read again; where each came from stands behind it."""
    lines = ["[serve]"]
    for name in _settings(ctx):
        line = _line(name, ctx.params.get(name))
        lines.append(f"{line:<48}  # {_origin(ctx, name)}")
    return "\n".join(lines)


def named(ctx: typer.Context) -> tuple[str, ...]:
    """The settings that were named somewhere: on the command line, in the environment or in a file."""
    return tuple(name for name in _settings(ctx) if _origin(ctx, name) != "default")


def _line(name: str, value: Any) -> str:
    if value in (None, (), []):
        return f"# {_key(name)} ="
    if name == _SECRET:
        return f"# {_key(name)} = ({len(value)} given, not shown)"
    return f"{_key(name)} = {_toml(value)}"


def _origin(ctx: typer.Context, name: str) -> str:
    source = ctx.get_parameter_source(name)
    origins = {
        "COMMANDLINE": "command line",
        "ENVIRONMENT": f"{ENV_PREFIX}_{name.upper()}",
        "DEFAULT_MAP": str(ctx.params.get("config_file")),
    }
    return origins.get("DEFAULT" if source is None else source.name, "default")


def _key(name: str) -> str:
    return name.replace("_", "-")


def _toml(value: Any) -> str:
    """One value in TOML's form; JSON's strings are TOML's, but for what JSON may leave bare."""
    import json

    if isinstance(value, list | tuple):
        return f"[{', '.join(_toml(one) for one in value)}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return json.dumps(value)


ConfigFile = Annotated[
    str | None,
    typer.Option(
        "--config",
        help=f"Settings from this TOML file, or '{NO_FILE}'. Default: {FILE_NAME} here, else in ~/.config/bireme.",
        metavar="FILE",
        envvar=f"{ENV_PREFIX}_CONFIG",
        show_envvar=False,
        callback=load,
        is_eager=True,
        rich_help_panel="Settings",
    ),
]
ShowConfig = Annotated[
    bool,
    typer.Option(
        "--show-config",
        help="Show all settings and where each came from, and exit.",
        allow_from_autoenv=False,
        rich_help_panel="Settings",
    ),
]
