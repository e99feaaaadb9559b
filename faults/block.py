"""Planted faults of the layer, and unusual ways that are right; its parts serve the models' faults too."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from assay.faults import moe as experts
from assay.faults import multi_head_attention_parts as multi_head
from assay.registry import benign, fault

NOT_EXPRESSIBLE = {
    "BUG-149": "memory of a fused norm: see rms_norm",
    "BUG-152": "deepnorm's alpha, which the call does not have: see residual",
    "BUG-156": "the last layer of a stack: see encoder",
    "BUG-159": "an overflow of half precision in the projection: within the declared arithmetic it is undecided",
    "BUG-219": "a compiler",
}
Params = Mapping[str, Any]


@dataclass(frozen=True)
class Layer:
    """One layer's input, parameters and options; faults change an option or override a method."""

    x: Tensor
    params: Params
    num_heads: int
    num_kv_heads: int | None = None
    placement: str = "pre"
    norm: str = "rms"
    ffn: str = "swiglu"
    activation: str = "silu"
    causal: bool = True
    mask: Tensor | None = None
    positions: Tensor | None = None
    dropout: float = 0.0
    training: bool = False
    seed: int = 0
    eps: float = 1e-6
    top_k: int | None = None
    memory: Tensor | None = None
    memory_mask: Tensor | None = None

    def normed(self, name: str, t: Tensor) -> Tensor:
        """The norm of that name."""
        weight, bias = self.params[f"{name}.weight"], self.params.get(f"{name}.bias")
        if self.norm == "layer":
            t = t - t.mean(-1, keepdim=True)
        t = t * torch.rsqrt((t * t).mean(-1, keepdim=True) + self.eps) * weight
        return t if bias is None or self.norm == "rms" else t + bias

    def attention(self, t: Tensor, name: str = "attn", context: Tensor | None = None) -> Tensor:
        """Self-attention, or cross-attention over a context."""
        mask, causal = (self.mask, self.causal) if context is None else (self.memory_mask, False)
        p, over_keys = self.params, mask is not None and mask.dim() == 2
        return multi_head.right(multi_head.Call(
            t, p[f"{name}.w_q"], p[f"{name}.w_k"], p[f"{name}.w_v"], p[f"{name}.w_o"], self.num_heads,
            self.num_kv_heads or self.num_heads, context, None, mask if over_keys else None, None if over_keys else mask,
            causal, None, p.get(f"{name}.b_q"), p.get(f"{name}.b_k"), p.get(f"{name}.b_v"), p.get(f"{name}.b_o"),
            p.get(f"{name}.w_gate"), self.positions if context is None else None, 10000.0))

    def act(self, t: Tensor) -> Tensor:
        """The activation."""
        if self.activation == "gelu_tanh":
            return functional.gelu(t, approximate="tanh")
        functions: Mapping[str, Callable[[Tensor], Tensor]] = {
            "relu": functional.relu, "gelu": functional.gelu, "silu": functional.silu}
        return functions[self.activation](t)

    def feed(self, t: Tensor) -> Tensor:
        """The feed-forward network."""
        p = self.params
        if self.ffn == "mlp":
            h = self.act(multi_head.linear(t, p["ffn.w_in"], p.get("ffn.b_in")))
            return multi_head.linear(h, p["ffn.w_out"], p.get("ffn.b_out"))
        if self.ffn == "swiglu":
            return (self.act(t @ p["ffn.w_gate"].mT) * (t @ p["ffn.w_up"].mT)) @ p["ffn.w_down"].mT
        shared = (p.get("moe.shared.w_gate"), p.get("moe.shared.w_up"), p.get("moe.shared.w_down"))
        tokens = t.reshape(-1, t.shape[-1])
        mixture = experts.Mixture(tokens, p["moe.w_router"], p["moe.w_gate"], p["moe.w_up"], p["moe.w_down"],
                                  self.top_k or 1, None if shared[0] is None else shared)
        return experts.right(mixture).reshape(t.shape)

    def dropped(self, t: Tensor, index: int) -> Tensor:
        """Dropout."""
        if not self.training or self.dropout == 0:
            return t
        generator = torch.Generator().manual_seed(self.seed + index)
        keep = torch.rand(t.shape, generator=generator).to(t.device) >= self.dropout
        return torch.where(keep, t / (1 - self.dropout), torch.zeros_like(t))

    def around(self, x: Tensor, name: str, index: int, f: Callable[[Tensor], Tensor]) -> Tensor:
        """Norm, sub-layer, dropout, residual connection."""
        if self.placement in ("post", "deepnorm"):
            return self.normed(name, x + self.dropped(f(x), index))
        out = self.dropped(f(self.normed(name, x)), index)
        return x + (self.normed(f"{name}_post", out) if self.placement == "sandwich" else out)

    def run(self) -> Tensor:
        """Self-attention, cross-attention where there is a memory, feed-forward network."""
        h = self.around(self.x, "norm1", 0, self.attention)
        if self.memory is not None:
            h = self.around(h, "norm3", 1, lambda t: self.attention(t, "cross", self.memory))
        return self.around(h, "norm2", 2, self.feed)


