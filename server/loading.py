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

logger = logging.getLogger("bireme.engine")

#: Tokens that the simulated device's pool holds.
SIM_TOKENS = 1 << 20

Progress = Callable[[int, int], None]
Loader = Callable[[EngineSpec, Progress], "Engine"]


def find_loader(path: str) -> Loader:
    """The function that ``module:name`` means."""
    module, _, name = path.partition(":")
    return cast(Loader, getattr(importlib.import_module(module), name))


def load_engine(spec: EngineSpec, progress: Progress) -> Engine:
    """Open the checkpoint at ``spec.model`` and load it onto the device.

    Raises:
        ValueError: the files or settings can't be used (``CheckpointError`` and the like).
    """
    from ..core.engine import Engine

    backend = _simulated(spec) if spec.device == "sim" else _real(spec, progress)
    return Engine(backend, spec.config)


def _real(spec: EngineSpec, progress: Progress) -> Backend:
    from ..backends.options import BackendOptions
    from ..backends.select import load_backend, resolve_device
    from ..models.checkpoint import open_checkpoint

    options = BackendOptions(spec.cpu_precision, spec.threads, spec.mlx_weights, tensor_parallel=spec.tensor_parallel)
    device = resolve_device(spec.device)
    if device == "cpu" and options.cpu_precision == "fast":
        announce_compiling()
    return load_backend(device, open_checkpoint(spec.model), spec.config, options, progress)


def load_grammars(spec: EngineSpec, info: BackendInfo) -> tuple[GrammarCompiler | None, str]:
    """What compiles grammars for the model's tokens; None, with the reason, where nothing can."""
    from ..core.grammar import GrammarError
    from ..grammar.compiler import GrammarCompiler
    from ..models.checkpoint import open_checkpoint
    from ..models.tokenizer import Tokenizer

    try:
        checkpoint = open_checkpoint(spec.model)
        tokenizer = Tokenizer.from_files(checkpoint.tokenizer, info.vocab_size)
        checkpoint.close()
        config = spec.config
        return GrammarCompiler.of(tokenizer, info.end_ids, config.grammar_timeout_s, config.grammar_cache), ""
    except (GrammarError, ValueError, OSError, ImportError) as error:
        logger.warning("answers can't be held to schemas or grammars: %s", error)
        return None, str(error)


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


def _simulated(spec: EngineSpec) -> Backend:
    """A backend that computes nothing, of the checkpoint's shape: for load tests of everything else."""
    from ..backends.sim import SimBackend, SimOptions
    from ..models.checkpoint import open_checkpoint

    if spec.tensor_parallel > 1:
        raise ValueError(f"tensor_parallel is {spec.tensor_parallel}; sim simulates one device, only cuda runs on more")
    checkpoint = open_checkpoint(spec.model)
    shape, block_size = checkpoint.config, spec.config.block_size
    options = SimOptions(
        num_blocks=-(-SIM_TOKENS // block_size),
        block_size=block_size,
        vocab_size=shape.vocab_size,
        max_model_len=shape.max_position,
        end_ids=checkpoint.end_ids,
    )
    checkpoint.close()
    return SimBackend(options)
