"""What a device makes of each type of tensor: the plan's bytes beside those that the backend itself takes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny import as_f32, hf_settings, random_weights, tiny_config, write_folder, write_gguf

from bireme.backends.uses import KV_CACHE_DTYPES
from bireme.core.config import EngineConfig
from bireme.core.memory import buffer_bytes, kv_bytes_per_token, kv_element_bytes
from bireme.models.checkpoint import open_checkpoint
from bireme.models.config import MoeConfig
from bireme.models.ggml_types import BY_NAME
from bireme.models.moe import ROUTER
from bireme.models.names import expected_shapes
from bireme.models.weight import Checkpoint, Weight
from bireme.planner.devices import FORMS, held_bytes, held_on, work_bytes
from bireme.planner.from_config import shape_from_config
from bireme.planner.open import open_shape
from bireme.planner.request import PlanRequest, make_plan
from bireme.planner.shape import Part, sum_weights

ROWS, COLUMNS = 64, 512
KINDS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS")


def stored(kind: str) -> tuple[Weight, Part]:
    """A matrix of zeros in ``kind``, and what a plan knows of it."""
    form = BY_NAME[kind]
    data = np.zeros((ROWS, COLUMNS // form.block * form.size), np.uint8)
    return Weight("w", (ROWS, COLUMNS), kind, data), Part(kind, ROWS * COLUMNS, data.nbytes)


@pytest.mark.parametrize("kind", KINDS)
def test_a_matrix_takes_on_the_cpu_what_the_plan_says(kind: str) -> None:
    pytest.importorskip("torch", reason="the CPU backend needs torch")
    from bireme.backends.cpu.qpack import pack

    weight, part = stored(kind)
    assert pack(weight).tiles.nbytes == held_bytes(part, "cpu")


def test_a_dense_matrix_takes_nine_bits_on_the_cpu() -> None:
    pytest.importorskip("torch", reason="the CPU backend needs torch")
    from bireme.backends.cpu.qpack import pack

    values = np.ones((ROWS, COLUMNS), np.float16)
    part = Part("F16", values.size, values.nbytes)
    assert pack(Weight("w", values.shape, "F16", values)).tiles.nbytes == held_bytes(part, "cpu")
    assert held_bytes(replace(part, role="tied"), "cpu") == held_bytes(part, "cpu") + values.nbytes


@pytest.mark.parametrize("kind", [*KINDS, "MXFP4"])
def test_planes_take_what_the_plan_says(kind: str) -> None:
    torch = pytest.importorskip("torch", reason="planes are torch tensors")
    from bireme.backends.cuda.planes import planes

    weight, part = stored(kind)
    assert planes(weight, torch.device("cpu")).nbytes == pytest.approx(held_bytes(part, "cuda"), rel=0.001)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "MXFP4"])
def test_mlx_takes_what_the_plan_says(kind: str) -> None:
    mx = pytest.importorskip("mlx.core", reason="needs mlx")
    from bireme.backends.mlx.repack import REPACKED

    _, part = stored(kind)
    packing = REPACKED[kind] if kind != "MXFP4" else None
    bits = 4.25 if packing is None else packing.bits + 2 * 8 * mx.float16.size / packing.group_size
    assert held_bytes(part, "mlx") == part.elements * bits / 8


HELD = [
    ("cpu", "cpu", "auto", {}),
    ("cpu", "cpu", "float32", {}),
    ("cpu", "cpu", "int8", {}),
    ("mlx-linux", "mlx", "int8", {"mlx_weights": "dense", "mlx_dtype": "float32"}),
]


@pytest.mark.parametrize(("planned", "device", "kv", "options"), HELD, ids=[row[0] for row in HELD])
def test_the_plan_is_what_each_backend_allocates(
    planned: str, device: str, kv: str, options: dict[str, Any], demo_model: Path
) -> None:
    """E12: weights and a token's K and V of the demo model, each within 5 percent of what the backend says it holds."""
    pytest.importorskip("mlx.core" if device == "mlx" else "torch", reason=f"needs {device}'s library")
    from bireme.backends.options import BackendOptions
    from bireme.backends.select import load_backend

    asked = PlanRequest(concurrency=2, context=512, device=planned, kv_cache_dtype=None if kv == "auto" else kv)
    plan = make_plan(open_shape(str(demo_model)), asked)
    engine = EngineConfig(max_num_seqs=2, max_model_len=512, kv_cache_memory=plan.kv_bytes, kv_cache_dtype=kv)
    checkpoint = open_checkpoint(demo_model)
    backend = load_backend(device, checkpoint, engine, BackendOptions(threads=1, **options))
    try:
        info = backend.info
        assert plan.weight_bytes == pytest.approx(info.weight_bytes, rel=0.05)
        assert plan.kv_bytes_per_token == info.kv_bytes_per_token
        assert info.num_blocks * info.block_size == 2 * 512
    finally:
        backend.close()
        checkpoint.close()


