"""Planted faults of the decoder stack, and unusual ways that are right."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from assay.faults.block import DropoutAlways, Layer, Params
from assay.registry import benign, fault

NOT_EXPRESSIBLE = {"BUG-062": "a decoding step: the call has no cache; the query of cross-attention from the memory is planted"}


@dataclass(frozen=True)
class Stack:
    """One call."""

    y: Tensor
    memory: Tensor
    layers: Sequence[Params]
    options: dict[str, Any]
    mask: Tensor | None
    memory_mask: Tensor | None

    def run(self, kind: type[Layer] = Layer, **changes: Any) -> Tensor:
        """Layer by layer, with options changed."""
        y = self.y
        options = {**self.options, "causal": True, "mask": self.mask, "memory": self.memory,
                   "memory_mask": self.memory_mask, **changes}
        for depth, params in enumerate(self.layers):
            y = kind(y, params, **{**options, "seed": options["seed"] + 3 * depth}).run()
        return y


Way = Callable[[Stack], Tensor]


def planted(mark: Callable[..., Any], summary: str, origin: str = "", **extra: Any) -> Callable[[Way], Way]:
    """Give a function of a stack the signature of the kind, under its own name, and register it."""
    def register(wrong: Way) -> Way:
        def decoder(y: Tensor, memory: Tensor, layers: Sequence[Params], *, num_heads: int, mask: Tensor | None = None,
                    memory_mask: Tensor | None = None, num_kv_heads: int | None = None, placement: str = "pre",
                    norm: str = "rms", ffn: str = "swiglu", activation: str = "silu", positions: Tensor | None = None,
                    dropout: float = 0.0, training: bool = False, seed: int = 0, eps: float = 1e-6,
                    top_k: int | None = None) -> Tensor:
            options = {"num_heads": num_heads, "num_kv_heads": num_kv_heads, "placement": placement, "norm": norm, "ffn": ffn,
                       "activation": activation, "positions": positions, "dropout": dropout, "training": training,
                       "seed": seed, "eps": eps, "top_k": top_k}
            return wrong(Stack(y, memory, layers, options, mask, memory_mask))

        decoder.__name__ = decoder.__qualname__ = wrong.__name__
        decoder.__module__, decoder.__doc__ = wrong.__module__, summary
        mark("decoder", summary=summary, **({"origin": origin} if mark is fault else {}), **extra)(decoder)
        return wrong

    return register


@planted(fault, "dropout in evaluation too", "BUG-099")
def dropout_in_evaluation(s: Stack) -> Tensor:
    return s.run(DropoutAlways)


@planted(fault, "no dropout in training")
def dropout_ignored(s: Stack) -> Tensor:
    return s.run(dropout=0.0)


class CrossAttentionWithoutDropout(Layer):
    """Dropout after self-attention and feed-forward network alone."""

    def dropped(self, t: Tensor, index: int) -> Tensor:
        return t if index == 1 else super().dropped(t, index)


@planted(fault, "no dropout after the cross-attention")
def cross_attention_without_dropout(s: Stack) -> Tensor:
    return s.run(CrossAttentionWithoutDropout)


@planted(fault, "not causal")
def not_causal(s: Stack) -> Tensor:
    return s.run(causal=False)


@planted(fault, "a target mask replaces causal", "BUG-029")
def mask_replaces_causal(s: Stack) -> Tensor:
    return s.run(causal=s.mask is None)


@planted(fault, "target mask ignored")
def mask_ignored(s: Stack) -> Tensor:
    return s.run(mask=None)


@planted(fault, "memory mask ignored", "BUG-039")
def memory_mask_ignored(s: Stack) -> Tensor:
    return s.run(memory_mask=None)


@planted(fault, "a mask over a memory of a single token is ignored: softmax over one key is 1")
def memory_mask_of_one_token_ignored(s: Stack) -> Tensor:
    return s.run(memory_mask=s.memory_mask if s.memory.shape[1] > 1 else None)


@planted(fault, "the target mask is used over the memory where the lengths agree")
def target_mask_over_memory(s: Stack) -> Tensor:
    same = s.y.shape[1] == s.memory.shape[1]
    return s.run(memory_mask=s.mask if same else s.memory_mask)


@planted(fault, "cross-attention is causal over the memory", "BUG-041")
def cross_attention_causal(s: Stack) -> Tensor:
    t, n = s.y.shape[1], s.memory.shape[1]
    early = torch.ones(t, n, dtype=torch.bool, device=s.y.device).tril().expand(s.y.shape[0], t, n)
    if s.memory_mask is not None:
        early = early & (s.memory_mask if s.memory_mask.dim() == 3 else s.memory_mask[:, None])
    return s.run(memory_mask=early)


@planted(fault, "cross-attention left out")
def cross_attention_left_out(s: Stack) -> Tensor:
    return s.run(memory=None)


class CrossFirst(Layer):
    """Cross-attention before self-attention."""

    def run(self) -> Tensor:
        h = self.around(self.x, "norm3", 1, lambda t: self.attention(t, "cross", self.memory))
        return self.around(self.around(h, "norm1", 0, self.attention), "norm2", 2, self.feed)


class CrossLast(Layer):
    """Cross-attention after the feed-forward network."""

    def run(self) -> Tensor:
        h = self.around(self.around(self.x, "norm1", 0, self.attention), "norm2", 2, self.feed)
        return self.around(h, "norm3", 1, lambda t: self.attention(t, "cross", self.memory))


class CrossWithSelfWeights(Layer):
    """Cross-attention through the self-attention's weights."""

    def attention(self, t: Tensor, name: str = "attn", context: Tensor | None = None) -> Tensor:
        return super().attention(t, "attn", context)


