"""The plan's numbers: known cases, every lever, and what the engine really allocates."""

from __future__ import annotations

import json
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFWriter
from published import DEEPSEEK_V3, QWEN3_8B
from tiny import hf_settings, tiny_config, write_folder
from typer.testing import CliRunner

from bireme.core.config import EngineConfig
from bireme.core.memory import kv_bytes, kv_bytes_per_token, plan_memory
from bireme.models.names import expected_shapes, expert_of
from bireme.planner.architectures import layer_kinds
from bireme.planner.chips import CHIPS, find_chip
from bireme.planner.devices import held_on
from bireme.planner.from_config import shape_from_config
from bireme.planner.open import open_shape
from bireme.planner.request import PlanRequest, make_plan, typed_shape
from bireme.planner.roofline import Roofline
from bireme.planner.shape import Weights
from bireme.planner.show import render
from bireme.planner.work import StepWork
from bireme.server.cli import app

CASES = json.loads((Path(__file__).parents[1] / "data/planner/cases.json").read_text(encoding="utf-8"))
TYPED = ["--layers", "36", "--kv-heads", "8", "--head-dim", "128", "--weights", "5GB", "--buffers", "1GB"]


def run(*arguments: str) -> Any:
    result = CliRunner().invoke(app, ["plan", *arguments, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_known_shapes(case: dict[str, Any], tmp_path: Path) -> None:
    """E09, through the function and through the command line."""
    shape = shape_from_config(case["config"], "config.json")
    assert kv_bytes(shape.layers, case["context"]) == case["kv_bytes"]
    path = tmp_path / "config.json"
    path.write_text(json.dumps(case["config"] | {"max_position_embeddings": 131072}), encoding="utf-8")
    found = run(str(path), "--concurrency", "3", "--context", str(case["context"]), "--kv-cache-dtype", "f16")
    assert found["kv_bytes"] == 3 * case["kv_bytes"]


def test_eight_billion_on_sixteen_gigabytes() -> None:
    found = run(*TYPED, "--memory", "16GB", "--concurrency", "20", "--context", "4096")
    assert found["kv_bytes_per_token"] == 144 * 1024
    assert found["kv_bytes"] == 81_920 * 144 * 1024 == 12_079_595_520
    assert found["total_bytes"] == 18_079_595_520
    assert found["over_bytes"] == 2_079_595_520
    levers = {lever["change"]: lever for lever in found["levers"]}
    assert levers["KV cache in int8"]["fits"]
    assert levers["16 conversations instead of 20"]["total_bytes"] == 6 * 10**9 + 16 * 4096 * 147_456 <= 16 * 10**9
    assert 6 * 10**9 + 17 * 4096 * 147_456 > 16 * 10**9
    fitting = run(*TYPED, "--memory", "16GB", "--kv-cache-dtype", "int8")
    assert fitting["over_bytes"] < 0 and fitting["fits"]


def test_ten_gibibytes_of_kv() -> None:
    shape = typed_shape(36, 8, 128, None, None)
    plan = make_plan(shape, PlanRequest(memory="10GiB"))
    assert [plan.conversations(context) for context in (4096, 2048, 16384)] == [17, 35, 4]
    assert plan.as_dict()["pool_tokens"] == 72_817


@pytest.mark.parametrize("dtype", ["f16", "q8_0", "q4_0"])
def test_quantised_kv_is_in_the_estimate(dtype: str) -> None:
    """E11: scales included."""
    plain, found = run(*TYPED), run(*TYPED, "--kv-cache-dtype", dtype)
    per_element = {"f16": 2, "q8_0": 34 / 32, "q4_0": 18 / 32}[dtype]
    assert found["kv_bytes"] == plain["kv_bytes"] * per_element / 2


def test_no_context_beyond_the_models_is_promised() -> None:
    shape = shape_from_config(QWEN3_8B, "config.json")
    found = make_plan(shape, PlanRequest(memory="141GB", concurrency=1, context=3000)).as_dict()
    assert found["longest_context"] == 40960
    assert list(found["conversations"]) == ["1024", "2048", "3000", "4096", "8192", "16384", "32768"]  # type: ignore[call-overload]


def test_the_longest_context_is_the_longest() -> None:
    plan = make_plan(typed_shape(62, 16, 128, 1024, 6), PlanRequest(memory="16GB", weights="9GB", concurrency=3))
    longest, room = plan.longest(), plan.room
    assert longest is not None and room is not None and longest > 1024
    assert plan.kv_of(3, longest) <= room < plan.kv_of(3, longest + 1)


def test_latent_attention_and_experts() -> None:
    """DeepSeek-V3: 70,272 bytes a token at 16 bits; 671 B parameters, 37 B of them at work (arXiv:2412.19437)."""
    shape = shape_from_config(DEEPSEEK_V3, "config.json")
    assert kv_bytes_per_token(shape.layers) == 61 * (512 + 64) * 2
    weights = shape.weights
    assert weights.parameters == pytest.approx(671e9, rel=0.01)
    assert weights.active_parameters == pytest.approx(37e9, rel=0.02)
    assert weights.total_bytes == weights.parameters
    roof = Roofline(CHIPS["h200"], shape, 70_272)
    assert roof.decode_tokens_per_second(1, 1) == pytest.approx(4800e9 / weights.active_bytes, rel=0.001)
    assert weights.read_bytes(1) == pytest.approx(weights.active_bytes)
    assert weights.read_bytes(100_000) < weights.total_bytes  # the embedding's rows are looked up


HYBRID = {
    "model_type": "qwen3_next",
    "num_hidden_layers": 48,
    "full_attention_interval": 4,
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_num_value_heads": 32,
    "linear_num_key_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}


def test_recurrent_layers_keep_a_state_and_no_tokens() -> None:
    shape = shape_from_config(HYBRID, "config.json")
    assert kv_bytes_per_token(shape.layers) == 12 * 2 * 2 * 256 * 2
    state = 4 * (32 * 128 * 128 + 3 * (2 * 16 * 128 + 32 * 128))
    assert kv_bytes(shape.layers, 1000) == 1000 * 24576 + 36 * state
    same = {**HYBRID, "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 12}
    assert shape_from_config(same, "config.json").layers == shape.layers


def test_a_bound_reads_no_more_than_layers_attend_to() -> None:
    """By hand, of steps that only read: windows end what is read, recurrent layers read and write their state, and
    whether a device keeps more than its windows changes nothing."""
    windowed = typed_shape(6, 8, 128, 1024, 6)
    chip, each = CHIPS["m4"], 2 * 8 * 128 * 2
    for shape in (windowed, held_on(windowed, "cuda")):
        found = Roofline(chip, shape, 6 * each).decode_tokens_per_second(10, 8192)
        assert found == pytest.approx(chip.bandwidth_gbs * 1e9 / (each * (5 * 1024 + 8192)))
    hybrid = replace(shape_from_config(HYBRID, "config.json"), weights=Weights(0, 0))
    state = sum(layer.state_bytes for layer in hybrid.layers)
    found = Roofline(chip, hybrid, 24576).decode_tokens_per_second(3, 1000)
    assert found == pytest.approx(chip.bandwidth_gbs * 1e9 / (24576 * 1000 + 2 * state))


def test_a_step_attends_to_its_windows() -> None:
    """Five tokens of a prompt, and a decode of a long context."""
    work = StepWork(np.array([1, 2, 3, 4, 5, 100]), np.array([5, 100]))
    assert (work.tokens, work.sequences, work.pairs(), work.held()) == (6, 2, 115, 105)
    assert (work.pairs(3), work.held(3)) == (1 + 2 + 3 + 3 + 3 + 3, 6)
    assert replace(work, times=4).pairs(3) == 60
    assert StepWork.prompt(5).pairs() == 15


def test_what_a_configuration_leaves_out() -> None:
    """As the model's own code has it, and nothing made up: heads of Gemma 3 4B, a Mistral's window, a context with its
    scaling or none, a head that is no embedding."""
    inner = {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34}
    inner |= {"sliding_window": 1024, "rope_scaling": {"factor": 8.0, "rope_type": "linear"}}
    gemma = shape_from_config({"model_type": "gemma3", "text_config": inner}, "config.json")
    assert kv_bytes_per_token(gemma.layers) == 34 * 2 * 4 * 256 * 2 and gemma.max_position == 131_072
    assert [layer.window for layer in gemma.layers[:7]] == [1024] * 5 + [None, 1024]
    assert gemma.weights.parameters == pytest.approx(3.88e9, rel=0.01)
    plain = {"num_hidden_layers": 2, "hidden_size": 256, "num_attention_heads": 4, "vocab_size": 1000}
    shapes = {kind: shape_from_config(plain | {"model_type": kind}, "config.json") for kind in ("llama", "mistral")}
    assert [shapes[kind].layers[0].window for kind in shapes] == [None, 4096]
    assert shapes["llama"].max_position is None
    tied = shape_from_config(plain | {"model_type": "llama", "tie_word_embeddings": True}, "config.json").weights
    assert shapes["llama"].weights.total_bytes == tied.total_bytes + 2 * 256 * 1000
    yarn = {"max_position_embeddings": 4096, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}}
    assert shape_from_config(plain | {"model_type": "qwen3"} | yarn, "config.json").max_position == 16384
    odd = {"max_position_embeddings": 4096, "rope_scaling": {"rope_type": "longrope"}}
    assert shape_from_config(plain | {"model_type": "phi3"} | odd, "config.json").max_position == 4096


def test_an_index_says_how_large_files_are_that_are_not_here(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_8B), encoding="utf-8")
    reckoned = open_shape(str(tmp_path)).weights
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 6_000_000_000}, "weight_map": {}}), encoding="utf-8")
    found = open_shape(str(tmp_path)).weights
    assert found.total_bytes == pytest.approx(6e9, abs=10) and found.parameters == reckoned.parameters
    assert found.active_bytes / found.total_bytes == pytest.approx(reckoned.active_bytes / reckoned.total_bytes)
    assert "6,000,000,000 bytes by model.safetensors.index.json" in found.source
    for said in ({"metadata": {}}, {"metadata": {"total_size": "many"}}, {}):
        index.write_text(json.dumps({"weight_map": {}} | said), encoding="utf-8")
        assert open_shape(str(tmp_path)).weights == reckoned


