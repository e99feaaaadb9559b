"""timm's layers: norms, feed-forward networks, attention with and without rotary embedding, patches.

A mask says what is kept, as here, and is handed over joined with causality: told both, timm's own formula drops the mask.
"""
from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

import assay
from assay.impls._masks import visible
from assay.impls._modules import bare, installed, run
from assay.impls._timm import timm

REQUIRES = ("timm", "torchvision")
OPTIONS: dict[str, Any] = {"version": installed("timm"), "url": "https://github.com/huggingface/pytorch-image-models"}
SINGLE = {"internal": "float32"}


def library() -> ModuleType:
    """Where all layers are."""
    return timm("timm.layers")


def normed(name: str, x: Tensor, eps: float, weights: Mapping[str, Tensor]) -> Tensor:
    """The norm of that name."""
    out: Tensor = run(bare(getattr(library(), name), x.shape[-1], eps=eps), weights, x)
    return out


@assay.implements("rms_norm", name="timm-rms-norm", **OPTIONS)
def rms_norm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """`RmsNorm`, in the type of the input throughout."""
    return normed("RmsNorm", x, eps, {"weight": weight})


@assay.implements("rms_norm", name="timm-rms-norm-fp32", arithmetic=SINGLE, **OPTIONS)
def rms_norm_single(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """`RmsNormFp32`."""
    return normed("RmsNormFp32", x, eps, {"weight": weight})


@assay.implements("layer_norm", name="timm-layer-norm", **OPTIONS)
def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float) -> Tensor:
    """`LayerNorm`."""
    return normed("LayerNorm", x, eps, {"weight": weight, "bias": bias})


@assay.implements("layer_norm", name="timm-layer-norm-fp32", arithmetic=SINGLE, **OPTIONS)
def layer_norm_single(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float) -> Tensor:
    """`LayerNormFp32`."""
    return normed("LayerNormFp32", x, eps, {"weight": weight, "bias": bias})


@assay.implements("layer_norm", name="timm-layer-norm-2d", **OPTIONS)
def layer_norm_of_channels(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float) -> Tensor:
    """`LayerNorm2d` on an image one pixel high, whose pixels are the tokens."""
    image = x.reshape(1, -1, x.shape[-1]).mT[:, :, None]
    out: Tensor = run(bare(library().LayerNorm2d, x.shape[-1], eps=eps), {"weight": weight, "bias": bias}, image)
    return out[0, :, 0].mT.reshape(x.shape)


@assay.implements("feed_forward", name="timm-mlp", **OPTIONS)
def feed_forward(x: Tensor, w_in: Tensor, b_in: Tensor | None, w_out: Tensor, b_out: Tensor | None, *, activation: str) -> Tensor:
    """`Mlp`, with timm's activations."""
    weights = {"fc1.weight": w_in, "fc1.bias": b_in, "fc2.weight": w_out, "fc2.bias": b_out}
    return network("Mlp", x, w_in.shape[0], w_out.shape[0], activation, weights, bias=(b_in is not None, b_out is not None))


@assay.implements("gated_feed_forward", name="timm-swiglu", **OPTIONS)
def gated_feed_forward(x: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor, *, activation: str = "silu") -> Tensor:
    """`SwiGLU`: three products."""
    weights = {"fc1_g.weight": w_gate, "fc1_x.weight": w_up, "fc2.weight": w_down}
    return network("SwiGLU", x, w_up.shape[0], w_down.shape[0], activation, weights, bias=False)


@assay.implements("gated_feed_forward", name="timm-glu-mlp", **OPTIONS)
def gated_feed_forward_packed(x: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor, *, activation: str = "silu") -> Tensor:
    """`GluMlp(gate_last=False)`, which timm calls `SwiGLUPacked`: one product for both, the gate first."""
    weights = {"fc1.weight": torch.cat([w_gate, w_up]), "fc2.weight": w_down}
    return network("GluMlp", x, 2 * w_up.shape[0], w_down.shape[0], activation, weights, bias=False, gate_last=False)


