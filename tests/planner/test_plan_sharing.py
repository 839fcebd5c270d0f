"""Plans for several devices that share a model: what each holds, beside what each rank's checkpoint really has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from published import DEEPSEEK_V3, QWEN3_8B
from tiny import as_f32, hf_settings, random_weights, tiny_config, write_folder
from typer.testing import CliRunner

from bireme.backends.cuda.tensor_parallel.checkpoint import RankCheckpoint
from bireme.backends.cuda.tensor_parallel.shares import Shares
from bireme.core.memory import kv_bytes_per_token
from bireme.models.checkpoint import open_checkpoint
from bireme.planner.chips import CHIPS
from bireme.planner.from_config import shape_from_config
from bireme.planner.open import open_shape
from bireme.planner.request import PlanRequest, make_plan
from bireme.planner.roofline import SUM_SECONDS, Roofline
from bireme.planner.tensor_parallel import share_of
from bireme.planner.work import StepWork
from bireme.server.cli import app


@pytest.mark.parametrize("size", [3, 9])
def test_a_device_holds_what_its_rank_is_given(size: int, demo_model: Path) -> None:
    """The demo model has 9 heads and 3 key-value heads, which nine devices have to repeat."""
    checkpoint = open_checkpoint(demo_model)
    try:
        rank = RankCheckpoint(checkpoint, Shares.of(checkpoint, size), 0)
        share = share_of(open_shape(str(demo_model)), size)
        assert share.weights.total_bytes == pytest.approx(rank.weight_bytes, rel=0.05)
        assert kv_bytes_per_token(share.layers) == kv_bytes_per_token(rank.config)
        assert share.config is not None and share.config.num_heads == rank.config.num_heads
    finally:
        checkpoint.close()


def test_key_value_heads_fewer_than_devices_are_repeated() -> None:
    """Eight of them: two devices hold four each, sixteen hold one each, which is not a sixteenth."""
    whole = shape_from_config(QWEN3_8B, "config.json")
    two, sixteen = (share_of(whole, size) for size in (2, 16))
    assert kv_bytes_per_token(two.layers) * 2 == kv_bytes_per_token(whole.layers) == 144 * 1024
    assert kv_bytes_per_token(sixteen.layers) * 8 == 144 * 1024
    assert two.weights.total_bytes == pytest.approx(whole.weights.total_bytes / 2, rel=1e-3)
    repeated = 36 * 2 * 4096 * 128 * 2  # bytes of one head's keys and values, of which each would have half
    assert sixteen.weights.total_bytes == pytest.approx(whole.weights.total_bytes / 16 + repeated / 2, rel=1e-3)
    assert share_of(whole, 1) is whole


@pytest.mark.parametrize("architecture", ["qwen3_moe", "mixtral", "llama"])
@pytest.mark.parametrize("size", [2, 4])
def test_experts_are_shared_and_routers_are_not(architecture: str, size: int, tmp_path: Path) -> None:
    """To the byte, of dense files: what the plan says and what a rank is given."""
    config = tiny_config(architecture)
    folder = write_folder(tmp_path / "m", hf_settings(config), as_f32(random_weights(config)))
    checkpoint = open_checkpoint(folder)
    rank = RankCheckpoint(checkpoint, Shares.of(checkpoint, size), 0)
    assert share_of(open_shape(str(folder)), size).weights.total_bytes == rank.weight_bytes
    checkpoint.close()


def test_a_latent_lies_whole_on_every_device() -> None:
    """DeepSeek-V3 names no head_dim, and none is needed to know that its heads share one latent."""
    whole = shape_from_config(DEEPSEEK_V3, "config.json")
    eight = share_of(whole, 8)
    assert kv_bytes_per_token(eight.layers) == kv_bytes_per_token(whole.layers) == 61 * (512 + 64) * 2
    assert "the latent of MLA lies whole on every device" in eight.notes


def test_two_sums_a_layer_cost_time() -> None:
    """By hand: 36 layers, two sums each, half of twice 4,096 values of 16 bits over NVLink."""
    share = share_of(shape_from_config(QWEN3_8B, "config.json"), 2)
    one, two = (Roofline(CHIPS["h100"], share, 73_728, devices=devices) for devices in (1, 2))
    sums = 72 * (SUM_SECONDS + 2 * 0.5 * 2 * 4096 / 450e9)
    assert two.seconds(StepWork.prompt(1)) - one.seconds(StepWork.prompt(1)) == pytest.approx(sums)
    with pytest.raises(ValueError, match="m4-max can't share"):
        Roofline(CHIPS["m4-max"], share, 73_728, devices=2)


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["plan", *arguments])


def test_the_command_says_whose_sizes_they_are(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(QWEN3_8B), encoding="utf-8")
    text = run(str(config), "--tensor-parallel", "2", "--chip", "rtx-4090").output
    assert "2 devices share it; all sizes are those of one of them." in text and "of 24.0 GB" in text
    assert "8.19 B parameters" in text and "links between devices" in text
    found = json.loads(run(str(config), "--tensor-parallel", "2", "--device", "cuda", "--json").output)
    assert found["tensor_parallel"] == 2 and found["kv_bytes_per_token"] == 72 * 1024
    assert {"h100", "rtx-4090"} < {row["chip"] for row in found["speed_at_most"]}
    assert not {"m4-max"} & {row["chip"] for row in found["speed_at_most"]}


TYPED = ["--layers", "36", "--kv-heads", "8", "--head-dim", "128"]


def test_typed_shapes_are_shared_too() -> None:
    found = json.loads(run(*TYPED, "--weights", "5GB", "--buffers", "1GB", "--tensor-parallel", "4", "--json").output)
    assert (found["weight_bytes"], found["buffer_bytes"]) == (1_250_000_000, 1_000_000_000)
    assert found["kv_bytes_per_token"] == 36 * 1024
    result = run(*TYPED, "--tensor-parallel", "3")
    assert result.exit_code == 2 and "8 key-value heads can neither be shared nor repeated" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tensor-parallel", "3"], "32 attention heads, which 3 devices can't share evenly; it can be 1, 2, 4, 8"),
        (["--tensor-parallel", "2", "--device", "mlx"], "mlx shares no model; any, cuda, cpu-exact do"),
        (["--tensor-parallel", "2", "--chip", "m4"], "m4 can't share a model with others"),
        (["--device", "cuda", "--chip", "m4"], "chip m4 is none that cuda runs on"),
        (["--device", "cpu", "--chip", "h100"], "chip h100 is none that cpu runs on"),
    ],
)
def test_what_cannot_be_shared_is_named(arguments: list[str], message: str, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(QWEN3_8B), encoding="utf-8")
    result = run(str(config), *arguments)
    assert result.exit_code == 2 and message in result.stderr


def test_weights_that_nobody_named_are_said_to_be_missing() -> None:
    text = run(*TYPED, "--memory", "16GB").output
    assert text.count("not given and not counted") == 2 and "tok/s" not in text


def test_levers_are_those_of_the_device() -> None:
    shape = shape_from_config(QWEN3_8B, "config.json")
    any_, cuda = (make_plan(shape, PlanRequest(memory="16GB", device=device)).levers() for device in ("any", "cuda"))
    assert "KV cache in q4_0 (llama.cpp)" in {lever.change for lever in any_}
    assert not [lever for lever in cuda if "q4_0" in lever.change]


def test_a_hub_that_cannot_be_reached_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    result = run("nobody/nothing")
    assert result.exit_code == 1 and "the Hub can't be reached" in result.stderr
    assert result.stderr.count("\n") == 1
