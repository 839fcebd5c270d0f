"""Which load is put on a server, or on a simulated one: what is asked, by how many at once or how often, and when."""

from __future__ import annotations

from dataclasses import dataclass

from .arrivals import Ramp, ramp, schedule
from .dataset import DataSpec
from .level import Load


@dataclass(frozen=True, slots=True)
class Traffic:
    """What one run asks. One of ``concurrencies`` (closed loop), ``rates`` and ``ramp`` (open loop) is given, or the
    data has times of its own.

    Raises:
        ValueError: none of them, several, or what has no meaning beside them.
    """

    data: DataSpec
    concurrencies: tuple[int, ...] = ()
    rates: tuple[float, ...] = ()
    burstiness: float = 1.0
    ramp: Ramp | None = None
    max_concurrency: int | None = None
    num_prompts: int | None = None  # per level; None: by the level
    seed: int = 0

    def __post_init__(self) -> None:
        given = [bool(self.concurrencies), bool(self.rates), self.ramp is not None]
        if self.data.kind == "trace":
            if any(given) or self.burstiness != 1:
                raise ValueError(
                    "a trace has times of its own: leave out --concurrency, --request-rate, the ramp and --burstiness"
                )
        elif sum(given) != 1:
            raise ValueError("give either --concurrency (closed loop) or --request-rate or a ramp (open loop)")
        if not self.burstiness > 0:
            raise ValueError(f"burstiness is {self.burstiness:g}; it must be above 0 (1: Poisson, inf: even)")
        if self.concurrencies and (self.max_concurrency is not None or self.burstiness != 1):
            raise ValueError(
                "--max-concurrency and --burstiness belong to an open loop; --concurrency makes a closed one"
            )

    def loads(self) -> list[Load]:
        """The levels in order."""
        if self.data.kind == "trace":
            return [Load("open", self.max_concurrency, None)]
        if self.ramp is not None:
            return [Load("open", self.max_concurrency, None, self.burstiness, self.ramp, self.data.unit)]
        return [self.load_at(value) for value in self.concurrencies or self.rates]

    def load_at(self, value: float) -> Load:
        """One level of the same kind: so many users, or so many requests a second."""
        if self.concurrencies:
            return Load("closed", int(value), None)
        return Load("open", self.max_concurrency, value, self.burstiness, unit=self.data.unit)

    def due(self, load: Load, count: int, number: int) -> list[float]:
        """When each of ``count`` sessions of the open loop's level ``number`` is due, in seconds from its start."""
        seed = self.seed + number
        if load.ramp is not None:
            return ramp(count, load.ramp, load.burstiness, seed)
        assert load.rate is not None
        return schedule(count, load.rate, load.burstiness, seed)

    def idle_users(self, load: Load, sessions: int) -> list[str]:
        """A note where a closed loop has more users than there are sessions to share out."""
        if load.loop != "closed" or sessions >= (load.concurrency or 0):
            return []
        what = "conversations" if self.data.kind == "multiturn" else "requests"
        return [
            f"{load.name}: there are {sessions} {what} to share out, so no more than {sessions} users were ever busy; "
            "give more --num-prompts"
        ]