def network(name: str, x: Tensor, inner: int, outer: int, activation: str, weights: Mapping[str, Tensor | None],
            **options: Any) -> Tensor:
    """The feed-forward network of that name."""
    act = library().get_act_layer(activation)
    out: Tensor = run(bare(getattr(library(), name), x.shape[-1], inner, outer, act_layer=act, **options).eval(), weights, x)
    return out


@assay.implements("rotary", name="timm-rotary", **OPTIONS)
def rotary(x: Tensor, positions: Tensor, *, base: float = 10000.0, pairing: str = "interleaved") -> Tensor:
    """`freq_bands` for the frequencies, `apply_rot_embed_cat` for the turn."""
    out: Tensor = timm("timm.layers.pos_embed_sincos").apply_rot_embed_cat(
        x, angles(positions, x.shape[-1], base, pairing == "half"), half=pairing == "half")
    return out


def angles(positions: Tensor, width: int, base: float, half: bool = False) -> Tensor:
    """Sines and cosines side by side, as timm's embeddings hold them: (T, 2D), or (B, 1, T, 2D)."""
    bands = timm("timm.layers.pos_embed_sincos").freq_bands(width, temperature=base, device=positions.device)
    turn = positions[..., None] * bands
    turn = torch.cat([turn, turn], -1) if half else turn.repeat_interleave(2, -1)
    table = torch.cat([turn.sin(), turn.cos()], -1)
    return table[:, None] if table.dim() == 3 else table


@assay.implements("multi_head_attention", name="timm-attention", **OPTIONS)
def attention(
    x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor, *, num_heads: int, key_mask: Tensor | None = None,
    mask: Tensor | None = None, causal: bool = False, b_q: Tensor | None = None, b_k: Tensor | None = None,
    b_v: Tensor | None = None, b_o: Tensor | None = None, w_gate: Tensor | None = None,
) -> Tensor:
    """`Attention` through torch's own function."""
    weights = joined(w_q, w_k, w_v, w_o, (b_q, b_k, b_v, b_o), w_gate)
    return attend(x, weights, num_heads, key_mask, mask, causal, fused=True)


# Its own formula takes the softmax over −∞ alone where a query sees no key.
@assay.implements("multi_head_attention", name="timm-attention-eager", conventions={"empty_row": "nan_row"}, **OPTIONS)
def attention_by_formula(
    x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor, *, num_heads: int, key_mask: Tensor | None = None,
    mask: Tensor | None = None, causal: bool = False, b_q: Tensor | None = None, b_k: Tensor | None = None,
    b_v: Tensor | None = None, b_o: Tensor | None = None, w_gate: Tensor | None = None,
) -> Tensor:
    """`Attention` by its own two products, as `set_fused_attn(False)` has it."""
    weights = joined(w_q, w_k, w_v, w_o, (b_q, b_k, b_v, b_o), w_gate)
    return attend(x, weights, num_heads, key_mask, mask, causal, fused=False)


@assay.implements("multi_head_attention", name="timm-attention-rope", **OPTIONS)
def attention_with_rotation(
    x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor, *, num_heads: int, num_kv_heads: int | None = None,
    key_mask: Tensor | None = None, mask: Tensor | None = None, causal: bool = False, b_q: Tensor | None = None,
    b_k: Tensor | None = None, b_v: Tensor | None = None, b_o: Tensor | None = None, w_gate: Tensor | None = None,
    positions: Tensor | None = None, base: float = 10000.0,
) -> Tensor:
    """`AttentionRope`: projections apart, grouped heads."""
    groups, width = num_kv_heads or num_heads, w_q.shape[0] // num_heads
    as_wide(w_v, groups * width)
    module = bare(library().AttentionRope, x.shape[-1], num_heads, dim_out=w_o.shape[0], qkv_fused=False, num_prefix_tokens=0,
                  attn_head_dim=width, gated=w_gate is not None, num_kv_heads=groups).eval()
    named = {"q_proj": (w_q, b_q), "k_proj": (w_k, b_k), "v_proj": (w_v, b_v), "proj": (w_o, b_o)}
    turn = None if positions is None else angles(positions, width, base)
    alone = causal and mask is None and key_mask is None
    out: Tensor = run(module, placed(named, w_gate), x, rope=turn, is_causal=alone,
                      attn_mask=None if alone else kept(x, key_mask, mask, causal))
    return out


