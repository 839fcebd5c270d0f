"""llama.cpp's server in a process of its own, set up for many users: ``python -m bireme.bench.llama_server MODEL``."""

from __future__ import annotations

import argparse
import signal
import threading
from typing import Any


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--parallel", type=int, required=True, help="slots")
    parser.add_argument("--context", type=int, required=True, help="tokens per slot")
    asked = parser.parse_args()
    import xllamacpp

    params: Any = xllamacpp.CommonParams()
    params.model.path = asked.model
    params.port = asked.port
    params.n_parallel = asked.parallel
    params.n_ctx = asked.context * asked.parallel
    params.cpuparams.n_threads = asked.threads
    params.cpuparams_batch.n_threads = asked.threads
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: ended.set())
    signal.signal(signal.SIGINT, lambda number, frame: ended.set())
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    ended.wait()


if __name__ == "__main__":
    main()