Way = Callable[[Layer], Tensor]


def planted(mark: Callable[..., Any], summary: str, origin: str = "", **options: Any) -> Callable[[Way], Way]:
    """Give a function of a layer the signature of the kind, under its own name, and register it."""
    def register(wrong: Way) -> Way:
        def block(x: Tensor, params: Params, *, num_heads: int, num_kv_heads: int | None = None, placement: str = "pre",
                  norm: str = "rms", ffn: str = "swiglu", activation: str = "silu", causal: bool = True,
                  mask: Tensor | None = None, positions: Tensor | None = None, dropout: float = 0.0,
                  training: bool = False, seed: int = 0, eps: float = 1e-6, top_k: int | None = None) -> Tensor:
            return wrong(Layer(x, params, num_heads, num_kv_heads, placement, norm, ffn, activation, causal, mask, positions,
                               dropout, training, seed, eps, top_k))

        block.__name__ = block.__qualname__ = wrong.__name__
        block.__module__, block.__doc__ = wrong.__module__, summary
        mark("block", summary=summary, **({"origin": origin} if mark is fault else {}), **options)(block)
        return wrong

    return register


def remade(layer: Layer, kind: type[Layer], **changes: Any) -> Tensor:
    """The same layer under an overriding class."""
    return kind(**{**vars(layer), **changes}).run()


class NoAttentionResidual(Layer):
    """The attention's output replaces its input."""

    def around(self, x: Tensor, name: str, index: int, f: Callable[[Tensor], Tensor]) -> Tensor:
        return super().around(x, name, index, f) - (x if name == "norm1" and self.placement != "post" else 0)


class SecondResidual(Layer):
    """The feed-forward branch adds its input once more."""

    def feed(self, t: Tensor) -> Tensor:
        return super().feed(t) + t


class FirstNormForBoth(Layer):
    """norm1 serves for both sub-layers."""

    def normed(self, name: str, t: Tensor) -> Tensor:
        return super().normed("norm1" if name == "norm2" else name, t)


class NoSecondNorm(Layer):
    """The feed-forward network sees the stream as it is."""

    def normed(self, name: str, t: Tensor) -> Tensor:
        return t if name == "norm2" else super().normed(name, t)


class EpsilonFixed(Layer):
    """ε is 1e-3 whatever eps says."""

    def normed(self, name: str, t: Tensor) -> Tensor:
        return replace(self, eps=1e-3, x=t).plain(name, t)

    def plain(self, name: str, t: Tensor) -> Tensor:
        """The right norm."""
        return Layer.normed(self, name, t)


class NormOfBranchOnly(Layer):
    """Post-norm normalises the branch, not the sum."""

    def around(self, x: Tensor, name: str, index: int, f: Callable[[Tensor], Tensor]) -> Tensor:
        if self.placement == "post":
            return x + self.normed(name, self.dropped(f(x), index))
        return super().around(x, name, index, f)


class GateAndUpSwapped(Layer):
    """silu(up)·gate."""

    def feed(self, t: Tensor) -> Tensor:
        if self.ffn != "swiglu":
            return super().feed(t)
        p = self.params
        return (self.act(t @ p["ffn.w_up"].mT) * (t @ p["ffn.w_gate"].mT)) @ p["ffn.w_down"].mT


class DropoutAlways(Layer):
    """Dropout in evaluation too."""

    def dropped(self, t: Tensor, index: int) -> Tensor:
        return replace(self, training=True, x=t).plain(t, index)

    def plain(self, t: Tensor, index: int) -> Tensor:
        """The right dropout."""
        return Layer.dropped(self, t, index)


class DropoutOnStream(Layer):
    """Dropout after the add."""

    def around(self, x: Tensor, name: str, index: int, f: Callable[[Tensor], Tensor]) -> Tensor:
        calm = Layer(**{**vars(self), "dropout": 0.0})
        return self.dropped(calm.around(x, name, index, f), index)


