"""An option that the chosen device can't use is refused or named in the log, never passed over."""

from __future__ import annotations

import logging
import re
from dataclasses import fields
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from bireme.backends import select
from bireme.backends.options import BackendOptions
from bireme.backends.select import load_backend
from bireme.backends.uses import KV_CACHE_DTYPES, USES, unused_options
from bireme.core import config
from bireme.core.config import EngineConfig
from bireme.models.checkpoint import open_checkpoint
from bireme.server.cli import app
from bireme.server.loading import load_engine
from bireme.server.settings import EngineSpec

REAL = ("cpu", "cuda", "mlx", "sim")
#: option -> a value that is not the default; where it is "used", "ignored" and "refused", in the order of REAL.
EVERY: dict[str, tuple[Any, str]] = {
    "cpu_precision": ("exact", "used refused refused refused"),
    "threads": (3, "used used ignored ignored"),
    "mlx_weights": ("dense", "ignored ignored used ignored"),
    "mlx_dtype": ("float16", "refused refused used refused"),
    "tensor_parallel": (2, "used used refused refused"),
    "gpu_memory_fraction": (0.5, "ignored used ignored ignored"),
    "kv_cache_memory": (1 << 20, "used used used ignored"),
    "kv_cache_dtype": ("int8", "used used used refused"),
}


def looked_at(device: str, given: tuple[str, ...] = (), **values: Any) -> tuple[str, ...]:
    """``unused_options`` of ``values``."""
    names = {field.name for field in fields(BackendOptions)}
    engine = EngineConfig(**{name: value for name, value in values.items() if name not in names})
    options = BackendOptions(**{name: value for name, value in values.items() if name in names})
    return unused_options(device, engine, options, given)


def test_every_option_of_a_device_is_here() -> None:
    """A new one must say where it is used; and the command line's help says the same."""
    assert {field.name for field in fields(BackendOptions)} <= set(EVERY) == {*USES, "kv_cache_dtype"}
    heads = {}
    for option in typer.main.get_command(app).commands["serve"].params:  # type: ignore[attr-defined]
        if head := re.match(r"((?:cpu|cuda|mlx)(?:, (?:cpu|cuda|mlx))*): ", str(getattr(option, "help", ""))):
            heads[option.name] = head.group(1).split(", ")
    assert set(heads) == set(USES) - {"mlx_dtype", "kv_cache_memory"}  # a program's; every real device's
    assert all(set(found) <= set(USES[name].devices) for name, found in heads.items())


@pytest.mark.parametrize("option", EVERY)
@pytest.mark.parametrize("device", REAL)
def test_an_option_is_used_ignored_or_refused(device: str, option: str) -> None:
    value, expected = EVERY[option]
    what = expected.split()[REAL.index(device)]
    if what == "refused":
        with pytest.raises(ValueError, match=f"{option} is {value!r}.*{device}"):
            looked_at(device, **{option: value})
    else:
        assert looked_at(device, **{option: value}) == ((option,) if what == "ignored" else ())


def test_a_default_that_was_named_is_said_where_it_means_something() -> None:
    """Nobody is misled into other numbers by it, so none is refused; what every device does anyway is no news."""
    every = tuple(EVERY)
    for device, unused in {
        "cpu": ("gpu_memory_fraction",),
        "cuda": ("cpu_precision",),
        "mlx": ("cpu_precision", "gpu_memory_fraction"),
        "sim": ("cpu_precision", "gpu_memory_fraction"),
    }.items():
        assert looked_at(device, given=every) == unused
        assert looked_at(device) == ()


def test_kinds_of_cache_by_device() -> None:
    for device, known in KV_CACHE_DTYPES.items():
        for kind in config.KV_CACHE_DTYPES:
            if kind in known:
                assert looked_at(device, kv_cache_dtype=kind) == ()
                continue
            wanted = f"kv_cache_dtype is {kind!r}; on {device} it must be one of {', '.join(known)}"
            with pytest.raises(ValueError, match=f"^{wanted}$"):
                looked_at(device, kv_cache_dtype=kind)


def test_auto_is_judged_by_what_it_chose(tiny, monkeypatch, caplog) -> None:
    """A backend says what it ignores in one line, and loads nothing that it refuses."""
    checkpoint, exact = open_checkpoint(tiny("llama").folder), BackendOptions(cpu_precision="exact", threads=1)
    monkeypatch.setattr(select, "resolve_device", lambda device: "mlx")
    with pytest.raises(ValueError, match=r"cpu_precision is 'exact', which the device here, mlx, can't do \(cpu can\)"):
        load_backend("auto", checkpoint, EngineConfig(), exact)
    monkeypatch.setattr(select, "resolve_device", lambda device: "cpu")
    engine = EngineConfig(gpu_memory_fraction=0.5, kv_cache_memory=1 << 20)
    with caplog.at_level(logging.WARNING):
        load_backend("auto", checkpoint, engine, exact, given=("mlx_weights",)).close()
    assert caplog.messages == ["ignored, since the device is cpu: gpu_memory_fraction (for cuda)"]


def test_a_simulated_device_says_it_too(tiny, caplog) -> None:
    path = tiny("llama").folder
    spec = EngineSpec(str(path), "sim", EngineConfig(kv_cache_memory=1 << 20), threads=2, given=("cpu_precision",))
    with caplog.at_level(logging.WARNING):
        load_engine(spec, open_checkpoint(path), lambda done, total: None).close()
    said = "cpu_precision (for cpu), threads (for cpu and cuda), kv_cache_memory (for cpu and cuda and mlx)"
    assert caplog.messages == [f"ignored, since the device is sim: {said}"]


def test_a_device_that_was_named_refuses_before_anything_is_fetched() -> None:
    asked = CliRunner().invoke(
        app, ["serve", "no/such-model", "--config", "none", "--device", "mlx", "--cpu-precision", "exact"]
    )
    assert asked.exit_code == 2 and "cpu_precision is 'exact', which the device here, mlx, can't do" in asked.output


def test_what_was_named_anywhere_counts(tmp_path, monkeypatch) -> None:
    """On the command line, in the environment, in a file: all of it reaches the engine's process by name."""
    seen: list[EngineSpec] = []
    monkeypatch.setattr("bireme.server.listen.bind", lambda host, port: None)
    monkeypatch.setattr("bireme.server.run.serve", lambda settings, listener: seen.append(settings.spec))
    file = tmp_path / "bireme.toml"
    file.write_text("[serve]\nmlx-weights = 'auto'\n")
    words = ["serve", "MODEL", "--config", str(file), "--gpu-memory-fraction", "0.9"]
    ended = CliRunner().invoke(app, words, env={"BIREME_THREADS": "2"})
    assert ended.exit_code == 0, ended.output
    assert set(seen[0].given) >= {"mlx_weights", "gpu_memory_fraction", "threads"}
    assert not {"cpu_precision", "kv_cache_dtype", "device"} & set(seen[0].given)
