"""The GPU benchmark from end to end, on a CPU with tiny shapes: every section, a failing one, and what is written."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

os.environ.setdefault("TRITON_INTERPRET", "1")  # before Triton is imported
pytest.importorskip("triton", reason="Triton is not installed: it exists for Linux only")

from bireme.backends.cuda.ops import TorchOps
from bireme.bench import gpu, gpu_check, gpu_rates
from bireme.bench.gpu_engine import requests
from bireme.bench.gpu_models import MODELS, block_weight, checkpoint, kind_of, loader
from bireme.bench.gpu_setting import Setting

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def test_every_section_gives_figures(tmp_path, capsys):
    path = tmp_path / "out.json"
    assert gpu.main(["--device", "cpu", "--tiny", "--one-process", "--json", str(path)]) == 0
    written, shown = json.loads(path.read_text()), capsys.readouterr().out
    assert {each["section"] for each in written["figures"]} == set(gpu.BUDGETS)
    assert all(each["value"] >= 0 and each["what"] in shown for each in written["figures"])
    assert "kernels: all as plain torch" in shown and "times transformers' tokens per second" in shown
    assert "these figures mean nothing" in shown
    assert "Llama-3.1-8B Q4_K_M, batch 1" in shown and "the aim on one H200 is 450" in shown
    assert written["machine"]["gpu"] == "cpu" and written["machine"]["packages"]["torch"]


def test_a_section_that_fails_loses_nothing_else(tmp_path, capsys, monkeypatch):
    def broken(setting):
        yield from gpu_rates.elementwise_rates(setting)
        raise RuntimeError("an illegal memory access")

    monkeypatch.setattr(gpu_check, "check", broken)
    path = tmp_path / "out.json"
    assert (
        gpu.main(["--device", "cpu", "--tiny", "--one-process", "--json", str(path), "--only", "check", "mixed"]) == 1
    )
    figures = json.loads(path.read_text())["figures"]
    problems = [each["problem"] for each in figures if "problem" in each]
    assert len(problems) == 1 and problems[0].startswith("RuntimeError: an illegal memory access (test_bench_gpu.py:")
    assert [each["section"] for each in figures if "value" in each][-1] == "mixed"
    assert "check: RuntimeError" in capsys.readouterr().out


def test_a_kernel_that_is_wrong_is_named(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(gpu_check, "attention_pairs", lambda setting: [])
    monkeypatch.setattr(gpu_check, "product_pairs", lambda setting: [])
    monkeypatch.setattr(gpu_check, "sampler_check", lambda setting: gpu_check.Row("check", "x", 0.0, "", note="ok"))
    monkeypatch.setattr(Setting, "ops", lambda setting: Wrong)
    written = ["--json", str(tmp_path / "out.json")]
    assert gpu.main(["--device", "cpu", "--tiny", "--one-process", "--only", "check", *written]) == 1
    assert "* kernels: WRONG: swiglu" in capsys.readouterr().out


class Wrong(TorchOps):
    def swiglu(self, gate_up):
        return super().swiglu(gate_up) * 1.001


def test_what_comes_late_is_left_out():
    options = gpu.options_of(["--device", "cpu", "--tiny"])
    found = list(gpu.run_here("rates", options, 0.0))
    assert len(found) == 2 and found[1] == {"section": "rates", "problem": "stopped at its budget of 0 s"}


def test_sections_run_in_processes_of_their_own(monkeypatch):
    """One that dies without a word, and one that never ends."""
    options = gpu.options_of(["--device", "cpu", "--tiny"])
    real = subprocess.Popen

    def instead(code):
        return lambda command, **how: real([sys.executable, "-c", code], **how)

    monkeypatch.setattr(subprocess, "Popen", instead('print(\'{"section": "host"}\', flush=True); exit(9)'))
    assert list(gpu.run_apart("host", options, 9.0)) == [
        {"section": "host"},
        {"section": "host", "problem": "its process ended with code 9"},
    ]
    monkeypatch.setattr(subprocess, "Popen", instead("import time; time.sleep(60)"))
    found = list(gpu.run_apart("host", options, 0.5 - gpu.GRACE))
    assert found == [{"section": "host", "problem": "its process ended with code -9, killed after its budget"}]


def test_the_budgets_are_under_eight_minutes():
    assert sum(budget + gpu.GRACE for budget in gpu.BUDGETS.values()) < 480


# models


def test_models_have_the_sizes_that_they_are_known_by():
    billions = {name: checkpoint(name, False).weight_bytes / 2e9 for name in MODELS}
    assert billions["Llama-3.1-8B"] == pytest.approx(8.03, abs=0.01)
    assert billions["Qwen3-8B"] == pytest.approx(8.19, abs=0.01)
    assert billions["Qwen3-0.6B"] == pytest.approx(0.596, abs=0.002)
    assert checkpoint("Llama-3.1-8B", True).weight_bytes == pytest.approx(4.91e9, rel=0.01), "as its GGUF file"


def test_half_of_the_layers_have_more_bits():
    config = MODELS["Llama-3.1-8B"]
    kinds = [kind_of(f"model.layers.{n}.mlp.down_proj.weight", config) for n in range(32)]
    assert kinds.count("Q6_K") == 16 and kinds[0] == kinds[3] == kinds[31] == "Q6_K" and kinds[4] == "Q4_K"
    assert kind_of("lm_head.weight", config) == "Q6_K" and kind_of("model.norm.weight", config) == "F32"


@pytest.mark.parametrize("kind", ["Q4_K", "Q6_K"])
def test_random_blocks_spread_as_weights_do(kind):
    values = block_weight("w", (300, 512), kind).dequantize()
    assert values.shape == (300, 512) and abs(values.mean()) < 0.2 * values.std()
    assert values.std() == pytest.approx(512**-0.5, rel=0.2)


@pytest.mark.parametrize("quantized", [False, True])
def test_random_weights_are_on_the_device_and_counted(quantized):
    source = checkpoint("tiny", quantized)
    made = loader(source, quantized, torch.float32, CPU)
    layer = made.linear("model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.k_proj")
    assert layer(torch.randn(130, 256)).std() == pytest.approx(1.0, rel=0.3)
    norm = made.norm("model.norm")
    assert norm.mean() == pytest.approx(1.0, abs=0.05) and norm.std() > 0.05
    assert made.nbytes > 0


def test_the_mixed_load_is_the_same_for_both():
    setting = Setting(CPU)
    load = requests(setting)
    assert load == requests(setting) and len(load) == 256
    assert min(len(prompt) for prompt, _ in load) >= 100 and max(out for _, out in load) <= 1024
