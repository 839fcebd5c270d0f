"""The Llama family's decoder, written once over ``Ops``: Llama, SmolLM2, Mistral, Mixtral, Qwen2, Qwen3, Gemma 3.

The families differ only by what the configuration and the checkpoint say: windows per layer (Mistral), biases on the
projections (Qwen2), norms on q and k (Qwen3), experts (Mixtral, Qwen3-MoE; ``moe.py``); in Gemma 3 norms on what each
half of a layer puts out, another rotary embedding in layers with a window, another activation, and embeddings times a
number. Arrays and weight handles are opaque: nothing here knows an array library or how a weight is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..backends.base import Ops
from .config import ModelConfig
from .moe import load_moe

EMBEDDING = "model.embed_tokens"
FINAL_NORM = "model.norm"
HEAD = "lm_head"
_LINEARS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
_MLP = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")


class WeightLoader(Protocol):
    """Turns canonical tensors into a backend's handles. Names come without the ``.weight`` suffix."""

    def linear(self, *names: str) -> Any:
        """One handle for the matrices ``names`` stacked along their rows, with their biases where the checkpoint has
        them. The embedding's name (a tied head) shares the embedding's memory where the backend can."""
        ...

    def embedding(self, name: str) -> Any: ...

    def norm(self, name: str) -> Any: ...

    def router(self, name: str) -> Any:
        """The matrix ``name`` [E, D] for ``Ops.moe``, never rounded below the activations' own precision."""
        ...

    def experts(self, names: Sequence[str]) -> Any:
        """One handle for E experts: of each of ``names`` (which end in a dot) the matrices ``gate_proj`` and
        ``up_proj`` [F, D], and ``down_proj`` [D, F]. What is quantised stays so as ``linear`` keeps it."""
        ...


class FeedForward(Protocol):
    """What follows attention in a layer."""

    def __call__(self, ops: Ops, x: Any) -> Any:
        """[T, D] to [T, D]; each token by itself."""
        ...


@dataclass(frozen=True, slots=True)
class GatedMlp:
    """``down(activation(gate(x)) * up(x))`` (arXiv:2002.05202); the same weights for every token."""

    gate_up: Any
    down: Any
    activation: str = "silu"  # SwiGLU; "gelu_tanh": GeGLU

    def __call__(self, ops: Ops, x: Any) -> Any:
        inner = ops.linear(x, self.gate_up)
        return ops.linear(ops.swiglu(inner) if self.activation == "silu" else ops.geglu(inner), self.down)


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer: what ``Ops`` must know of it, and its weight handles."""

    index: int  # which layer of the KV pool
    window: int | None  # tokens a query sees, itself included; None: all
    scale: float  # of the attention scores
    eps: float
    input_norm: Any
    qkv: Any
    q_norm: Any | None  # per head, [hd]; None: q and k are not normed
    k_norm: Any | None
    output: Any
    mlp_norm: Any
    mlp: FeedForward
    sinks: Any | None = None  # float32 [H]: a score for each head that takes its share of the softmax; None: none
    rope: int = 0  # which of the configuration's ``ropes``
    output_norm: Any | None = None  # of attention's output, before it is added; None: added as it is
    mlp_output_norm: Any | None = None  # of the feed-forward's


class Decoder:
    """A loaded model. It asks the loader for each tensor of ``names.expected_shapes``, and for no other."""

    def __init__(self, config: ModelConfig, loader: WeightLoader) -> None:
        self.config = config
        self.embed = loader.embedding(EMBEDDING)
        self.layers = tuple(load_layer(config, index, loader) for index in range(config.num_layers))
        self.norm = loader.norm(FINAL_NORM)
        self.head = loader.linear(EMBEDDING if config.tie_embeddings else HEAD)

    def forward(self, ops: Ops, token_ids: Any, logit_rows: Any | None, step: Any) -> Any | None:
        """Run one step's packed tokens.

        Args:
            token_ids: [T].
            logit_rows: [N], indices of the tokens whose next-token logits are wanted; None for none of them.
        Returns:
            Logits [N, V], or None where none were wanted.
        """
        x = self.hidden(ops, token_ids, logit_rows, step)
        return None if x is None else self.logits(ops, x)

    def logits(self, ops: Ops, x: Any) -> Any:
        """Next-token logits [N, V] of final hidden states [N, D]."""
        return ops.linear(x, self.head)

    def hidden(self, ops: Ops, token_ids: Any, rows: Any | None, step: Any) -> Any | None:
        """Run one step's packed tokens; the final normed hidden states [N, D] of the tokens at ``rows`` [N], or None
        where none are wanted."""
        eps, last = self.config.rms_norm_eps, self.layers[-1]
        residual = ops.embedding(self.embed, token_ids, self.config.embedding_scale)
        x = ops.rms_norm(residual, self.layers[0].input_norm, eps)
        for layer, following in zip(self.layers, self.layers[1:] + (None,), strict=True):
            q = ops.rope_and_store(ops.linear(x, layer.qkv), layer, step)
            if layer is last and rows is None:
                return None  # the last layer's K and V are stored; nobody reads what comes after
            x = ops.attention(q, layer, step)
            if layer is last:  # from here on only the wanted rows matter
                x, residual = ops.take_rows(x, rows), ops.take_rows(residual, rows)
            x = ops.linear(x, layer.output)
            x, residual = ops.add_rms_norm(x, residual, layer.mlp_norm, eps, layer.output_norm)
            norm = following.input_norm if following else self.norm
            x, residual = ops.add_rms_norm(layer.mlp(ops, x), residual, norm, eps, layer.mlp_output_norm)
        return x


def load_layer(config: ModelConfig, index: int, loader: WeightLoader) -> Layer:
    prefix = f"model.layers.{index}."
    q, k, v, output = (prefix + name for name in _LINEARS)
    post = config.post_norms  # the feed-forward's own norm is then another, and "post" means after
    return Layer(
        index=index,
        window=config.window(index),
        scale=config.attention_scale or config.head_dim**-0.5,
        eps=config.rms_norm_eps,
        input_norm=loader.norm(prefix + "input_layernorm"),
        qkv=loader.linear(q, k, v),
        q_norm=loader.norm(prefix + "self_attn.q_norm") if config.qk_norm else None,
        k_norm=loader.norm(prefix + "self_attn.k_norm") if config.qk_norm else None,
        output=loader.linear(output),
        mlp_norm=loader.norm(prefix + ("pre_feedforward_layernorm" if post else "post_attention_layernorm")),
        mlp=load_mlp(config, index, prefix, loader),
        rope=config.rope_index(index),
        output_norm=loader.norm(prefix + "post_attention_layernorm") if post else None,
        mlp_output_norm=loader.norm(prefix + "post_feedforward_layernorm") if post else None,
    )


def load_mlp(config: ModelConfig, index: int, prefix: str, loader: WeightLoader) -> FeedForward:
    experts = config.experts(index)
    if experts is not None:
        return load_moe(experts, prefix, loader)
    gate, up, down = (prefix + name for name in _MLP)
    return GatedMlp(loader.linear(gate, up), loader.linear(down), config.activation)