def check_cuda_loader(path: Path, concurrency: int, context: int) -> None:
    """Holds a plan to the loader that a GPU's weights go through, its tensors kept in main memory."""
    torch = pytest.importorskip("torch", reason="needs torch")
    pytest.importorskip("triton", reason="needs Triton's kernels")
    from bireme.backends.cuda.memory import expected_use
    from bireme.backends.cuda.quantized import PlanarLoader
    from bireme.models.decoder import Decoder

    shape, checkpoint = open_shape(str(path)), open_checkpoint(path)
    loader = PlanarLoader(checkpoint, torch.bfloat16, torch.device("cpu"))
    Decoder(checkpoint.config, loader)
    plan = make_plan(shape, PlanRequest(concurrency=concurrency, context=context, device="cuda"))
    assert plan.weight_bytes == pytest.approx(loader.nbytes, rel=0.05)
    engine = EngineConfig(max_num_seqs=concurrency, max_num_batched_tokens=2048)
    use = expected_use(checkpoint, engine, 2, quantized=True)
    assert use.weights == pytest.approx(loader.nbytes, rel=0.05) and plan.buffer_bytes == use.work
    checkpoint.close()


def test_the_plan_is_what_the_cuda_loader_holds(demo_model: Path) -> None:
    """E12"""
    check_cuda_loader(demo_model, concurrency=64, context=4096)


def test_the_plan_is_what_the_mlx_loader_holds(demo_model: Path) -> None:
    """E12, as on a Mac: weights that stay quantised, half precision beside them."""
    mx = pytest.importorskip("mlx.core", reason="needs mlx")
    from bireme.backends.mlx.weights import MlxLoader
    from bireme.models.decoder import Decoder

    checkpoint = open_checkpoint(demo_model)
    loader = MlxLoader(checkpoint, mx.float16, quantized=True)
    Decoder(checkpoint.config, loader)
    plan = make_plan(open_shape(str(demo_model)), PlanRequest(device="mlx"))
    assert plan.weight_bytes == pytest.approx(loader.nbytes, rel=0.05)
    checkpoint.close()


def test_work_memory_is_that_of_the_backend(demo_model: Path) -> None:
    """E12: a step's work memory, as each backend reckons it before it measures."""
    pytest.importorskip("mlx.core", reason="needs mlx")
    pytest.importorskip("torch", reason="needs torch")
    from bireme.backends.cuda.memory import plan_host
    from bireme.backends.mlx import memory

    shape, checkpoint = open_shape(str(demo_model)), open_checkpoint(demo_model)
    engine = EngineConfig(max_num_seqs=20, max_model_len=4096, kv_cache_memory=1 << 30)
    assert work_bytes(shape, "cpu", engine) == plan_host(checkpoint, engine, 4096, 4, 0).buffer_bytes
    assert work_bytes(shape, "mlx", engine) == memory.work_bytes(checkpoint.config, engine, 2)
    checkpoint.close()


ON_MAC: dict[str, Any] = {"mlx_weights": "quantized", "mlx_dtype": "float16"}
#: What a plan calls a device, the backend with its options, and the type of the matrices.
MIXED = [
    ("cpu", "cpu", {}, "Q4_K"),
    ("cpu", "cpu", {}, "Q6_K"),
    ("cpu-exact", "cpu", {"cpu_precision": "exact"}, "Q6_K"),
    ("mlx-linux", "mlx", {"mlx_weights": "dense", "mlx_dtype": "float32"}, "Q6_K"),
    ("mlx", "mlx", ON_MAC, "Q4_K"),
    ("mlx", "mlx", ON_MAC, "Q8_0"),
]


