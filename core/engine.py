"""The loop: requests in, tokens out, with up to two steps in flight."""

from __future__ import annotations

import logging
import random
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from ..backends.base import Backend, Ticket
from .config import EngineConfig
from .delivery import Delivery
from .door import Door
from .grammar import Grammar
from .intake import Limits, make_group
from .invariants import find_problems, quarantine
from .plan import BuiltStep
from .request import (
    FinishReason,
    Request,
    RequestRejectedError,
    SequenceOutput,
)
from .scheduler import Scheduler
from .stats import EngineStats, UserCounts
from .watch import EngineView, StepWatch

log = logging.getLogger(__name__)

#: Of a step's time, how much the next waits for masks that are being made. A row that is left out loses a whole one.
_PATIENCE = 0.25
_IDLE_PATIENCE = 0.1  # seconds; with nothing else to do


class EngineDeadError(RuntimeError):
    """The backend or the engine itself failed: nothing more can be served.

    ``outputs`` ends every sequence that was running or waiting, with ``FinishReason.ERROR``; it is empty when raised
    again by later calls.
    """

    def __init__(self, message: str, outputs: list[SequenceOutput]) -> None:
        super().__init__(message)
        self.outputs = outputs


class _InFlight(NamedTuple):
    ticket: Ticket
    built: BuiltStep


