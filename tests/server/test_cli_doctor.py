"""``bireme doctor``: what is concluded from machines of all kinds, and a look at this one."""

from __future__ import annotations

import dataclasses
import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import scripted

from bireme.server.doctor.check import FAIL, OK, WARN, Finding, check
from bireme.server.doctor.fit import fits
from bireme.server.doctor.look import parse_gpus
from bireme.server.doctor.machine import Apple, Cpu, Folder, Gpu, Library, Machine, Port
from bireme.server.doctor.trial import TRIALS, Trial

GIB = 1 << 30
H100 = Gpu("NVIDIA H100", "570.1", 80 * GIB, 79 * GIB, 9.0)


def machine(**changes: Any) -> Machine:
    """A Linux machine with a CPU and all that it needs."""
    plain = Machine(
        version="1.0",
        system="Linux",
        arch="x86_64",
        python=(3, 12, 1),
        executable="/usr/bin/python3",
        libraries={"torch": Library("2.9"), "numba": Library("0.62"), "triton": Library(), "mlx": Library()},
        cpu=Cpu("EPYC", 8, frozenset({"avx2"}), "avx2"),
        memory_total=32 * GIB,
        memory_free=30 * GIB,
        chosen="cpu",
        problems={"mlx": "MLX is not installed", "cuda": "PyTorch sees no NVIDIA GPU", "cpu": None},
        folders=(Folder("models from the Hub", "/h", 99 * GIB), Folder("Bireme's own files", "/b", 99 * GIB)),
        port=Port("127.0.0.1", 8000),
        open_files=65536,
    )
    return dataclasses.replace(plain, **changes)


def gpu_machine(**changes: Any) -> Machine:
    libraries = {"torch": Library("2.9"), "triton": Library("3.5"), "numba": Library(), "mlx": Library()}
    base = machine(chosen="cuda", libraries=libraries, gpus=(H100,), torch_cuda="12.8")
    return dataclasses.replace(base, **changes)


def mac(**changes: Any) -> Machine:
    libraries = {"mlx": Library("0.32"), "torch": Library(), "triton": Library(), "numba": Library()}
    base = machine(system="Darwin", arch="arm64", chosen="mlx", libraries=libraries, cpu=Cpu("Apple M4", 10))
    return dataclasses.replace(base, **{"apple": Apple("Apple M4", 24 * GIB), **changes})


def finding(found: list[Finding], name: str, status: str) -> Finding:
    return next(one for one in found if (one.name, one.status) == (name, status))


@pytest.mark.parametrize("good", [machine(), gpu_machine(), mac()])
def test_good_machines_have_nothing_amiss(good: Machine) -> None:
    found = check(good)
    assert {one.status for one in found} == {OK}
    assert f"--device auto is {good.chosen}" in finding(found, "device", OK).text


def test_why_not_another_device_is_said() -> None:
    assert "not cuda: PyTorch sees no NVIDIA GPU" in finding(check(machine()), "device", OK).text


