"""The real engine over a simulated device: scheduler, blocks and prefix cache are those that serve."""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ..core.engine import Engine
from ..core.request import QueueFullError, Request, RequestRejectedError, SamplingParams, SequenceOutput
from .ask import Sample, Session
from .dataset import Drawn
from .level import Level, Load
from .objective import Objective
from .policies import Policy
from .routing import ROUTINGS, route
from .summary import summarise
from .timed_backend import StepCost, StepRecord, TimedBackend

_LOOK_EVERY = 16  # steps between two looks at the pool


@dataclass(frozen=True, slots=True)
class Machine:
    """One device with its KV pool."""

    cost: StepCost
    pool_tokens: int
    max_len: int
    front: float = 0.0  # seconds that the HTTP side takes for a request, one after the other


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a simulated level gave."""

    policy: str
    level: Level
    kv_mean: float  # share of the pool held by running sequences, 0 to 1
    kv_peak: float
    preemptions: int
    hit_rate: float  # of prompt tokens
    steps: int
    simulated: float  # seconds of device time, all machines together
    wall: float  # seconds that simulating took
    records: tuple[StepRecord, ...]
    by_user: Mapping[str, Level] = field(default_factory=dict)  # where there are several

    @property
    def speed(self) -> float:
        """How many times faster than real time it ran."""
        return self.simulated / self.wall if self.wall > 0 else 0.0


@dataclass(slots=True)
class _Turn:
    """A request under way."""

    sample: Sample
    session: Session
    number: int
    prompt: tuple[int, ...]
    tokens: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Arrival:
    session: Session
    number: int
    history: tuple[int, ...]
    due: float


class _Driver:
    """Feeds one engine from a list of sessions: at their due times, or as users become free."""

    def __init__(
        self, machine: Machine, policy: Policy, load: Load, drawn: Drawn, keep: int, weights: Mapping[str, float]
    ) -> None:
        size = policy.config.block_size
        self.backend = TimedBackend(machine.pool_tokens // size, size, machine.max_len, machine.cost, keep)
        self.clock = self.backend.clock
        self.engine = Engine(self.backend, policy.config, self.clock)
        self.policy, self._weights = policy, weights
        self.samples: list[Sample] = []
        self.kv: list[float] = []
        self._outside = _in_order(drawn, load)  # sessions that have no place yet
        self._places = load.concurrency or len(self._outside)
        self._due: list[tuple[float, int, _Arrival]] = []  # heap
        self._held: deque[_Arrival] = deque()  # static batches: due, but not let in yet
        self._turns: dict[str, _Turn] = {}
        self._order = 0
        self._front, self._front_free = machine.front, 0.0
        self._fill(0.0)

    def run(self) -> None:
        """Until everything has been answered."""
        steps = 0
        while self._due or self._held or self.engine.has_work():
            self._let_in()
            if not self.engine.has_work():
                if self._due:
                    self.clock.advance_to(self._due[0][0])
                continue
            for output in self.engine.step():
                self._take(output)
            steps += 1
            if steps % _LOOK_EVERY == 0:
                self.kv.append(self.engine.stats().kv_usage)

    def _push(self, arrival: _Arrival, sent: float) -> None:
        """Arrivals are pushed in the order they are sent, turns of conversations with time between them apart."""
        self._order += 1
        self._front_free = there = max(sent, self._front_free) + self._front if self._front else sent
        heapq.heappush(self._due, (there, self._order, arrival))

    def _fill(self, now: float) -> None:
        """Free places go to those who are due next; a session without a time of its own is due when it has a place."""
        while self._outside and self._places:
            session, due = self._outside.popleft()
            self._places -= 1
            self._push(_Arrival(session, 0, (), now if due is None else due), max(now, due or 0.0))

    def _leave(self, now: float) -> None:
        """A session is over."""
        self._places += 1
        self._fill(now)

    def _let_in(self) -> None:
        while self._due and self._due[0][0] <= self.clock.now:
            self._held.append(heapq.heappop(self._due)[2])
        if self.policy.static and self.engine.has_work():
            return
        room = self.policy.config.max_num_seqs if self.policy.static else len(self._held)
        for _ in range(min(room, len(self._held))):
            self._add(self._held.popleft())

    def _add(self, arrival: _Arrival) -> None:
        turn = arrival.session.turns[arrival.number]
        assert isinstance(turn.content, tuple)
        prompt = (*arrival.history, *turn.content)
        user = arrival.session.user
        sample = Sample(due=arrival.due, sent=self.clock.now, user=user)
        name = f"r{len(self.samples)}"
        self.samples.append(sample)
        try:
            params = SamplingParams(max_tokens=turn.max_tokens, temperature=0.0, ignore_eos=True)
            request = Request(name, prompt, params, arrival_time=arrival.due)
            if self.policy.fair:
                request = replace(request, user=user, weight=self._weights.get(user))
            self.engine.add(request)
        except (RequestRejectedError, QueueFullError) as error:
            sample.failure = "HTTP 429" if isinstance(error, QueueFullError) else "HTTP 400"  # as the server answers
            sample.reason, sample.end = str(error), self.clock.now
            sample.unasked = len(arrival.session.turns) - arrival.number - 1
            self._leave(self.clock.now)
            return
        self._turns[name] = _Turn(sample, arrival.session, arrival.number, prompt)

    def _take(self, output: SequenceOutput) -> None:
        turn, now = self._turns[output.request_id], self.clock.now
        if output.token_ids:
            turn.sample.times.append(now)
            turn.tokens += output.token_ids
        if output.cached_tokens is not None:
            turn.sample.cached_tokens = output.cached_tokens
        if output.finish_reason is not None:
            self._end(output.request_id, turn, now)

    def _end(self, name: str, turn: _Turn, now: float) -> None:
        sample = turn.sample
        del self._turns[name]
        sample.end, sample.finished = now, True
        if sample.times:
            sample.first, sample.last, sample.chunks = sample.times[0], sample.times[-1], len(sample.times)
        sample.tokens, sample.prompt_tokens = len(turn.tokens), len(turn.prompt)
        if turn.number + 1 < len(turn.session.turns):
            history = (*turn.prompt, *turn.tokens)
            due = now + turn.session.think
            self._push(_Arrival(turn.session, turn.number + 1, history, due), due)
        else:
            self._leave(now)


def _in_order(drawn: Drawn, load: Load) -> deque[tuple[Session, float | None]]:
    """The sessions with when each is due: in a closed loop, when there is a place for it."""
    if load.loop == "closed":
        return deque((session, None) for session in drawn.sessions)
    assert drawn.due is not None
    order = sorted(range(len(drawn.due)), key=drawn.due.__getitem__)
    return deque((drawn.sessions[i], drawn.due[i]) for i in order)


def simulate(
    machine: Machine,
    policy: Policy,
    load: Load,
    drawn: Drawn,
    objective: Objective | None = None,
    replicas: int = 1,
    keep: int = 0,
    routing: str = ROUTINGS[0],
    weights: Mapping[str, float] | None = None,
) -> Outcome:
    """One level under one policy. ``replicas``: so many equal machines; ``routing`` as ``route`` has it; a closed
    loop's users, or an open one's places, are shared out evenly. ``keep``: steps of the first machine to record.
    ``weights``: of the fair shares of the sessions' users.

    Raises:
        ValueError: fewer users, or places, than machines.
    """
    if load.concurrency is not None and load.concurrency < replicas:
        raise ValueError(
            f"concurrency is {load.concurrency}, fewer than {replicas} replicas: some would never be asked anything"
        )
    start = time.perf_counter()
    drivers = []
    shares = route(drawn, replicas, routing)
    for index, share in enumerate(shares):
        own = load
        if load.concurrency is not None:
            each, more = divmod(load.concurrency, len(shares))
            own = replace(load, concurrency=each + (index < more))
        driver = _Driver(machine, policy, own, share, 0 if index else keep, weights or {})
        driver.run()
        drivers.append(driver)
    wall = time.perf_counter() - start
    stats = [driver.engine.stats() for driver in drivers]
    usage = [value for driver in drivers for value in driver.kv] or [0.0]
    prompt = sum(one.prompt_tokens for one in stats)
    samples = [sample for driver in drivers for sample in driver.samples]
    users = sorted({sample.user for sample in samples})
    return Outcome(
        policy=policy.name,
        level=summarise(samples, load, objective),
        kv_mean=sum(usage) / len(usage),
        kv_peak=max(usage),
        preemptions=sum(one.preemptions for one in stats),
        hit_rate=sum(one.prompt_tokens_cached for one in stats) / prompt if prompt else 0.0,
        steps=sum(one.steps for one in stats),
        simulated=sum(driver.clock.now for driver in drivers),
        wall=wall,
        records=tuple(drivers[0].backend.records),
        by_user={user: summarise([s for s in samples if s.user == user], load, objective) for user in users}
        if len(users) > 1
        else {},
    )
