"""The harness itself: it sees what Metal leaves undefined, and generates what MLX generates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from backend_kinds import NO_MLX
from metal_harness import NEEDS_COMPILER, KernelError, Tensor, run, signature

from bireme.backends.mlx.metal import kernel as kernels
from bireme.backends.mlx.metal.attention import Geometry, attention_launch, make_spans, reduce_launch
from bireme.backends.mlx.metal.kernel import Kernel, Launch
from bireme.backends.mlx.metal.matmul import affine_launch, block_launch, dequantize_launch
from bireme.backends.mlx.metal.norm_rope import Heads, norm_rope_launch
from bireme.backends.mlx.metal.quantise import quantise_launch

PROLOGUE = """
    const uint i = thread_position_in_grid.x;
    const uint own = thread_index_in_threadgroup;
    const uint lane = thread_index_in_simdgroup;
    const uint simd = simdgroup_index_in_threadgroup;
"""


@pytest.fixture
def run_body(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], np.ndarray]:
    """Runs a body over x = 0..127 in two threadgroups of 64."""

    def go(body: str) -> np.ndarray:
        monkeypatch.setattr(kernels, "source", lambda file: ("", PROLOGUE + body))
        launch = Launch(Kernel(("own",), ("x",), ("out",), ()), (128, 1, 1), (64, 1, 1), (((128,), "float32"),))
        return run(launch, Tensor.of(np.arange(128, dtype=np.float32)))[0]

    return go


SHARED = "threadgroup float shared[64]; shared[own] = x[i];"
BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);"


@NEEDS_COMPILER
def test_threads_meet_at_barriers_and_simd_operations(run_body):
    reverse = run_body(f"{SHARED} {BARRIER} out[i] = shared[63 - own];")
    np.testing.assert_array_equal(reverse, np.arange(128).reshape(2, 64)[:, ::-1].ravel())
    sums = run_body("out[i] = simd_sum(x[i]);")
    np.testing.assert_array_equal(sums, np.repeat(np.arange(128.0).reshape(4, 32).sum(axis=1), 32))
    np.testing.assert_array_equal(run_body("out[i] = simd_shuffle_xor(x[i], 5);"), np.arange(128) ^ 5)
    where = run_body("out[i] = lane + 100 * simd;")
    np.testing.assert_array_equal(where, np.tile(np.arange(64) % 32 + np.arange(64) // 32 * 100, 2))


@NEEDS_COMPILER
@pytest.mark.parametrize(
    "body, why",
    [
        (f"{SHARED} out[i] = shared[63 - own];", "a barrier is missing"),
        (f"{SHARED} {BARRIER} float y = shared[63 - own]; shared[own] = -1; out[i] = y + shared[own ^ 1];", "missing"),
        (f"if (own < 40) {{ {BARRIER} }} out[i] = 0;", "part at a barrier"),
        (f"if (own < 40) {{ {BARRIER} }} else {{\n {BARRIER} }} out[i] = 0;", "part at a barrier"),
        ("out[i] = own < 40 ? simd_sum(x[i]) : 0;", "part at a simd"),
        ("out[i] = x[i + 1];", "outside a buffer"),
        ("out[i] = x[int(i) - 2000];", "outside a buffer"),
        ("out[i] = 0; out[i + 1] = 0;", "outside a buffer"),
        (f"threadgroup float big[8193]; big[own] = 0; {BARRIER} out[i] = big[own ^ 1];", "32 KiB"),
    ],
)
def test_what_metal_leaves_undefined_is_an_error(run_body, body, why):
    with pytest.raises(KernelError, match=why):
        run_body(body)


@NEEDS_COMPILER
def test_memory_starts_as_garbage(run_body):
    assert np.isnan(run_body("if (own > 0) { out[i] = x[i]; }")[::64]).all()
    assert np.isnan(run_body("threadgroup float shared[64]; out[i] = shared[own];")).all()
    late = run_body(f"threadgroup float shared[64]; out[i] = shared[own]; {BARRIER} shared[own] = 1;")
    assert np.isnan(late).all(), "nothing is left of the threadgroup before"


def conversion(dtype: str, count: int, back: bool) -> Launch:
    kernel = Kernel(("convert",), ("x",), ("out",), (("TO", "float32" if back else dtype),))
    return Launch(kernel, (count, 1, 1), (32, 1, 1), (((count,), "float32" if back else dtype),))


@NEEDS_COMPILER
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_types_round_as_they_should(dtype, monkeypatch):
    body = "out[thread_position_in_grid.x] = TO(x[thread_position_in_grid.x]);"
    monkeypatch.setattr(kernels, "source", lambda file: ("", body))
    random = np.random.default_rng(0)
    bits = random.integers(0, 1 << 32, 4096, dtype=np.uint32).view(np.float32)
    edges = np.array([0, -0.0, 65519, 65520, np.inf, 5.96e-8, 2.98e-8, 6.1e-5], np.float32)
    values = [bits[~np.isnan(bits)], edges, (2.0 ** random.uniform(-27, 17, 4096)).astype(np.float32)]
    values = np.resize(np.concatenate(values), 8192)
    with np.errstate(over="ignore"):
        rounded = Tensor.of(values, dtype)
    np.testing.assert_array_equal(run(conversion(dtype, 8192, False), Tensor.of(values))[0], rounded.values())
    np.testing.assert_array_equal(run(conversion(dtype, 8192, True), rounded)[0], rounded.values())


def _inputs(launch: Launch, dtype: str, small: bool) -> list[Tensor]:
    """Zeros of plausible types and shapes for any of our kernels."""
    types = {"tables": "int32", "items": "int32", "starts": "int32", "words": "uint32", "blocks": "uint16"}
    types |= {"index": "int32", "columns": "int32", "partial": "float32", "lse": "float32"}
    types |= dict.fromkeys(("cosines", "sines", "q_norm", "k_norm"), "float32")
    if "k_scales" in launch.kernel.inputs:
        types |= {"k_pool": "int8", "v_pool": "int8", "k_scales": "float32", "v_scales": "float32"}
    made = []
    for name in launch.kernel.inputs:
        kind = types.get(name, dtype)
        shape = (1,) if name == "columns" else (1, 2) if small and name in ("lse", "scales", "biases") else (2, 8)
        made.append(Tensor(np.zeros(shape, "uint16" if kind == "bfloat16" else kind), kind))
    return made


def every_launch(dtype: str) -> list[Launch]:
    shape = Geometry(8, 2, 64, 16, dtype)
    one, many = (make_spans(np.zeros(2, np.int32), np.array([99, 100], np.int32), None, 2, n) for n in (512, 64))
    return [
        attention_launch(shape, one, 0.125),
        attention_launch(shape, many, 0.125, softcap=30.0),
        attention_launch(replace(shape, scaled=True), one, 0.125),
        reduce_launch(shape, many),
        norm_rope_launch(Heads(8, 2, 64, 32, dtype, None, 1e-6), 2),
        norm_rope_launch(Heads(8, 2, 64, 32, dtype, "float32", 1e-6), 2),
        quantise_launch(2, 2, 64, dtype),
        affine_launch(5, 64, 4, 32, dtype),
        block_launch(5, 64, "Q6_K", dtype),
        dequantize_launch(3, 256, "IQ4_XS", dtype),
    ]


@NO_MLX
@pytest.mark.mlx
@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_signatures_are_those_mlx_generates(dtype, small, tmp_path, capfd):
    """MLX writes a kernel's whole source without Metal, too, when a function is exported."""
    from bireme.backends.mlx.library import mx

    for launch in every_launch(dtype):
        inputs = _inputs(launch, dtype, small)

        def call(*arrays, launch=launch):
            return launch.kernel.function()(
                inputs=list(arrays),
                grid=launch.grid,
                threadgroup=launch.threadgroup,
                output_shapes=[shape for shape, _ in launch.outputs],
                output_dtypes=[getattr(mx, kind) for _, kind in launch.outputs],
                verbose=True,
            )

        arrays = [mx.zeros(tensor.data.shape, getattr(mx, tensor.dtype)) for tensor in inputs]
        mx.export_function(str(tmp_path / "kernel.mlxfn"), call, *arrays)
        shown = capfd.readouterr().out
        generated = shown.split("```\n")[1]
        name = generated.split("[[kernel]] void ")[1].split("(")[0]
        assert name.startswith("custom_kernel_" + launch.kernel.name)
        ours = launch.kernel.header + signature(launch, inputs, name) + launch.kernel.body + "\n}\n"
        assert generated.rstrip() == ours.rstrip()


def test_names_tell_all_constants_apart():
    launches = [launch for dtype in ("float32", "float16", "bfloat16") for launch in every_launch(dtype)]
    shape = Geometry(8, 2, 64, 16, "float16")
    spans = make_spans(np.zeros(1, np.int32), np.zeros(1, np.int32), None, 2)
    close = [0.125, float(np.nextafter(np.float32(0.125), np.float32(1)))]
    launches += [attention_launch(shape, spans, scale) for scale in close]
    launches += [affine_launch(5, 64, bits, group, "float16") for bits in (5, 8) for group in (32, 64)]
    names = [launch.kernel.name for launch in launches]
    assert len(set(names)) == len({launch.kernel for launch in launches}) >= 20
    assert all(name.isidentifier() for name in names)


def test_small_inputs_are_read_by_index_alone():
    """MLX passes arrays of fewer than 8 elements in another address space; only inputs that never are so small may
    be reached through a pointer of ``device`` memory."""
    for launch in every_launch("float16"):
        for argument in launch.kernel.inputs:
            pointers = [
                line for line in launch.kernel.body.splitlines() if f" {argument} +" in line or f"({argument} +" in line
            ]
            assert argument == "blocks" or not pointers
