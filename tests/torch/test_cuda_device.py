"""What ``CudaDevice`` asks of ``torch.cuda``, and in which order, over a stand-in that writes it down."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from bireme.backends.cuda import device as module
from bireme.backends.cuda.device import CudaDevice, Device, device_for

GPU = torch.device("cuda", 0)


class FakeCuda:
    """Streams, events and graphs of which only the names are real."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.allocated, self.reserved, self.peak = 100, 150, 700
        self.stream_name = "main"
        cuda, calls = self, self.calls

        class Stream:
            def __init__(self, device=None):
                self.name = "results"

            def wait_stream(self, other):
                calls.append(f"{self.name} waits for {other.name}")

        class Event:
            def __init__(self, enable_timing=False):
                self.reached = False

            def record(self, stream=None):
                calls.append(f"event in {stream.name if stream else cuda.stream_name}")

            def query(self):
                return self.reached

            def synchronize(self):
                self.reached = True

            def elapsed_time(self, other):
                return 2500.0

        class CUDAGraph:
            def replay(self):
                calls.append("replay")

        self.Stream, self.Event, self.CUDAGraph = Stream, Event, CUDAGraph

    def current_stream(self, device):
        return SimpleNamespace(name=self.stream_name)

    @contextmanager
    def stream(self, stream):
        before, self.stream_name = self.stream_name, stream.name
        yield
        self.stream_name = before

    def graph_pool_handle(self):
        self.calls.append("pool")
        return (1, 0)

    @contextmanager
    def graph(self, graph, pool, capture_error_mode):
        self.calls.append(f"capture into {pool}, {capture_error_mode}")
        yield
        self.reserved += 40

    def mem_get_info(self, device):
        return 1000, 4000

    def memory_reserved(self, device):
        return self.reserved

    def memory_allocated(self, device):
        return self.allocated

    def max_memory_allocated(self, device):
        return self.peak

    def reset_peak_memory_stats(self, device):
        self.calls.append("peak reset")

    def synchronize(self, device):
        self.calls.append("synchronize")

    def empty_cache(self):
        self.calls.append("cache emptied")


@pytest.fixture
def cuda(monkeypatch):
    fake = FakeCuda()

    def empty(size, dtype, pin_memory):
        assert pin_memory, "a copy to or from other memory waits for the device"
        return torch.empty(size, dtype=dtype)

    stand_in = SimpleNamespace(cuda=fake, empty=empty, uint8=torch.uint8, device=torch.device, Tensor=torch.Tensor)
    monkeypatch.setattr(module, "torch", stand_in)
    monkeypatch.setattr(
        torch.Tensor, "record_stream", lambda self, stream: fake.calls.append(f"kept for {stream.name}")
    )
    return fake


def test_results_are_fetched_beside_the_steps(cuda):
    device = CudaDevice(GPU)
    fetch = device.fetch([torch.arange(3), torch.ones(2)])
    assert cuda.calls == ["results waits for main", "kept for results", "kept for results", "event in results"]
    assert not fetch.done()
    tokens, ones = fetch.wait()
    assert fetch.done() and tokens.tolist() == [0, 1, 2] and ones.tolist() == [1, 1]


def test_a_mark_lies_in_the_stream_of_steps(cuda):
    mark = CudaDevice(GPU).mark()
    assert cuda.calls == ["event in main"] and not mark.reached()
    mark.wait()
    assert mark.reached()


def test_a_clock_lies_between_two_events(cuda):
    clock = CudaDevice(GPU).clock()
    cuda.calls.append("work")
    clock.stop()
    assert cuda.calls == ["event in main", "work", "event in main"]
    assert not clock.passed() and clock.elapsed() == 2.5 and clock.passed()


def test_graphs_share_one_pool_and_are_counted(cuda):
    device, ran = CudaDevice(GPU), []

    def work():
        ran.append(1)
        return (torch.ones(1),)

    graphs = [device.capture(work) for _ in range(2)]
    assert cuda.calls == ["pool", *["capture into (1, 0), thread_local"] * 2] and len(ran) == 2
    assert device.graph_bytes == 80
    graphs[0].replay()
    assert cuda.calls[-1] == "replay" and graphs[0].outputs[0].tolist() == [1]


def test_memory(cuda):
    device = CudaDevice(GPU)
    assert device.free_bytes() == 1000 + 50, "what the allocator keeps unused can be had too"
    assert device.total_bytes() == 4000
    assert device.peak_bytes(lambda: cuda.calls.append("work")) == 600
    assert cuda.calls == ["synchronize", "peak reset", "work", "synchronize"]
    assert device.peak_bytes(lambda: setattr(cuda, "allocated", 250)) == 450, "what is left held counts where it lies"
    device.release()
    assert cuda.calls[-1] == "cache emptied" and device.pinned(5).shape == (5,)


def test_each_kind_of_device_has_its_door(cuda):
    assert type(device_for(GPU)) is CudaDevice
    cpu = device_for(torch.device("cpu"))
    assert type(cpu) is Device and not cpu.asynchronous and not cpu.captures
    with pytest.raises(NotImplementedError, match="cpu records no graphs"):
        cpu.capture(lambda: ())
    assert cpu.mark().reached() and cpu.graph_bytes == 0 and cpu.free_bytes() > 0