class Engine:
    """Continuous batching over one backend. Single-threaded; every call returns quickly but ``step``, which waits for
    the device once ``backend.info.max_in_flight`` steps are submitted or nothing more can be scheduled.

    While the device runs step n the host schedules n + 1, with placeholders for the tokens of n. A sequence that turns
    out to have ended in n has wasted one token of n + 1 and nothing else: its blocks and its row are given away at
    once, since the device runs steps in order. Results are matched by sequence, never by row.

    ``check_every_step`` walks the whole block state after each step and raises ``InvariantError``: for tests.
    """

    def __init__(
        self,
        backend: Backend,
        config: EngineConfig,
        clock: Callable[[], float] = time.monotonic,
        *,
        check_every_step: bool = False,
    ) -> None:
        info = backend.info
        self.backend = backend
        self.config = config
        self.clock = clock
        self.max_model_len = min(info.max_model_len, config.max_model_len or info.max_model_len)
        self.limits = Limits(self.max_model_len, info.num_blocks * info.block_size, info.vocab_size, info.end_ids)
        self.scheduler = Scheduler(config, info.num_blocks, info.block_size, self.max_model_len, info.model_name, clock)
        self._door = Door(config, self.limits, self.scheduler)
        self._delivery = Delivery(self.scheduler, self._door)
        self._check = check_every_step
        self._in_flight: deque[_InFlight] = deque()
        self._order = 0
        self._rng = random.Random()
        self._started = self._last_step_time = self._waiting_since = clock()
        self._last_step_seconds = 0.0
        self._dead: str | None = None
        self._watch: StepWatch | None = None  # while somebody watches

    def review(self, request: Request, beside: int = 0, beside_own: int = 0) -> None:
        """Refuse what can't be queued now, with ``beside`` other requests on their way to the queue, ``beside_own`` of
        them the same user's.

        Raises as ``add`` does.
        """
        self._raise_if_dead()
        self._door.review(request, request.request_id in self._delivery.groups, beside, beside_own)

    def add(self, request: Request, grammar: Grammar | None = None) -> None:
        """Queue a request. ``grammar`` is what ``request.params.grammar`` was compiled to.

        Raises:
            RequestRejectedError: it can never be served; the message has the numbers.
            QueueFullError: ``max_queue`` requests wait already.
            EngineDeadError: the engine has failed.
        """
        self.review(request)
        if request.params.grammar is not None and grammar is None:
            raise RequestRejectedError("the request's grammar was not compiled, so it can't be followed", "no_grammar")
        if request.weight is not None:
            self.scheduler.fairness.set_weight(request.user, request.weight)
        account = self.scheduler.fairness.account(request.user)
        try:
            group = make_group(request, self.limits, account, self._order, self._rng, grammar)
        except RequestRejectedError:
            self.scheduler.counters.requests_rejected += 1
            raise
        if not self.scheduler.queue:
            self._waiting_since = self.clock()
        self._order += len(group.seqs)
        self._delivery.groups[request.request_id] = group
        group.arrived = request.arrival_time or self.clock()
        self.scheduler.counters.requests_added += 1
        self.scheduler.add(group.seqs[0])

    def abort(self, request_id: str, index: int | None = None) -> bool:
        """End a request, or its sequence ``index`` alone, whatever it is doing; its blocks are free when this returns.
        The next ``step`` hands out the sequences' last outputs. False when no such request or sequence is under way."""
        group = self._delivery.groups.get(request_id)
        if group is None:
            return False
        ended = [seq for seq in group.seqs if seq.finish_reason is None and index in (None, seq.index)]
        for seq in ended:
            self._delivery.end(seq, FinishReason.ABORT)
            if index is not None and seq is seq.leader and group.held:
                self.scheduler.release_siblings(seq)
        return bool(ended)

    def started(self, request_id: str) -> bool:
        """Whether a step has worked on the request yet; true after its end too."""
        group = self._delivery.groups.get(request_id)
        return group is None or group.cached_tokens is not None

    def step(self) -> list[SequenceOutput]:
        """Schedule and submit a step if there is room for one in flight; wait for the oldest if there isn't, or if
        there was nothing to schedule. Returns what has become known since the last call.

        Raises:
            EngineDeadError: the backend failed; its ``outputs`` end every sequence.
        """
        self._raise_if_dead()
        try:
            self._step()
        except Exception as error:
            raise self._die(error) from error
        if self._check:
            self.check()
        return self._delivery.hand_out()

    def has_work(self) -> bool:
        """Whether ``step`` has something to do or to hand out."""
        return bool(self._in_flight) or self._delivery.pending

    def close(self) -> None:
        """Drop everything and free the device. Safe to call twice."""
        self._dead = self._dead or "the engine is closed"
        self._in_flight.clear()
        self._delivery.close()
        self.backend.close()

    def check(self, *, repair: bool = False) -> list[str]:
        """Walk the whole block state. Raises ``InvariantError`` on the first fault, or, to ``repair``, logs the faults
        and takes the blocks concerned out of use."""
        problems = find_problems(self.scheduler)
        if problems:
            quarantine(self.scheduler, problems, raise_instead=not repair)
            room = self.scheduler.kv.pool.num_usable * self.scheduler.block_size
            self.limits = self._door.limits = replace(self.limits, pool_tokens=room)
        return [problem.text for problem in problems]

    def stats(self) -> EngineStats:
        """A snapshot of counters and occupancy."""
        scheduler, counters, pool = self.scheduler, self.scheduler.counters, self.scheduler.kv.pool
        running = scheduler.rows.num_running
        held = sum(len(group.held) for group in self._delivery.groups.values())
        quiet = self.clock() - max(self._last_step_time, self._waiting_since)
        return EngineStats(
            running=running,
            waiting=len(scheduler.queue) + held,
            users={
                account.user: UserCounts(account.running, account.waiting)
                for account in scheduler.fairness.accounts.values()
                if account.running or account.waiting
            },
            kv_blocks_total=pool.num_usable,
            kv_blocks_live=pool.num_live,
            kv_blocks_cached=pool.num_cached,
            kv_blocks_free=pool.num_free,
            kv_blocks_quarantined=len(pool.quarantined),
            block_size=scheduler.block_size,
            prompt_tokens=counters.prompt_tokens_cached + counters.prompt_tokens_computed,
            prompt_tokens_cached=counters.prompt_tokens_cached,
            prompt_tokens_computed=counters.prompt_tokens_computed,
            tokens_generated=counters.tokens_generated,
            preemptions=counters.preemptions,
            steps=counters.steps,
            requests_added=counters.requests_added,
            requests_rejected=counters.requests_rejected,
            finished=dict(counters.finished),
            in_flight=len(self._in_flight),
            last_step_time=self._last_step_time,
            last_step_seconds=self._last_step_seconds,
            stalled=bool(len(scheduler.queue)) and not running and quiet > self.config.watchdog_s,
            dead=self._dead is not None,
            requests_unattainable=counters.requests_unattainable,
        )

    def watch(self, on: bool) -> None:
        """Note steps for ``view`` from now on, or no more."""
        self._watch = (self._watch or StepWatch()) if on else None

    def view(self) -> EngineView:
        """What happened since the last view, and the blocks as they are. ``watch`` must be on."""
        assert self._watch is not None, "nobody watches"
        return self._watch.take(self.scheduler.rows, self.scheduler.kv.pool, self.clock())

    def _step(self) -> None:
        while self._in_flight and self._in_flight[0].ticket.done():
            self._collect()
        if self._delivery.masks.outstanding:
            self._delivery.take_masks(_PATIENCE * self._last_step_seconds)
        built = None
        if len(self._in_flight) < self.backend.info.max_in_flight:
            built = self.scheduler.schedule()
            self._delivery.end_out_of_room()
        if built is not None:
            if self._watch is not None:
                self._watch.submitted(built, self.scheduler.rows, self.clock())
            self._in_flight.append(_InFlight(self.backend.submit(built.batch), built))
            self.scheduler.commit(built)
            self.scheduler.counters.steps += 1
            self._last_step_time = self.clock()
        if self._in_flight and (built is None or len(self._in_flight) >= self.backend.info.max_in_flight):
            self._collect()
        elif built is None and not self._in_flight:
            self._delivery.take_masks(_IDLE_PATIENCE, idle=True)

    def _collect(self) -> None:
        """Wait for the oldest step and deal its tokens out."""
        ticket, built = self._in_flight.popleft()
        result = ticket.wait()
        self._last_step_seconds = result.elapsed
        if self._watch is not None:
            self._watch.done(built.batch.step_id, result.elapsed, self.clock())
        self.scheduler.cost.observe(built.batch.num_tokens, built.pairs, result.elapsed)
        self._delivery.deal(built, result)

    def _die(self, error: Exception) -> EngineDeadError:
        """Fail everything under way; hand out with it what was known already."""
        delivery = self._delivery
        log.error("the engine has failed; %d requests end with it", len(delivery.groups), exc_info=error)
        self._dead = f"the engine has failed: {type(error).__name__}: {error}"
        self._in_flight.clear()
        delivery.fail_all(self._dead)
        return EngineDeadError(self._dead, delivery.hand_out())

    def _raise_if_dead(self) -> None:
        if self._dead is not None:
            raise EngineDeadError(self._dead, [])