@pytest.mark.parametrize(("planned", "device", "options", "kind"), MIXED, ids=[f"{row[0]}-{row[3]}" for row in MIXED])
def test_the_plan_of_experts_is_what_each_backend_allocates(
    planned: str, device: str, options: dict[str, Any], kind: str, tmp_path: Path
) -> None:
    """E12 for experts."""
    pytest.importorskip("mlx.core" if device == "mlx" else "torch", reason=f"needs {device}'s library")
    from bireme.backends.options import BackendOptions
    from bireme.backends.select import load_backend

    path = write_zeros(tmp_path / "moe.gguf", kind)
    shape, checkpoint = open_shape(str(path)), open_checkpoint(path)
    plan = make_plan(shape, PlanRequest(concurrency=2, context=512, device=planned))
    engine = EngineConfig(max_num_seqs=2, max_model_len=512, kv_cache_memory=1 << 20)
    backend = load_backend(device, checkpoint, engine, BackendOptions(threads=1, **options))
    try:
        assert plan.weight_bytes == pytest.approx(backend.info.weight_bytes, rel=0.05)
        assert shape.config is not None and shape.config.moe is not None and checkpoint.config.moe is not None
        assert shape.config.moe.intermediate_size == checkpoint.config.moe.intermediate_size
        assert work_bytes(shape, "cpu", engine) == buffer_bytes(checkpoint.config, 2048, 2)
    finally:
        backend.close()
        checkpoint.close()


@pytest.mark.parametrize("kind", ["Q4_K", "Q6_K", "Q8_0"])
def test_the_plan_of_experts_is_what_the_cuda_loader_holds(kind: str, tmp_path: Path) -> None:
    check_cuda_loader(write_zeros(tmp_path / "moe.gguf", kind), concurrency=8, context=512)


@pytest.mark.parametrize("device", ["cpu", "cpu-exact", "cuda", "mlx"])
def test_a_router_takes_what_each_loader_gives_it(device: str, tmp_path: Path) -> None:
    """To the byte: none keeps it quantised, whatever a file has."""
    checkpoint = open_checkpoint(write_zeros(tmp_path / "moe.gguf", "Q4_K"))
    (part,) = (part for part in open_shape(str(tmp_path / "moe.gguf")).weights.parts if part.role == "router")
    name = f"model.layers.1.{ROUTER}"
    loader = loader_of(device, checkpoint)
    loader.router(name)
    assert part.elements == np.prod(checkpoint.stored(name + ".weight").shape)
    assert loader.nbytes == held_bytes(part, device) == held_bytes(replace(part, kind="Q8_0"), device)
    checkpoint.close()


def loader_of(device: str, checkpoint: Checkpoint) -> Any:
    """What a device's backend loads weights with, on this machine."""
    if device == "mlx":
        mx = pytest.importorskip("mlx.core", reason="needs mlx")
        from bireme.backends.mlx.weights import MlxLoader

        return MlxLoader(checkpoint, mx.float16, quantized=True)
    torch = pytest.importorskip("torch", reason="needs torch")
    if device == "cpu":
        from bireme.backends.cpu.weights import QuantizedLoader

        return QuantizedLoader(checkpoint)
    from bireme.backends.cuda.weights import DenseLoader

    return DenseLoader(checkpoint, torch.float32 if device == "cpu-exact" else torch.bfloat16, torch.device("cpu"))


def test_routers_are_known_in_every_format(tmp_path: Path) -> None:
    config = tiny_config("qwen3_moe")
    assert config.moe is not None
    size = config.moe.num_experts * config.hidden_size * (config.num_layers - len(config.moe.dense_layers))
    write_folder(tmp_path / "hf", hf_settings(config), as_f32(random_weights(config)))
    write_gguf(tmp_path / "m.gguf", config, random_weights(config))
    shapes = [open_shape(str(tmp_path / name)) for name in ("hf", "m.gguf")]
    shapes.append(shape_from_config(hf_settings(config), "config.json"))
    for shape in shapes:
        assert sum(part.elements for part in shape.weights.parts if part.role == "router") == size


def test_levers_are_what_a_device_makes_of_a_file() -> None:
    """A CPU keeps Q4_K's codes in 6 bits and Q3_K's in 5: what fits as a file may not fit there."""
    config = {"model_type": "qwen3_moe", "num_hidden_layers": 48, "hidden_size": 2048, "num_attention_heads": 32}
    config |= {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "vocab_size": 151936}
    shape = shape_from_config(config | {"num_key_value_heads": 4, "head_dim": 128}, "config.json")
    found = {}
    for device in ("any", "cpu", "cpu-exact"):
        plan = make_plan(shape, PlanRequest(device=device, memory="24GB"))
        sizes = {lever.change.split()[2]: lever for lever in plan.levers() if lever.change.startswith("weights in")}
        found[device] = sizes
    count = shape.weights.parameters or 0
    assert found["any"]["Q4_K_M"].total_bytes - found["any"]["Q6_K"].total_bytes == pytest.approx(
        count * (0.83 * 4.5 + 0.17 * 6.5625 - 6.5625) / 8, rel=1e-3
    )
    assert found["any"]["Q3_K_M"].fits and not found["cpu"]["Q3_K_M"].fits
    assert found["cpu"]["Q3_K_M"].total_bytes > found["any"]["Q3_K_M"].total_bytes + count // 8
    assert not found["cpu-exact"]  # which makes float32 of all