@pytest.mark.parametrize(
    "bad, name, status, text, fix",
    [
        (machine(python=(3, 14, 0)), "python", FAIL, "3.14.0", "Python 3.11 to 3.13"),
        (mac(apple=Apple("M4", None, True)), "python", FAIL, "Rosetta", "arm64"),
        (
            machine(libraries={"torch": Library("2.9"), "numba": Library()}),
            "device",
            FAIL,
            "needs numba",
            "bireme[cpu]",
        ),
        (machine(libraries={"numba": Library("0.6")}), "device", FAIL, "needs torch", "bireme[cpu]"),
        (machine(chosen=None, notes={"device": "boom"}), "device", FAIL, "boom", "install bireme"),
        (
            machine(libraries={"torch": Library("2.9", "it ended with signal 4"), "numba": Library("0.6")}),
            "torch",
            FAIL,
            "signal 4",
            "newer processor",
        ),
        (machine(gpus=(H100,)), "gpu", WARN, "built without CUDA", "bireme[cuda]"),
        (machine(gpus=(H100,), torch_cuda="13.0"), "gpu", WARN, "sees none", "update the driver"),
        (gpu_machine(gpus=(Gpu("K80", "470", GIB, GIB, 3.7),)), "gpu", WARN, "3.7", "--device cpu"),
        (gpu_machine(gpus=(Gpu("T4", "550", 15 * GIB, 15 * GIB, 7.5),)), "gpu", WARN, "8.0 and later", ""),
        (gpu_machine(gpus=(Gpu("H100", "570", 80 * GIB, GIB, 9.0),)), "gpu", WARN, "something else", "nvidia-smi"),
        (machine(cpu=Cpu("old", 2, frozenset(), "plain")), "cpu", WARN, "no AVX2", "virtual machine"),
        (machine(memory_free=GIB // 2), "memory", WARN, "512.0 MiB", "container"),
        (machine(folders=(Folder("Hub", "/h", 9 * GIB, "read-only"),)), "folder", WARN, "read-only", "HF_HUB_CACHE"),
        (machine(folders=(Folder("own", "/b", GIB),)), "folder", WARN, "1.00 GiB", "BIREME_CACHE"),
        (machine(port=Port("127.0.0.1", 8000, "port 8000 is taken")), "port", WARN, "taken", "--port"),
        (machine(open_files=256), "open files", WARN, "256", "ulimit -n"),
    ],
)
def test_problems_come_with_their_fix(bad: Machine, name: str, status: str, text: str, fix: str) -> None:
    one = finding(check(bad), name, status)
    assert text in one.text and fix in one.fix


def test_a_broken_library_that_is_not_needed_is_no_reason_not_to_serve() -> None:
    broken = machine(libraries={**machine().libraries, "mlx": Library("0.32", "ImportError: x")})
    found = check(broken)
    assert finding(found, "mlx", WARN) and FAIL not in {one.status for one in found}
    slow = machine(
        libraries={**machine().libraries, "mlx": Library("0.32")}, notes={"blas": "no OpenBLAS: apt install it"}
    )
    assert finding(check(slow), "mlx", WARN).fix == "apt install it"


def test_a_server_of_ours_on_the_port_is_no_problem() -> None:
    taken = machine(port=Port("127.0.0.1", 8000, "port 8000 is taken", "ok"))
    assert "a Bireme server is there (ok)" in finding(check(taken), "port", OK).text


def test_the_driver_s_list_of_gpus() -> None:
    text = "NVIDIA H100 PCIe, 570.86.15, 81559, 81000, 9.0\nTesla K40, 470.1, 11441, 11000, [N/A]\nnonsense\n"
    first, second = parse_gpus(text)
    assert first == Gpu("NVIDIA H100 PCIe", "570.86.15", 81559 << 20, 81000 << 20, 9.0)
    assert second.capability is None
    assert parse_gpus("") == ()


def test_fit_by_the_memory_of_the_device_that_is_chosen() -> None:
    model = str(scripted.SCRIPTED)
    assert fits(machine(), model).status == OK and "free memory" in fits(machine(), model).text
    assert "90% of what NVIDIA H100 has free" in fits(gpu_machine(), model).text
    assert "of what Metal recommends" in fits(mac(), model).text
    small = fits(machine(memory_free=1 << 10), model)
    assert small.status == FAIL and "too large" in small.text and "bireme plan" in small.fix
    assert fits(machine(), "no/such/file.gguf").status == FAIL


def test_a_library_that_crashes_takes_nothing_with_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "triton.py").write_text("import os; os.kill(os.getpid(), 4)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert Trial("triton").result() == ({}, "it ended with signal 4")
    (tmp_path / "triton.py").write_text("raise ImportError('libsomething.so is missing')")
    assert Trial("triton").result()[1] == "ImportError: libsomething.so is missing"
    assert set(TRIALS) == {"torch", "numba", "mlx", "triton", "device"}


def test_this_machine(tmp_path: Path) -> None:
    """The command itself: JSON, the real port, and the exit code that goes with the answer."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        command = [
            sys.executable,
            "-m",
            "bireme.server.cli",
            "doctor",
            str(scripted.SCRIPTED),
            "--json",
            "--port",
            port,
        ]
        result = subprocess.run(command, capture_output=True, text=True, timeout=200)
    found = json.loads(result.stdout)
    names = {one["name"]: one for one in found["findings"]}
    assert result.returncode == (0 if found["serves"] else 1)
    assert found["device"] in ("cpu", "cuda", "mlx") and names["model"]["status"] == "ok"
    assert names["port"]["status"] == "warning" and port in names["port"]["text"]
    assert sys.executable in names["python"]["text"]
