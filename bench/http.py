"""What HTTP costs: ``python -m bireme.bench.http``.

Runs the server over a device that computes nothing and gives text tokens at once, or every ``--step-ms``, and streams
to many clients that only count events. Tokens per second depend on how the processes share the cores; CPU microseconds
per token do not, so compare those.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from ..backends.base import Ticket
from ..core.config import EngineConfig
from ..core.engine import Engine
from ..core.step import StepBatch, StepResult
from ..models.hub import resolve
from ..models.weight import Checkpoint
from ..server.settings import EngineSpec, ServerSettings
from .host import Answered, InstantBackend
from .servers import PYTHON, Server, free_port, start

#: Tells the engine process its pace: seconds per step and per token.
PACE = "BIREME_BENCH_PACE_S"
_FIRST, _SPREAD = 1000, 8000  # ids of ordinary words in any vocabulary large enough
_BLOCKS, _BLOCK_SIZE = 1 << 16, 16


@dataclass(frozen=True, slots=True)
class PacedTicket:
    """A step that takes real time and no work."""

    result: StepResult
    due: float

    def done(self) -> bool:
        return time.monotonic() >= self.due

    def wait(self) -> StepResult:
        time.sleep(max(0.0, self.due - time.monotonic()))
        return self.result


class PacedBackend(InstantBackend):
    """Gives words; a step takes ``per_step`` seconds and ``per_token`` for each of its tokens."""

    def __init__(self, vocab_size: int, per_step: float, per_token: float) -> None:
        super().__init__(_BLOCKS, _BLOCK_SIZE, vocab_size)
        self._per_step, self._per_token = per_step, per_token
        self._due = time.monotonic()

    def submit(self, batch: StepBatch) -> Ticket:
        seconds = self._per_step + self._per_token * batch.num_tokens
        self._due = max(self._due, time.monotonic()) + seconds
        count = int(np.count_nonzero(batch.samples))
        tokens = (_FIRST + (np.arange(count) * 13 + batch.step_id) % _SPREAD).astype(np.int32)
        result = StepResult(batch.step_id, tokens, np.zeros(count, np.bool_), None, seconds or 1e-4)
        return PacedTicket(result, self._due) if seconds else Answered(result)


def load_free(spec: EngineSpec, checkpoint: Checkpoint, progress: Callable[[int, int], None]) -> Engine:
    """The loader that the engine process is told to use."""
    vocab_size = checkpoint.config.vocab_size
    if vocab_size < _FIRST + _SPREAD:
        raise ValueError(f"the model has {vocab_size} tokens; this benchmark needs {_FIRST + _SPREAD}")
    per_step, per_token = map(float, os.environ.get(PACE, "0 0").split())
    return Engine(PacedBackend(vocab_size, per_step, per_token), spec.config)


def serve(model: str, port: int) -> None:
    """The server under test."""
    from ..server.listen import bind
    from ..server.run import serve as run

    caches = os.environ.get(PACE, "").endswith(" 0")  # where prompts cost time, they cost it every time
    config = EngineConfig(max_num_seqs=1024, enable_prefix_caching=caches)
    spec = EngineSpec(model, "sim", config, loader="bireme.bench.http:load_free")
    settings = ServerSettings(spec, served_model_names=("model",), log_level="warning")
    if failure := run(settings, bind("127.0.0.1", port)):
        sys.exit(str(failure))


class StreamCounter(asyncio.Protocol):
    """One client: sends a request and counts the events of its stream."""

    def __init__(self, request: bytes) -> None:
        self.events = 0
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._request = request
        self._transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self.events += data.count(b"data: ")
        if b"[DONE]" in data and self._transport is not None:
            self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


@dataclass(frozen=True, slots=True)
class Cost:
    """One run. CPU times are microseconds per token."""

    streams: int
    tokens: int
    events: int
    seconds: float
    http_us: float
    engine_us: float


def measure(server: Server, streams: int, tokens: int) -> Cost:
    """``streams`` clients at once, ``tokens`` each."""
    processes = [psutil.Process(server.process.pid), *psutil.Process(server.process.pid).children()]
    before, began = [_cpu_seconds(one) for one in processes], time.perf_counter()
    events = asyncio.run(_stream_all(server, streams, tokens))
    seconds = time.perf_counter() - began
    used = [(_cpu_seconds(one) - was) * 1e6 / (streams * tokens) for one, was in zip(processes, before, strict=True)]
    # Of a stream's events, three bring no token: the role, the finish reason and DONE.
    return Cost(streams, streams * tokens, events - 3 * streams, seconds, used[0], used[1])


async def _stream_all(server: Server, streams: int, tokens: int) -> int:
    port = int(server.target.url.rsplit(":", 1)[1].partition("/")[0])
    body = json.dumps(
        {
            "messages": [{"role": "user", "content": "Tell me a story."}],
            "max_tokens": tokens,
            "stream": True,
            "ignore_eos": True,
        }
    ).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nContent-Length: {len(body)}\r\n\r\n"
    loop = asyncio.get_running_loop()
    clients = []
    for _ in range(streams):
        _, client = await loop.create_connection(lambda: StreamCounter(head.encode() + body), "127.0.0.1", port)
        clients.append(client)
    await asyncio.gather(*(client.ended for client in clients))
    return sum(client.events for client in clients)


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def start_paced(model: Path, per_step: float = 0, per_token: float = 0) -> Server:
    """The server over a device that takes so many seconds for a step and for each of its tokens."""
    port = free_port()
    os.environ[PACE] = f"{per_step:g} {per_token:g}"
    return start("bireme", [*PYTHON, "-m", "bireme.bench.http", "--model", str(model), "--serve", str(port)], port)


def run(model: Path, streams: Sequence[int], tokens: int, step_ms: float) -> list[Cost]:
    """Start a server, warm it, measure at each number of streams."""
    server = start_paced(model, step_ms / 1000)
    try:
        measure(server, 8, 16)
        return [measure(server, count, tokens) for count in streams]
    finally:
        server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bireme.bench.http", description=__doc__)
    parser.add_argument("--model", default="demo", help="whose tokenizer to use")
    parser.add_argument("--streams", type=int, nargs="+", default=[64, 256], help="clients at once")
    parser.add_argument("--tokens", type=int, default=256, help="tokens per stream")
    parser.add_argument("--step-ms", type=float, default=0.0, help="least time of a step; 0: as fast as the host goes")
    parser.add_argument("--serve", type=int, metavar="PORT", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve is not None:
        return serve(args.model, args.serve)
    print(f"{args.tokens} tokens per stream, a step every {args.step_ms:g} ms at the soonest")
    print(f"{'streams':>8} {'tokens/s':>10} {'tokens/event':>13} {'HTTP us/token':>14} {'engine us/token':>16}")
    for cost in run(resolve(args.model), args.streams, args.tokens, args.step_ms):
        rate, merged = cost.tokens / cost.seconds, cost.tokens / max(1, cost.events)
        print(f"{cost.streams:>8} {rate:>10,.0f} {merged:>13.2f} {cost.http_us:>14.1f} {cost.engine_us:>16.1f}")


if __name__ == "__main__":
    main()