def test_a_cache_that_a_device_has_not_is_refused() -> None:
    """The types of each form are those that its backend takes; ``auto`` is the device's own."""
    heads = {"num_attention_heads": 4}
    shape = shape_from_config({"model_type": "llama", "num_hidden_layers": 1, "hidden_size": 64, **heads}, "c")
    for device in set(FORMS) - {"any"}:
        names = KV_CACHE_DTYPES[device.partition("-")[0]]
        for name in ("auto", "float32", "int8", "fp8", "Q4_0"):
            asked = PlanRequest(device=device, kv_cache_dtype=name)
            if name in names or (name == "float32" and device == "mlx-linux"):  # which is its own
                assert make_plan(shape, asked).kv_cache_dtype == (FORMS[device].kv if name == "auto" else name)
            else:
                with pytest.raises(ValueError, match=f"kv-cache-dtype is '{name}'; on {device} it must be auto, "):
                    make_plan(shape, asked)
    assert make_plan(shape, PlanRequest(kv_cache_dtype="Q4_0")).kv_cache_dtype == "q4_0"


def test_experts_in_blocks_of_gguf_take_nine_bits_on_mlx() -> None:
    """There a matrix in such blocks has kernels of its own, and experts have none."""
    part = Part("Q6_K", 1024, 840)
    assert held_bytes(part, "mlx") == 840
    assert held_bytes(replace(part, expert=True), "mlx") == 1024 * 9 / 8
    assert held_bytes(replace(part, expert=True, kind="Q4_K"), "mlx") == 1024 * 5 / 8


def write_zeros(path: Path, kind: str) -> Path:
    """A file of experts whose matrices, the router apart, are zeros in ``kind``."""
    import gguf

    config = tiny_config("qwen3_moe", hidden_size=256, intermediate_size=256, vocab_size=64, num_heads=16)
    config = replace(config, moe=MoeConfig(4, 2, 256, dense_layers=frozenset((0,))))
    weights = {name: np.zeros(shape, np.float32) for name, shape in expected_shapes(config).items()}
    quantize, form = gguf.quants.quantize, BY_NAME[kind]

    def zeros(values: Any, wanted: Any) -> Any:
        if wanted.name != kind:
            return quantize(values, wanted)
        return np.zeros((*values.shape[:-1], values.shape[-1] // form.block * form.size), np.uint8)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gguf.quants, "quantize", zeros)  # gguf-py has no quantiser of K types
        return write_gguf(path, config, weights, type_of=lambda name: "F32" if ".gate.weight" in name else kind)


def test_int8_is_counted_as_the_engine_does() -> None:
    """A scale of four bytes for each head: 1 + 4 / head_dim bytes an element, and 34 / 32 in llama.cpp's q8_0."""
    for head_dim in (64, 128):
        config = {"model_type": "qwen3", "num_hidden_layers": 2, "hidden_size": 256, "num_attention_heads": 4}
        shape = shape_from_config(config | {"num_key_value_heads": 2, "head_dim": head_dim}, "config.json")
        found = {
            name: make_plan(shape, PlanRequest(kv_cache_dtype=name)).kv_bytes_per_token
            for name in ("int8", "fp8", "q8_0")
        }
        elements = 2 * 2 * 2 * head_dim
        assert found == {"int8": elements + 32, "fp8": elements + 32, "q8_0": elements * 34 // 32}
        assert found["int8"] == kv_bytes_per_token(shape.layers, kv_element_bytes("int8", head_dim))


def test_experts_and_tables_keep_their_place_on_a_device() -> None:
    parts = [Part("BF16", 100, 200), Part("BF16", 50, 100, "table"), Part("BF16", 800, 1600, expert=True)]
    shape = replace(
        shape_from_config({"model_type": "x", "num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 1}, "c"),
        weights=sum_weights(parts, 8, 2, "s"),
    )
    known = shape.weights
    assert (known.total_bytes, known.active_bytes, known.active_parameters) == (1900, 200 + 400, 100 + 200)
    exact = held_on(shape, "cpu-exact").weights
    assert (exact.total_bytes, exact.active_bytes, exact.expert_bytes) == (3800, 1200, 3200)
    assert held_on(shape, "cpu").weights.total_bytes == round(100 * 9 / 8) + 100 + 900
    assert set(FORMS) == {"any", "cpu", "cpu-exact", "cuda", "mlx", "mlx-linux"}
