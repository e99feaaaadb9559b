"""Planted faults of the encoder stack, and unusual ways that are right."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from assay.faults.block import DropoutAlways, Layer, NoAttentionResidual, Params
from assay.registry import benign, fault

NOT_EXPRESSIBLE: dict[str, str] = {}


@dataclass(frozen=True)
class Stack:
    """One call."""

    x: Tensor
    layers: Sequence[Params]
    options: dict[str, Any]
    mask: Tensor | None

    def run(self, kind: type[Layer] = Layer, **changes: Any) -> Tensor:
        """Layer by layer, with options changed."""
        x, options = self.x, {**self.options, "causal": False, "mask": self.mask, **changes}
        for depth, params in enumerate(self.layers):
            x = kind(x, params, **{**options, "seed": options["seed"] + 3 * depth}).run()
        return x


Way = Callable[[Stack], Tensor]


def planted(mark: Callable[..., Any], summary: str, origin: str = "", **extra: Any) -> Callable[[Way], Way]:
    """Give a function of a stack the signature of the kind, under its own name, and register it."""
    def register(wrong: Way) -> Way:
        def encoder(x: Tensor, layers: Sequence[Params], *, num_heads: int, mask: Tensor | None = None,
                    num_kv_heads: int | None = None, placement: str = "pre", norm: str = "rms", ffn: str = "swiglu",
                    activation: str = "silu", positions: Tensor | None = None, dropout: float = 0.0, training: bool = False,
                    seed: int = 0, eps: float = 1e-6, top_k: int | None = None) -> Tensor:
            options = {"num_heads": num_heads, "num_kv_heads": num_kv_heads, "placement": placement, "norm": norm, "ffn": ffn,
                       "activation": activation, "positions": positions, "dropout": dropout, "training": training,
                       "seed": seed, "eps": eps, "top_k": top_k}
            return wrong(Stack(x, layers, options, mask))

        encoder.__name__ = encoder.__qualname__ = wrong.__name__
        encoder.__module__, encoder.__doc__ = wrong.__module__, summary
        mark("encoder", summary=summary, **({"origin": origin} if mark is fault else {}), **extra)(encoder)
        return wrong

    return register


@planted(fault, "dropout in evaluation too", "BUG-099")
def dropout_in_evaluation(s: Stack) -> Tensor:
    return s.run(DropoutAlways)


@planted(fault, "no dropout in training")
def dropout_ignored(s: Stack) -> Tensor:
    return s.run(dropout=0.0)


@planted(fault, "dropout in the first layer alone")
def dropout_in_first_layer_only(s: Stack) -> Tensor:
    first = Stack(s.x, s.layers[:1], s.options, s.mask).run()
    return Stack(first, s.layers[1:], {**s.options, "dropout": 0.0}, s.mask).run()


@planted(fault, "causal")
def causal(s: Stack) -> Tensor:
    return s.run(causal=True)


@planted(fault, "mask ignored")
def mask_ignored(s: Stack) -> Tensor:
    return s.run(mask=None)


@planted(fault, "a mask over a single token is ignored: softmax over one key is 1")
def mask_of_one_token_ignored(s: Stack) -> Tensor:
    return s.run(mask=s.mask if s.x.shape[1] > 1 else None)


@planted(fault, "the mask reaches the first layer alone")
def mask_in_first_layer_only(s: Stack) -> Tensor:
    first = Stack(s.x, s.layers[:1], s.options, s.mask).run()
    return Stack(first, s.layers[1:], {**s.options, "seed": s.options["seed"] + 3}, None).run()


@planted(fault, "the mask is inverted", "BUG-017")
def mask_inverted(s: Stack) -> Tensor:
    return s.run(mask=None if s.mask is None else ~s.mask.bool())


@planted(fault, "the last layer is left out")
def last_layer_left_out(s: Stack) -> Tensor:
    return Stack(s.x, s.layers[:-1], s.options, s.mask).run()


@planted(fault, "every layer uses the first one's weights")
def first_layer_repeated(s: Stack) -> Tensor:
    return Stack(s.x, [s.layers[0]] * len(s.layers) if s.layers else [], s.options, s.mask).run()


@planted(fault, "layers run from the last to the first")
def layers_reversed(s: Stack) -> Tensor:
    return Stack(s.x, list(s.layers)[::-1], s.options, s.mask).run()


@planted(fault, "every layer reads the stack's input; outputs are added")
def layers_in_parallel(s: Stack) -> Tensor:
    return sum((Stack(s.x, [p], s.options, s.mask).run() - s.x for p in s.layers), s.x)


@planted(fault, "the last post-norm layer skips its norm", "BUG-156")
def last_norm_skipped(s: Stack) -> Tensor:
    class Open(Layer):
        def around(self, x: Tensor, name: str, index: int, f: Callable[[Tensor], Tensor]) -> Tensor:
            return x + self.dropped(f(x), index) if name == "norm2" else super().around(x, name, index, f)

    if s.options["placement"] != "post" or not s.layers:
        return s.run()
    before = Stack(s.x, s.layers[:-1], s.options, s.mask).run()
    last = {**s.options, "seed": s.options["seed"] + 3 * (len(s.layers) - 1)}
    return Stack(before, s.layers[-1:], last, s.mask).run(Open)


@planted(fault, "no residual around the attention")
def attention_without_residual(s: Stack) -> Tensor:
    return s.run(NoAttentionResidual)


@planted(fault, "samples of a batch are mixed a little")
def samples_mixed(s: Stack) -> Tensor:
    return s.run() + 0.1 * (s.x.mean(0, keepdim=True) - s.x.mean(0, keepdim=True).mean())


@planted(fault, "a final norm that nobody asked for")
def final_norm_added(s: Stack) -> Tensor:
    x = s.run()
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)


@planted(fault, "placement ignored")
def placement_ignored(s: Stack) -> Tensor:
    return s.run(placement="pre")


@planted(fault, "positions ignored")
def positions_ignored(s: Stack) -> Tensor:
    return s.run(positions=None)


@planted(fault, "positions added unasked: order is seen")
def positions_unasked(s: Stack) -> Tensor:
    even = (s.x.shape[-1] // s.options["num_heads"]) % 2 == 0
    return s.run(positions=torch.arange(s.x.shape[1], device=s.x.device)) if even else s.run(causal=True)


@planted(fault, "the last position is seen by no other")
def last_position_unseen(s: Stack) -> Tensor:
    t = s.x.shape[1]
    keep = torch.ones(s.x.shape[0], t, dtype=torch.bool, device=s.x.device)
    keep[:, -1:] = t < 2
    return s.run(mask=keep if s.mask is None else (s.mask & keep if s.mask.dim() == 2 else s.mask & keep[:, None]))


@planted(fault, "the gradient stops between layers")
def gradient_stops_between_layers(s: Stack) -> Tensor:
    x = s.x
    for depth, params in enumerate(s.layers):
        start = x if depth == 0 else x.detach()
        x = Stack(start, [params], {**s.options, "seed": s.options["seed"] + 3 * depth}, s.mask).run()
    return x


@planted(benign, "sample by sample")
def sample_by_sample(s: Stack) -> Tensor:
    if not s.x.shape[0] or s.options["training"]:
        return s.run()
    rows = []
    for b in range(s.x.shape[0]):
        options, positions = dict(s.options), s.options["positions"]
        if positions is not None and positions.dim() == 2:
            options["positions"] = positions[b : b + 1]
        rows.append(Stack(s.x[b : b + 1], s.layers, options, None if s.mask is None else s.mask[b : b + 1]).run())
    return torch.cat(rows)


@planted(benign, "a padding mask spelled out over queries and keys")
def mask_spelled_out(s: Stack) -> Tensor:
    if s.mask is None or s.mask.dim() != 2:
        return s.run()
    return s.run(mask=s.mask[:, None, :].expand(-1, s.x.shape[1], -1))


@planted(fault, "every layer is computed twice, once for nothing")
def work_done_twice(s: Stack) -> Tensor:
    return s.run() + 0 * s.run()