class DropoutUnscaled(Layer):
    """Dropout without 1/(1−p)."""

    def dropped(self, t: Tensor, index: int) -> Tensor:
        out = super().dropped(t, index)
        return out * (1 - self.dropout) if self.training else out


class MlpBiasesIgnored(Layer):
    """The mlp's biases are left out."""

    def feed(self, t: Tensor) -> Tensor:
        p = {name: w for name, w in self.params.items() if name not in ("ffn.b_in", "ffn.b_out")}
        return Layer(**{**vars(self), "params": p}).feed(t)


@planted(fault, "the attention's output replaces the stream: no residual")
def attention_without_residual(layer: Layer) -> Tensor:
    return remade(layer, NoAttentionResidual)


@planted(fault, "the feed-forward network adds its input once more")
def residual_added_twice(layer: Layer) -> Tensor:
    return remade(layer, SecondResidual)


@planted(fault, "norm1 serves for both sub-layers")
def first_norm_for_both(layer: Layer) -> Tensor:
    return remade(layer, FirstNormForBoth)


@planted(fault, "no norm before the feed-forward network")
def second_norm_left_out(layer: Layer) -> Tensor:
    return remade(layer, NoSecondNorm)


@planted(fault, "ε is fixed", "BUG-143")
def epsilon_fixed(layer: Layer) -> Tensor:
    return remade(layer, EpsilonFixed)


@planted(fault, "post-norm normalises the branch in place of the sum")
def post_norm_of_branch(layer: Layer) -> Tensor:
    return remade(layer, NormOfBranchOnly)


@planted(fault, "placement ignored: always pre-norm")
def placement_ignored(layer: Layer) -> Tensor:
    return replace(layer, placement="pre").run()


@planted(fault, "sandwich without its second norms")
def sandwich_without_post_norm(layer: Layer) -> Tensor:
    return replace(layer, placement="pre" if layer.placement == "sandwich" else layer.placement).run()


@planted(fault, "norm ignored: always RMSNorm")
def norm_ignored(layer: Layer) -> Tensor:
    return replace(layer, norm="rms").run()


@planted(fault, "only the queries are normalised: keys and values are the raw stream", "BUG-061")
def only_queries_normalised(layer: Layer) -> Tensor:
    class Raw(Layer):
        def attention(self, t: Tensor, name: str = "attn", context: Tensor | None = None) -> Tensor:
            if self.placement == "post":
                return super().attention(t, name, context)
            p = self.params
            over_keys = self.mask is not None and self.mask.dim() == 2
            return multi_head.right(multi_head.Call(
                t, p["attn.w_q"], p["attn.w_k"], p["attn.w_v"], p["attn.w_o"], self.num_heads,
                self.num_kv_heads or self.num_heads, self.x, None, self.mask if over_keys else None,
                None if over_keys else self.mask, self.causal, None, p.get("attn.b_q"), p.get("attn.b_k"),
                p.get("attn.b_v"), p.get("attn.b_o"), p.get("attn.w_gate"), self.positions, 10000.0))

    return remade(layer, Raw)


@planted(fault, "the feed-forward network adds the layer's input, not the state after attention", "BUG-154")
def feed_forward_adds_layer_input(layer: Layer) -> Tensor:
    class Forgetful(Layer):
        def run(self) -> Tensor:
            h = self.around(self.x, "norm1", 0, self.attention)
            if self.placement == "post":
                return self.normed("norm2", self.x + self.dropped(self.feed(h), 2))
            return self.around(h, "norm2", 2, self.feed) - h + self.x

    return remade(layer, Forgetful)


@planted(fault, "attention and feed-forward network in parallel on the same input")
def parallel_branches(layer: Layer) -> Tensor:
    first = layer.around(layer.x, "norm1", 0, layer.attention)
    return first + layer.around(layer.x, "norm2", 2, layer.feed) - layer.x


@planted(fault, "feed-forward network first, attention second")
def sublayers_swapped(layer: Layer) -> Tensor:
    h = layer.around(layer.x, "norm2", 2, layer.feed)
    return layer.around(h, "norm1", 0, layer.attention)


@planted(fault, "gate and up swapped", "BUG-157")
def gate_and_up_swapped(layer: Layer) -> Tensor:
    return remade(layer, GateAndUpSwapped)


@planted(fault, "activation ignored: always SiLU")
def activation_ignored(layer: Layer) -> Tensor:
    return replace(layer, activation="silu").run()


