"""Build an engine from its specification; runs in the engine process, on the thread that will own the device."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from .settings import EngineSpec

if TYPE_CHECKING:
    from ..backends.base import Backend, BackendInfo
    from ..core.engine import Engine
    from ..grammar.compiler import GrammarCompiler
    from ..models.checkpoint import OpenCheckpoint

logger = logging.getLogger("bireme.engine")

#: Tokens that the simulated device's pool holds.
SIM_TOKENS = 1 << 20

Progress = Callable[[int, int], None]
#: Builds the engine of an opened checkpoint, on the thread that will run it.
Loader = Callable[[EngineSpec, "OpenCheckpoint", Progress], "Engine"]


def find_loader(path: str) -> Loader:
    """The function that ``module:name`` means."""
    module, _, name = path.partition(":")
    return cast(Loader, getattr(importlib.import_module(module), name))


def load_engine(spec: EngineSpec, checkpoint: OpenCheckpoint, progress: Progress) -> Engine:
    """Load the checkpoint onto the device.

    Raises:
        ValueError: the files or settings can't be used (``CheckpointError`` and the like).
    """
    from ..core.engine import Engine

    backend = _simulated(spec, checkpoint) if spec.device == "sim" else _real(spec, checkpoint, progress)
    return Engine(backend, spec.config)


def _real(spec: EngineSpec, checkpoint: OpenCheckpoint, progress: Progress) -> Backend:
    from ..backends.select import load_backend, resolve_device

    options, device = spec.backend_options, resolve_device(spec.device)
    if device == "cpu" and options.cpu_precision == "fast":
        announce_compiling()
    return load_backend(device, checkpoint, spec.config, options, progress, spec.given)


def grammar_compiler(spec: EngineSpec, checkpoint: OpenCheckpoint, info: BackendInfo) -> GrammarCompiler:
    """What compiles grammars for the model's tokens."""
    from ..grammar.compiler import GrammarCompiler
    from ..models.tokenizer import Tokenizer

    files, config = checkpoint.tokenizer, spec.config

    def read() -> Tokenizer:
        return Tokenizer.from_files(files, info.vocab_size)

    return GrammarCompiler(read, info.end_ids, config.grammar_timeout_s, config.grammar_cache)


def announce_compiling() -> None:
    """Log one line when Numba has to compile: a machine's first start takes long, and nothing else shows why."""
    from numba.core import event

    class Announcement(event.Listener):
        def on_start(self, event: object) -> None:
            if not announced:
                announced.append(True)
                logger.info("compiling kernels for this CPU, once: later starts find them in the cache")

        def on_end(self, event: object) -> None:
            pass

    announced: list[bool] = []
    event.register("numba:compile", Announcement())  # type: ignore[no-untyped-call]


def _simulated(spec: EngineSpec, checkpoint: OpenCheckpoint) -> Backend:
    """A backend that computes nothing, of the checkpoint's shape: for load tests of everything else."""
    from ..backends.sim import SimBackend, SimOptions
    from ..backends.uses import check_options

    check_options("sim", spec.config, spec.backend_options, spec.given)
    shape, block_size = checkpoint.config, spec.config.block_size
    options = SimOptions(
        num_blocks=-(-SIM_TOKENS // block_size),
        block_size=block_size,
        vocab_size=shape.vocab_size,
        max_model_len=shape.max_position,
        end_ids=checkpoint.end_ids,
    )
    return SimBackend(options)