def test_experts_of_gpt_oss_are_two_weights_a_byte(tmp_path: Path) -> None:
    config = {"model_type": "gpt_oss", "num_hidden_layers": 1, "hidden_size": 64, "num_attention_heads": 2}
    config |= {"num_local_experts": 4, "num_experts_per_tok": 1, "vocab_size": 10, "intermediate_size": 64}
    module = "model.layers.0.mlp"
    tensors = {
        f"{module}.experts.down_proj_blocks": ("U8", np.zeros((4, 64, 2, 16), np.uint8)),
        f"{module}.experts.down_proj_scales": ("U8", np.zeros((4, 64, 2), np.uint8)),
        f"{module}.router.weight": ("BF16", np.zeros((4, 64), np.uint16)),
        "model.embed_tokens_per_layer.weight": ("BF16", np.zeros((10, 8), np.uint16)),
        "lm_head.weight": ("BF16", np.zeros((10, 64), np.uint16)),
    }
    weights = open_shape(str(write_folder(tmp_path / "m", config, tensors))).weights
    experts, rest = 4 * 64 * 64, 4 * 64 + 10 * 64
    assert weights.parameters == experts + rest + 80 and weights.active_parameters == experts // 4 + rest
    assert weights.total_bytes == experts // 2 + 4 * 64 * 2 + 2 * (rest + 80)
    assert weights.active_bytes == (experts // 2 + 4 * 64 * 2) // 4 + 2 * rest


def test_what_bireme_does_not_run_is_said(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(DEEPSEEK_V3), encoding="utf-8")
    (note,) = (note for note in run(str(config), "--device", "cuda")["notes"] if "deepseek_v3" in note)
    assert note == "Bireme has no deepseek_v3 yet: this is how cuda would hold it"
    assert not [note for note in run(str(config))["notes"] if "Bireme has no" in note]


def test_a_bad_key_is_named_with_its_file(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    shape = {"model_type": "gemma2", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4}
    for wrong, said in (
        ({"sliding_window": -4}, "sliding_window is -4; wanted: a whole number of tokens"),
        ({"layer_types": ["sliding_attention"] * 2}, "missing sliding_window"),
        ({"layer_types": ["full_attention"]}, "layer_types has 1 entries; num_hidden_layers is 2"),
    ):
        path.write_text(json.dumps(shape | wrong), encoding="utf-8")
        result = CliRunner().invoke(app, ["plan", str(path)])
        assert result.exit_code == 2 and result.stderr == f"bireme: {path}: {said}\n"


def test_windows_make_the_pool_a_matter_of_layers() -> None:
    for window, said in ((None, "tokens in all."), (1024, "tokens, where every layer keeps them all.")):
        assert said in render(
            make_plan(typed_shape(6, 8, 128, window, 6 if window else None), PlanRequest(memory="1MB"))
        )


def test_unknown_kinds_of_layers_are_refused() -> None:
    with pytest.raises(ValueError, match="layer_types names 'quantum'"):
        layer_kinds({"layer_types": ["quantum"]}, 1)
    with pytest.raises(ValueError, match="2 entries; num_hidden_layers is 3"):
        layer_kinds({"layer_types": ["full_attention"] * 2}, 3)


def write_moe(path: Path) -> None:
    """A mixture-of-experts GGUF file with a windowed layer pattern and per-layer kv heads, as no loader here runs."""
    writer = GGUFWriter(path, "gpt-oss")
    writer.add_block_count(4)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv([2, 2, 0, 2])
    writer.add_key_length(32)
    writer.add_value_length(32)
    writer.add_context_length(8192)
    writer.add_sliding_window(128)
    writer.add_expert_count(8)
    writer.add_expert_used_count(2)
    writer.add_tensor("token_embd.weight", np.zeros((100, 64), np.float16))
    writer.add_tensor("output.weight", np.zeros((100, 64), np.float16))
    for layer in range(4):
        writer.add_tensor(f"blk.{layer}.ffn_up_exps.weight", np.zeros((8, 64, 64), np.float16))
        writer.add_tensor(f"blk.{layer}.attn_q.weight", np.zeros((128, 64), np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_gguf_of_any_architecture(tmp_path: Path) -> None:
    path = tmp_path / "moe.gguf"
    write_moe(path)
    shape = open_shape(str(path))
    held = 2 * 2 * 32
    assert [(layer.elements, layer.window) for layer in shape.layers] == [
        (held, 128),
        (held, None),
        (0, None),
        (held, None),
    ]
    weights = shape.weights
    experts, rest = 4 * 8 * 64 * 64, 4 * 128 * 64 + 100 * 64
    assert weights.parameters == experts + rest + 100 * 64
    assert weights.total_bytes == 2 * weights.parameters
    assert weights.active_parameters == experts // 4 + rest
    assert weights.read_bytes(1) == weights.active_bytes == 2 * (experts // 4 + rest)


@pytest.mark.parametrize("precision", ["fast", "exact"])
def test_the_plan_is_what_the_engine_allocates(precision: str, demo_model: Path) -> None:
    """E12: weights, K and V, each within 5 percent, by the size of what the loaded model really holds."""
    pytest.importorskip("torch", reason="the CPU backend needs torch")
    from bireme.backends.options import BackendOptions
    from bireme.backends.select import load_backend
    from bireme.models.checkpoint import open_checkpoint

    device = "cpu" if precision == "fast" else "cpu-exact"
    plan = make_plan(open_shape(str(demo_model)), PlanRequest(concurrency=2, context=512, device=device))
    config = EngineConfig(max_num_seqs=2, max_model_len=512, kv_cache_memory=plan.kv_bytes)
    checkpoint = open_checkpoint(demo_model)
    backend: Any = load_backend("cpu", checkpoint, config, BackendOptions(cpu_precision=precision, threads=1))
    try:
        info, pool = backend.info, backend._ops.kv
        assert plan.weight_bytes == pytest.approx(info.weight_bytes, rel=0.05)
        assert plan.kv_bytes_per_token == info.kv_bytes_per_token
        assert info.num_blocks * info.block_size == 2 * 512
        tensors = [t for pair in zip(pool.keys, pool.values, strict=True) for t in pair]
        assert sum(t.numel() * t.element_size() for t in tensors) == pytest.approx(plan.kv_bytes, rel=0.05)
    finally:
        backend.close()
        checkpoint.close()


def test_windows_make_room_in_no_pool_of_ours(tmp_path: Path) -> None:
    """Gemma 3: what its layers need at least, and what a device's pool takes, by a pool that was made."""
    torch = pytest.importorskip("torch", reason="the CPU backend needs torch")
    from bireme.backends.cuda.kv import KVPool
    from bireme.models.hf_config import hf_config
    from bireme.models.settings import Settings

    config = {"model_type": "gemma3_text", "num_hidden_layers": 6, "hidden_size": 64, "num_attention_heads": 4}
    config |= {"num_key_value_heads": 1, "head_dim": 16, "intermediate_size": 64, "vocab_size": 99}
    config |= {"sliding_window": 128, "max_position_embeddings": 4096}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    least, taken = (run(str(path), "--concurrency", "2", "--context", "1024", "--device", d) for d in ("any", "cuda"))
    each = 2 * 16 * 2  # K and V of a token in one layer, in 16 bits
    assert least["kv_bytes"] == 2 * each * (5 * 128 + 1024)
    assert taken["kv_bytes"] == 2 * each * 6 * 1024
    model = hf_config(Settings(config, "config.json"), has_head=False)
    pool = KVPool(model, 2 * 1024 // 16, 16, torch.bfloat16, torch.device("cpu"))
    assert sum(array.nbytes for array in pool.arrays) == taken["kv_bytes"]
    assert "5 of 6 layers see a window only" in taken["notes"][0]


def test_plan_and_pool_agree() -> None:
    """The same room holds as many tokens by the plan as the engine's pool gets, up to a block."""
    plan = make_plan(typed_shape(36, 8, 128, None, None), PlanRequest(memory="16GB", weights="5GB", buffers="1GB"))
    pool = plan_memory(
        weight_bytes=plan.weight_bytes,
        buffer_bytes=plan.buffer_bytes,
        kv_bytes_per_token=plan.kv_bytes_per_token,
        block_size=16,
        available_bytes=16 * 10**9,
    )
    tokens = plan.as_dict()["pool_tokens"]
    assert isinstance(tokens, int) and 0 <= tokens - pool.tokens < 16
    assert pool.conversations == plan.conversations(4096)


def test_text_shows_the_bar_the_levers_and_the_speed(demo_model: Path) -> None:
    plan = make_plan(open_shape(str(demo_model)), PlanRequest(memory="1GB"))
    text = render(plan, find_chip("M4 Max"))
    assert "OVER by" in text and "m4-max" in text and "conversations instead of 20" in text
    assert max(map(len, text.splitlines())) <= 120
    assert "fits" in render(make_plan(open_shape(str(demo_model)), PlanRequest(memory="64GB")))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name a MODEL, or give --layers"),
        (["--layers", "3"], "--kv-heads is missing"),
        (["--kv-heads", "3"], "--layers is missing"),
        (["model.gguf", "--kv-heads", "3"], "one of the two"),
        ([*TYPED, "--buffers", "few"], "buffers: 'few' is not a size"),
        (["nowhere.gguf"], "no file or folder here"),
        ([*TYPED, "--kv-cache-dtype", "q3"], "kv-cache-dtype is 'q3'"),
        ([*TYPED, "--device", "tpu"], "device is 'tpu'"),
        ([*TYPED, "--memory", "lots"], "'lots' is not a size"),
        ([*TYPED, "--chip", "abacus"], "no chip 'abacus'"),
        ([*TYPED, "--memory", "16"], "'16' is 16 bytes; write the unit too"),
        ([*TYPED, "--global-every", "6"], "--global-every is 6 and no layer slides"),
        (["--layers", "99999999", "--kv-heads", "8", "--head-dim", "128"], "--layers is 99999999; it must be 1024"),
    ],
)
def test_bad_input_is_named(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["plan", *arguments])
    assert result.exit_code == 2
    assert message in result.stderr


def test_batches_touch_more_experts() -> None:
    weights = shape_from_config(DEEPSEEK_V3, "config.json").weights
    sizes = [weights.read_bytes(n) for n in (1, 8, 64, 512)]
    assert sizes == sorted(sizes)
    share = 1 - (1 - 8 / 256) ** 64
    assert sizes[2] == pytest.approx(sizes[0] + weights.expert_bytes * (share - 8 / 256))


@pytest.mark.parametrize("architecture", ["mixtral", "qwen3_moe"])
def test_a_configuration_is_reckoned_as_its_files_are(architecture: str) -> None:
    """Layers without experts too; norms and routers, which are left out, are a hundredth here."""
    model = tiny_config(architecture)
    assert model.moe is not None
    weights = shape_from_config(hf_settings(model), "config.json").weights
    sizes = {name: prod(shape) for name, shape in expected_shapes(model).items()}
    routed = sum(size for name, size in sizes.items() if expert_of(name) is not None)
    assert weights.parameters == pytest.approx(sum(sizes.values()), rel=0.02)
    share = model.moe.top_k / model.moe.num_experts
    idle = routed * (1 - share) + sizes["model.embed_tokens.weight"]
    assert weights.active_parameters == pytest.approx(sum(sizes.values()) - idle, rel=0.02)
    assert weights.expert_bytes == 2 * routed
    assert weights.read_bytes(1) == weights.active_bytes < weights.read_bytes(3) < weights.total_bytes
