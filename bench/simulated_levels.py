"""Levels put on a simulated machine one after the other: a sweep over policies, or a search for the largest load."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from .data import draw
from .dataset import Drawn
from .level import Level, Load
from .objective import Objective
from .policies import Policy
from .search import search, verdict
from .serve import Plan
from .simulation import Machine, Outcome, simulate
from .sources import IdSource
from .traffic import Traffic

_ALL = 1 << 20  # requests of a trace
_USUAL_COUNT = 1000  # requests of an open loop's level; a closed one has eight for each user


@dataclass(slots=True)
class SimulatedLevels:
    """What is asked of ``machine``. ``outcomes`` and ``notes`` grow with each level; ``record``: steps of the first
    one to keep."""

    machine: Machine
    traffic: Traffic
    source: IdSource
    objective: Objective | None
    weights: Mapping[str, float]  # of each user's share; empty: users are not told apart
    replicas: int = 1
    routing: str = "turns"
    record: int = 0
    outcomes: list[Outcome] = field(default_factory=list)
    notes: dict[str, None] = field(default_factory=dict)
    number: int = 0  # of the next level
    drawn: int = 0  # sessions until now

    def sweep(self, policies: Iterable[Policy]) -> None:
        """Every load under every policy, each load's requests the same for all."""
        for load in self.traffic.loads():
            drawn = self._draw(load)
            for policy in policies:
                self._put(policy, load, drawn)

    def search(self, policies: Iterable[Policy], attainment: float, bounds: str) -> list[str]:
        """Under each policy the largest load that meets the objective, as a sentence. ``bounds``: it as asked."""
        found, plan = [], Plan(self.traffic, objective=self.objective, attainment=attainment)
        for policy in policies:
            self.number = self.drawn = 0
            first = len(self.outcomes)
            search(_Searched(plan, policy, self), (self.traffic.concurrencies or self.traffic.rates)[0])
            levels = [outcome.level for outcome in self.outcomes[first:]]
            found.append(f"{policy.name}: {verdict(levels, plan, bounds)}")
        return found

    def put(self, policy: Policy, load: Load) -> Level:
        """One level with requests of its own."""
        return self._put(policy, load, self._draw(load))

    def _put(self, policy: Policy, load: Load, drawn: Drawn) -> Level:
        keep = 0 if self.outcomes else self.record
        on = (self.objective, self.replicas, keep, self.routing, self.weights)
        self.outcomes.append(simulate(self.machine, policy, load, drawn, *on))
        return self.outcomes[-1].level

    def _draw(self, load: Load) -> Drawn:
        """A level's requests as token ids, dealt out in turn to the users."""
        traffic, users = self.traffic, tuple(self.weights)
        count = traffic.num_prompts or (8 * (load.concurrency or 1) if load.loop == "closed" else _USUAL_COUNT)
        if traffic.data.kind == "trace" and not traffic.num_prompts:
            count = _ALL
        drawn = draw(traffic.data, self.source, count, self.number, self.drawn)
        sessions = [
            replace(
                session,
                turns=tuple(replace(turn, content=self.source.ids_of(turn.content)) for turn in session.turns),
                user=users[i % len(users)] if users else "",
            )
            for i, session in enumerate(drawn.sessions)
        ]
        due = drawn.due
        if load.loop == "open" and due is None:
            due = traffic.due(load, len(sessions), self.number)
        self.notes |= dict.fromkeys((*drawn.notes, *traffic.idle_users(load, len(sessions))))
        self.number += 1
        self.drawn += len(sessions)
        return Drawn(sessions, due)


@dataclass(frozen=True, slots=True)
class _Searched:
    """One policy, as a search wants what it tries loads on."""

    plan: Plan
    policy: Policy
    levels: SimulatedLevels

    def run(self, load: Load) -> Level:
        return self.levels.put(self.policy, load)