class CrossOverTarget(Layer):
    """Cross-attention reads the target where the lengths allow it."""

    def attention(self, t: Tensor, name: str = "attn", context: Tensor | None = None) -> Tensor:
        return super().attention(t, name, t if context is not None and context.shape == t.shape else context)


class MemoryNormalised(Layer):
    """The memory goes through norm3 as well."""

    def attention(self, t: Tensor, name: str = "attn", context: Tensor | None = None) -> Tensor:
        return super().attention(t, name, None if context is None else self.normed("norm3", context))


class QueryFromMemory(Layer):
    """Queries and keys of cross-attention swapped where the lengths allow it."""

    def attention(self, t: Tensor, name: str = "attn", context: Tensor | None = None) -> Tensor:
        if context is None or context.shape != t.shape:
            return super().attention(t, name, context)
        return super().attention(context, name, t)


class NormsSwapped(Layer):
    """norm2 before cross-attention, norm3 before the feed-forward network."""

    def normed(self, name: str, t: Tensor) -> Tensor:
        return super().normed({"norm2": "norm3", "norm3": "norm2"}.get(name, name), t)


class CrossWithoutResidual(Layer):
    """Cross-attention replaces the stream."""

    def around(self, x: Tensor, name: str, index: int, f: Callable[[Tensor], Tensor]) -> Tensor:
        return super().around(x, name, index, f) - (x if name == "norm3" and self.placement != "post" else 0)


@planted(fault, "cross-attention before self-attention")
def cross_attention_first(s: Stack) -> Tensor:
    return s.run(CrossFirst)


@planted(fault, "cross-attention after the feed-forward network")
def cross_attention_last(s: Stack) -> Tensor:
    return s.run(CrossLast)


@planted(fault, "cross-attention through the self-attention's weights")
def cross_with_self_weights(s: Stack) -> Tensor:
    return s.run(CrossWithSelfWeights)


@planted(fault, "cross-attention reads the target where the lengths allow it")
def cross_over_target(s: Stack) -> Tensor:
    return s.run(CrossOverTarget)


@planted(fault, "the memory is normalised too")
def memory_normalised(s: Stack) -> Tensor:
    return s.run(MemoryNormalised)


@planted(fault, "queries come from the memory, keys from the target, where the lengths allow it", "BUG-062")
def query_from_memory(s: Stack) -> Tensor:
    return s.run(QueryFromMemory)


@planted(fault, "norm2 and norm3 swapped")
def norms_swapped(s: Stack) -> Tensor:
    return s.run(NormsSwapped)


@planted(fault, "cross-attention replaces the stream: no residual")
def cross_attention_without_residual(s: Stack) -> Tensor:
    return s.run(CrossWithoutResidual)


@planted(fault, "every sample reads the first sample's memory")
def memory_of_first_sample(s: Stack) -> Tensor:
    return s.run(memory=s.memory[:1].expand(s.memory.shape) if len(s.memory) else s.memory)


@planted(fault, "later layers do not see the memory")
def memory_in_first_layer_only(s: Stack) -> Tensor:
    first = Stack(s.y, s.memory, s.layers[:1], s.options, s.mask, s.memory_mask).run()
    rest = {**s.options, "seed": s.options["seed"] + 3}
    return Stack(first, s.memory, s.layers[1:], rest, s.mask, s.memory_mask).run(memory=None)


@planted(fault, "the last memory position is never read")
def last_memory_position_unread(s: Stack) -> Tensor:
    n = s.memory.shape[1]
    keep = torch.ones(s.memory.shape[:2], dtype=torch.bool, device=s.y.device)
    keep[:, -1:] = n < 2
    if s.memory_mask is not None:
        keep = s.memory_mask & (keep if s.memory_mask.dim() == 2 else keep[:, None])
    return s.run(memory_mask=keep)


@planted(fault, "no gradient to the memory")
def memory_detached(s: Stack) -> Tensor:
    return s.run(memory=s.memory.detach()) + 0 * s.memory.sum()


@planted(fault, "layers run from the last to the first")
def layers_reversed(s: Stack) -> Tensor:
    return Stack(s.y, s.memory, list(s.layers)[::-1], s.options, s.mask, s.memory_mask).run()


@planted(benign, "masks spelled out over queries and keys")
def masks_spelled_out(s: Stack) -> Tensor:
    def spelled(mask: Tensor | None) -> Tensor | None:
        return mask if mask is None or mask.dim() == 3 else mask[:, None].expand(-1, s.y.shape[1], -1)

    return s.run(mask=spelled(s.mask), memory_mask=spelled(s.memory_mask))


@planted(benign, "the causal mask as an explicit one")
def causal_as_mask(s: Stack) -> Tensor:
    t = s.y.shape[1]
    keep = torch.ones(t, t, dtype=torch.bool, device=s.y.device).tril().expand(s.y.shape[0], t, t)
    if s.mask is not None:
        keep = keep & (s.mask if s.mask.dim() == 3 else s.mask[:, None])
    return s.run(causal=False, mask=keep)