@planted(fault, "biases of the mlp are left out")
def mlp_biases_ignored(layer: Layer) -> Tensor:
    return remade(layer, MlpBiasesIgnored)


@planted(fault, "causal ignored")
def causal_ignored(layer: Layer) -> Tensor:
    return replace(layer, causal=False).run()


@planted(fault, "always causal")
def always_causal(layer: Layer) -> Tensor:
    return replace(layer, causal=True).run()


@planted(fault, "mask ignored")
def mask_ignored(layer: Layer) -> Tensor:
    return replace(layer, mask=None).run()


@planted(fault, "a mask over a single token is ignored: softmax over one key is 1")
def mask_of_one_token_ignored(layer: Layer) -> Tensor:
    return replace(layer, mask=layer.mask if layer.x.shape[1] > 1 else None).run()


@planted(fault, "a mask that hides everything is taken for none")
def mask_without_keys_ignored(layer: Layer) -> Tensor:
    return replace(layer, mask=layer.mask if layer.mask is not None and bool(layer.mask.any()) else None).run()


@planted(fault, "a padding mask replaces causal", "BUG-029")
def mask_replaces_causal(layer: Layer) -> Tensor:
    return replace(layer, causal=layer.causal and layer.mask is None).run()


@planted(fault, "positions ignored")
def positions_ignored(layer: Layer) -> Tensor:
    return replace(layer, positions=None).run()


@planted(fault, "key/value heads ignored: the first group serves all")
def groups_ignored(layer: Layer) -> Tensor:
    groups = layer.num_kv_heads or layer.num_heads
    if groups == layer.num_heads:
        return layer.run()
    params = dict(layer.params)
    for name in ("attn.w_k", "attn.w_v"):
        w = params[name].reshape(groups, -1, params[name].shape[1])
        params[name] = w[:1].expand(w.shape).reshape(params[name].shape)
    return replace(layer, params=params).run()


@planted(fault, "positions are counted anew: only their distances tell")
def positions_counted_anew(layer: Layer) -> Tensor:
    given = layer.positions
    return layer.run() if given is None else replace(layer, positions=torch.arange(given.shape[-1], device=given.device)).run()


@planted(fault, "at most two experts a token", "BUG-160")
def two_experts_at_most(layer: Layer) -> Tensor:
    return replace(layer, top_k=min(2, layer.top_k or 1)).run()


@planted(fault, "dropout in evaluation too", "BUG-099")
def dropout_in_evaluation(layer: Layer) -> Tensor:
    return remade(layer, DropoutAlways)


@planted(fault, "no dropout in training")
def dropout_ignored(layer: Layer) -> Tensor:
    return replace(layer, dropout=0.0).run()


@planted(fault, "dropout after the add")
def dropout_on_stream(layer: Layer) -> Tensor:
    return remade(layer, DropoutOnStream)


@planted(fault, "dropout without 1/(1−p)")
def dropout_unscaled(layer: Layer) -> Tensor:
    return remade(layer, DropoutUnscaled)


@planted(fault, "top_k ignored: one expert")
def top_k_ignored(layer: Layer) -> Tensor:
    return replace(layer, top_k=1).run()


@planted(fault, "the residual is detached: no gradient through it")
def residual_detached(layer: Layer) -> Tensor:
    return layer.run() - layer.x + layer.x.detach()


@planted(fault, "the norm's weight gets no gradient")
def norm_weight_detached(layer: Layer) -> Tensor:
    w = layer.params["norm1.weight"]
    return replace(layer, params={**layer.params, "norm1.weight": w.detach()}).run() + 0 * w.sum()


@planted(benign, "as written, in float32 inside", arithmetic={"internal": "float32"})
def in_float32(layer: Layer) -> Tensor:
    if layer.x.dtype not in (torch.float16, torch.bfloat16):
        return layer.run()
    wide = {name: w.float() for name, w in layer.params.items() if isinstance(w, Tensor)}
    return replace(layer, x=layer.x.float(), params=wide).run().to(layer.x.dtype)


@planted(benign, "gate and up fused")
def fused_gate_and_up(layer: Layer) -> Tensor:
    class Fused(Layer):
        def feed(self, t: Tensor) -> Tensor:
            if self.ffn != "swiglu":
                return super().feed(t)
            gate, up = (t @ torch.cat([self.params["ffn.w_gate"], self.params["ffn.w_up"]]).mT).chunk(2, -1)
            return (self.act(gate) * up) @ self.params["ffn.w_down"].mT

    return remade(layer, Fused)