def attend(x: Tensor, weights: Mapping[str, Tensor], num_heads: int, key_mask: Tensor | None, mask: Tensor | None, causal: bool,
           fused: bool) -> Tensor:
    """`Attention` with these weights."""
    inner = weights["proj.weight"].shape[1]
    module: Any = bare(library().Attention, x.shape[-1], num_heads, attn_head_dim=inner // num_heads,
                       dim_out=weights["proj.weight"].shape[0], qkv_bias=True, gated="gate.weight" in weights).eval()
    module.fused_attn = fused
    alone = causal and mask is None and key_mask is None
    out: Tensor = run(module, weights, x, is_causal=alone, attn_mask=None if alone else kept(x, key_mask, mask, causal))
    return out


def joined(w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor, biases: tuple[Tensor | None, ...],
           w_gate: Tensor | None) -> dict[str, Tensor]:
    """The weights under the names of `Attention`, whose queries, keys and values are one product."""
    as_wide(w_v, w_q.shape[0])
    q, k, v, o = (w.new_zeros(w.shape[0]) if b is None else b for w, b in zip((w_q, w_k, w_v, w_o), biases, strict=True))
    return placed({"qkv": (torch.cat([w_q, w_k, w_v]), torch.cat([q, k, v])), "proj": (w_o, o)}, w_gate)


def placed(named: Mapping[str, tuple[Tensor, Tensor | None]], w_gate: Tensor | None) -> dict[str, Tensor]:
    """Weights and biases by name; absent biases are zeros, that of the gate always."""
    found: dict[str, Tensor] = {}
    for name, (weight, bias) in {**named, **({} if w_gate is None else {"gate": (w_gate, None)})}.items():
        found |= {f"{name}.weight": weight, f"{name}.bias": weight.new_zeros(weight.shape[0]) if bias is None else bias}
    return found


def as_wide(w_v: Tensor, rows: int) -> None:
    """Values are as wide as keys in timm."""
    if w_v.shape[0] != rows:
        raise NotImplementedError(f"w_v={tuple(w_v.shape)} must have {rows} rows: values are as wide as keys")


def kept(x: Tensor, key_mask: Tensor | None, mask: Tensor | None, causal: bool) -> Tensor | None:
    """One grid of what each query sees."""
    grid = visible(x, x, mask if mask is None or mask.dim() == 2 else mask[:, None], causal, None)
    if key_mask is None:
        return grid
    keys = key_mask[:, None, None, :]
    return keys if grid is None else grid & keys


@assay.implements("patchify", name="timm-patch-embed", **OPTIONS)
def patchify(image: Tensor, *, patch_size: int) -> Tensor:
    """`PatchEmbed` with the identity as its projection, its rows put in the order (row, column, channel)."""
    channels = image.shape[1]
    size = channels * patch_size * patch_size
    order = torch.arange(size, device=image.device).reshape(channels, patch_size, patch_size).permute(1, 2, 0).flatten()
    weight = torch.eye(size, dtype=image.dtype, device=image.device)[order].reshape(size, channels, patch_size, patch_size)
    module: nn.Module = bare(library().PatchEmbed, None, patch_size, channels, size, bias=False)
    out: Tensor = run(module, {"proj.weight": weight}, image)
    return out
