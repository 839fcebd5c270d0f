"""One rank's backend: a ``TorchBackend`` over its share, with what binds it to the others."""

from __future__ import annotations

import dataclasses
import math

from ....core.config import EngineConfig
from ....models.weight import Checkpoint, Progress
from ..device import device_for
from ..road import Road, road_for
from ..runner import TorchBackend
from .checkpoint import RankCheckpoint
from .device import Control, ParallelDevice
from .handles import ParallelLoader
from .ranks import Ranks
from .sampling import shared
from .shares import Shares


def build_rank(
    checkpoint: Checkpoint, config: EngineConfig, ranks: Ranks, control: Control, progress: Progress | None = None
) -> TorchBackend:
    """Load this rank's share of ``checkpoint``. Every rank calls it with the same model and configuration.

    All graphs are captured at once, however long it takes: ranks must not differ in what they have captured.
    """
    shares = Shares.of(checkpoint, ranks.size)
    mine = RankCheckpoint(checkpoint, shares, ranks.rank)
    road = road_for(ranks.device, mine, progress)
    device = ParallelDevice(device_for(ranks.device), control)
    return TorchBackend(mine, config, bound(road, ranks, shares), device, capture_seconds=math.inf)


def bound(road: Road, ranks: Ranks, shares: Shares) -> Road:
    """``road`` over a rank's share, bound to the others."""
    loader = ParallelLoader(road.loader, ranks, shares)
    return dataclasses.replace(road, loader=loader, sampler=shared(road.sampler, ranks))
