"""x-transformers: its attention core and module, feed-forward networks, rotary embedding, ALiBi, sinusoids and filters.

A mask says what is *kept*. Grouped heads lie the other way: query head h reads key head h mod G, where the kind has h // (H/G), so
query heads are handed over in another order, and put back. Its norms are not here: RMSNorm and ScaleNorm have no epsilon (a length
below 1e-12 counts as 1e-12), and the normalised queries and keys of its attention are made by them.
"""
from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

import assay
from assay.impls._masks import four_axes, visible
from assay.impls._modules import bare, installed, late, run

REQUIRES = ("x_transformers",)
OPTIONS: dict[str, Any] = {"version": installed("x-transformers"), "url": "https://github.com/lucidrains/x-transformers"}
ACTIVATIONS: Mapping[str, type[nn.Module]] = {"relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU}


def library() -> ModuleType:
    """Where all modules are but the core of attention."""
    return late("x_transformers.x_transformers")


def core(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bias: Tensor | None = None,
         weights: Mapping[str, Tensor] | None = None, **options: Any) -> Tensor:
    """`Attend`, its query heads in the library's order."""
    heads, groups = q.shape[1], k.shape[1]
    module = bare(late("x_transformers.attend").Attend, heads=heads, **options).eval()
    grids = {"mask": None if mask is None else four_axes(mask), "attn_bias": None if bias is None else four_axes(bias)}
    held = {name: grid if grid is None or grid.shape[1] == 1 else swapped(grid, groups) for name, grid in grids.items()}
    out: Tensor = run(module, weights or {}, swapped(q, groups), k, v, **held)[0]
    return swapped(out, heads // groups)


def swapped(x: Tensor, outer: int, dim: int = 1) -> Tensor:
    """Heads in `outer` runs, taken one of each run in turn; with the length of a run the way back."""
    return x if outer in (1, x.shape[dim]) else x.unflatten(dim, (outer, -1)).transpose(dim, dim + 1).flatten(dim, dim + 1)


# A query that mask and causality together leave no key gives the mean of all values, of later tokens too; one that the mask alone
# does gives zeros (reports/findings/x_transformers_no_keys.md).
@assay.implements("attention", name="x-transformers-attend", lacks={"empty_rows"}, **OPTIONS)
def attend(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None, bias: Tensor | None = None, causal: bool = False,
           scale: float | None = None, softcap: float | None = None) -> Tensor:
    """`Attend`: two products, the softmax between them in float32."""
    if softcap is not None and bias is not None:
        raise NotImplementedError(f"softcap={softcap}: the library caps scores and bias together")
    capped: dict[str, Any] = {} if softcap is None else {"softclamp_logits": True, "logit_softclamp_value": softcap}
    return core(q, k, v, mask, bias=bias, causal=causal, scale=scale, **capped)


@assay.implements("attention", name="x-transformers-attend-flash", **OPTIONS)
def attend_flash(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None, bias: Tensor | None = None, causal: bool = False,
                 scale: float | None = None) -> Tensor:
    """`Attend(flash=True)`: torch's own function, the masks joined."""
    if causal and mask is None and q.shape[2] > k.shape[2]:
        raise NotImplementedError(f"Tq={q.shape[2]} > Tk={k.shape[2]}: causality counts from the top left, with a mask it does not")
    return core(q, k, v, mask, bias=bias, causal=causal, scale=scale, flash=True)


@assay.implements("sink_attention", name="x-transformers-sink", **OPTIONS)
def sink(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, *, causal: bool = False, window: int | None = None,
         scale: float | None = None) -> Tensor:
    """`Attend(head_learned_sink=True)`: one more score a head, whose share is dropped."""
    seen = None if window is None else visible(q, k, None, False, window)
    weights = {"head_attn_sink": swapped(sinks, k.shape[1], 0)}
    return core(q, k, v, seen, weights=weights, causal=causal, scale=scale, head_learned_sink=True)


# Its `mask` would also zero the outputs of queries that are padding; as the mask of a context it hides keys alone. Its rotary
# embedding raises on no positions.
@assay.implements("multi_head_attention", name="x-transformers-attention", lacks={"empty_rows", "empty"}, **OPTIONS)
def attention(
    x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor, *, num_heads: int, num_kv_heads: int | None = None,
    context: Tensor | None = None, key_mask: Tensor | None = None, mask: Tensor | None = None, causal: bool = False,
    window: int | None = None, positions: Tensor | None = None, base: float = 10000.0,
) -> Tensor:
    """`Attention`, the module, with the call's weights."""
    groups, width = num_kv_heads or num_heads, w_q.shape[0] // num_heads
    module = bare(
        library().Attention, x.shape[-1], dim_head=width, dim_context=w_k.shape[1], heads=num_heads, kv_heads=groups,
        value_dim_head=w_v.shape[0] // groups, dim_out=w_o.shape[0], project_out=True, causal=causal or window is not None,
        max_attend_past=None if window is None else window - 1).eval()
    source = x if context is None else context
    turn = None if positions is None else rotation(positions, width, base, x.device)
    grid = mask if mask is None or mask.dim() == 2 else mask[:, None]
    weights = placed(w_q, w_k, w_v, w_o, num_heads, groups)
    out: Tensor = run(module, weights, x, context=source, context_mask=key_mask, attn_mask=grid, rotary_pos_emb=turn,
                      context_rotary_pos_emb=turn)
    return out


def placed(w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor, num_heads: int, groups: int) -> dict[str, Tensor]:
    """The call's weights under the module's names, the heads of queries and outputs in the library's order."""
    query = swapped(w_q.unflatten(0, (num_heads, -1)), groups, 0).flatten(0, 1)
    output = swapped(w_o.unflatten(1, (num_heads, -1)), groups, 1).flatten(1, 2)
    return {"to_q.weight": query, "to_k.weight": w_k, "to_v.weight": w_v, "to_out.weight": output}


def rotation(positions: Tensor, width: int, base: float, device: torch.device) -> Any:
    """`RotaryEmbedding`'s angles, and the 1 by which it scales what it turned."""
    module: Any = library().RotaryEmbedding(max(width, 4), base=base)
    if width == 2:  # the constructor divides by the width less 2: a single pair gets its one frequency, 1, placed
        module.inv_freq = torch.ones(1)
    return module.to(device)(positions)


@assay.implements("rotary", name="x-transformers-rotary", lacks={"empty"}, offers={"negative_positions"}, **OPTIONS)
def rotary(x: Tensor, positions: Tensor, *, base: float = 10000.0, rotary_dim: int | None = None) -> Tensor:
    """`RotaryEmbedding` for the angles, `apply_rotary_pos_emb` for the turn; neighbours form a pair, and no position is refused."""
    angles, factor = rotation(positions, x.shape[-1] if rotary_dim is None else rotary_dim, base, x.device)
    out: Tensor = library().apply_rotary_pos_emb(x, angles, factor)
    return out


@assay.implements("alibi", name="x-transformers-alibi", dtypes=("float32",), grad=False, lacks={"empty"}, **OPTIONS)
def alibi(num_heads: int, q_len: int, k_len: int) -> Tensor:
    """`AlibiPositionalBias`, whose notation of axes knows none of length 0."""
    out: Tensor = library().AlibiPositionalBias(num_heads)(q_len, k_len)
    return out


@assay.implements("sinusoidal", name="x-transformers-sinusoidal", dtypes=("float32",), **OPTIONS)
def sinusoidal(positions: Tensor, dim: int, *, base: float = 10000.0) -> Tensor:
    """`ScaledSinusoidalEmbedding` with the scale 1; sines come first there, cosines behind."""
    if dim % 2:
        raise ValueError(f"dim={dim} must be even; sines and cosines come in pairs")
    module = library().ScaledSinusoidalEmbedding(dim, theta=base).to(positions.device)
    angles = positions.to(module.inv_freq.dtype)  # the product takes one type
    table: Tensor = run(module, {"scale": angles.new_ones(1)}, positions[None, :, None], pos=angles)
    return torch.stack(table.chunk(2, dim=-1), dim=-1).flatten(-2)


@assay.implements("feed_forward", name="x-transformers-feed-forward", **OPTIONS)
def feed_forward(x: Tensor, w_in: Tensor, b_in: Tensor | None, w_out: Tensor, b_out: Tensor | None, *, activation: str) -> Tensor:
    """`FeedForward`; absent biases are zeros."""
    biases = {"ff.0.0.bias": x.new_zeros(w_in.shape[0]) if b_in is None else b_in,
              "ff.2.bias": x.new_zeros(w_out.shape[0]) if b_out is None else b_out}
    return network(x, w_in.shape[0], w_out.shape[0], activation, {"ff.0.0.weight": w_in, "ff.2.weight": w_out, **biases})


@assay.implements("gated_feed_forward", name="x-transformers-glu", **OPTIONS)
def gated_feed_forward(x: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor, *, activation: str = "silu") -> Tensor:
    """`FeedForward(glu=True)`: one product for both, what is gated first; its biases are zeros."""
    joint = torch.cat([w_up, w_gate])
    weights = {"ff.0.proj.weight": joint, "ff.0.proj.bias": x.new_zeros(joint.shape[0]), "ff.2.weight": w_down}
    return network(x, w_up.shape[0], w_down.shape[0], activation, weights, glu=True, no_bias=True)


def network(x: Tensor, inner: int, outer: int, activation: str, weights: Mapping[str, Tensor], **options: Any) -> Tensor:
    """`FeedForward`; its width inside is a multiple of the outer one, handed over as a fraction so that none is lost."""
    act = nn.GELU(approximate="tanh") if activation == "gelu_tanh" else ACTIVATIONS[activation]()
    module = bare(library().FeedForward, x.shape[-1], outer, mult=Fraction(inner, x.shape[-1]), custom_activation=act, **options)
    out: Tensor = run(module.eval(), weights, x)
    return out


# Two calls that it takes and answers wrongly are refused here (reports/findings/x_transformers_filters.md).
@assay.implements("logits_filter", name="x-transformers-filters", conventions={"topp_boundary": "exceed"}, grad=False, **OPTIONS)
def logits_filter(logits: Tensor, *, temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None) -> Tensor:
    """`top_k`, then `top_p`, on logits divided by the temperature."""
    if temperature <= 0:
        raise ValueError(f"temperature={temperature} must be above 0; choose one above 0")
    if (top_k is not None and top_k < 1) or top_p == 1:
        raise NotImplementedError(f"top_k={top_k}, top_p={top_p}: k below 1 empties the row, and p = 1 drops tokens by rounding")
    wrapper, z = late("x_transformers.autoregressive_wrapper"), logits / temperature
    if top_k is not None:
        z = wrapper.top_k(z, k=top_k)
    return z if top_p is None else wrapper.top_p(z, thres=top_p)
