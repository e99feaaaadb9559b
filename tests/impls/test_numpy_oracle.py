"""The second oracle by itself: its hand-written gradients against differences of its own forward, the reference nowhere in sight.

`assay check` asks for some gradients and options only; here every argument that has a gradient is asked.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from assay import registry

Example = tuple[str, str, dict[str, Any]]


class Draw:
    """Float64 tensors of unit deviation from one generator."""

    def __init__(self) -> None:
        self.source = torch.Generator().manual_seed(0)

    def __call__(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.source, dtype=torch.float64)

    def mask(self, *shape: int) -> Tensor:
        return torch.rand(*shape, generator=self.source) < 0.6


def attention(d: Draw) -> Iterator[Example]:
    shared: dict[str, Any] = {"q": d(2, 4, 3, 2), "k": d(2, 2, 5, 2), "v": d(2, 2, 5, 3)}
    everything = {"bias": d(4, 3, 5), "softcap": 1.5, "scale": -0.7, "window": (2, 1), "mask": d.mask(2, 1, 3, 5)}
    for name in ("numpy-attention", "numpy-attention-top-left"):
        yield from (("attention", name, {**shared, **options}) for options in (
            {}, {"causal": True}, {"mask": d.mask(2, 4, 3, 5)}, {"window": 2}, everything, {**everything, "causal": True}))
        yield "attention", name, {**shared, "mask": torch.zeros(3, 5, dtype=torch.bool)}  # every row is empty


def multi_head(d: Draw) -> Iterator[Example]:
    weights: dict[str, Any] = {"x": d(2, 3, 4), "w_q": d(8, 4), "w_k": d(4, 4), "w_v": d(6, 4), "w_o": d(5, 12), "num_heads": 4,
                               "num_kv_heads": 2, "b_q": d(8), "b_k": d(4), "b_v": d(6), "b_o": d(5), "w_gate": d(12, 4)}
    for options in ({"positions": torch.tensor([[0, 1, 5], [7, 8, 9]]), "base": 10.0, "causal": True},
                    {"context": d(2, 5, 4), "key_mask": d.mask(2, 5)},
                    {"values": d(2, 3, 4), "mask": d.mask(2, 3, 3)},
                    {"context": d(2, 5, 4), "values": d(2, 5, 4), "mask": d.mask(3, 5), "window": 2}):
        yield "multi_head_attention", "numpy-multi-head-attention", {**weights, **options}


def others(d: Draw) -> Iterator[Example]:
    for dim in (-1, 0, 1):
        yield "softmax", "numpy-softmax", {"x": d(3, 2, 4), "dim": dim}
    yield "layer_norm", "numpy-layer-norm", {"x": d(2, 3, 5), "weight": d(5), "bias": d(5), "eps": 1e-5}
    yield "rms_norm", "numpy-rms-norm", {"x": d(2, 3, 5), "weight": d(5), "eps": 1e-5}
    for activation in ("relu", "gelu", "gelu_tanh", "silu"):
        yield "feed_forward", "numpy-feed-forward", {
            "x": d(2, 3, 4), "w_in": d(5, 4), "b_in": d(5), "w_out": d(4, 5), "b_out": d(4), "activation": activation}
        yield "gated_feed_forward", "numpy-gated-feed-forward", {
            "x": d(2, 3, 4), "w_gate": d(5, 4), "w_up": d(5, 4), "w_down": d(4, 5), "activation": activation}
    targets = torch.tensor([1, -100, 0, 3])
    for reduction in ("mean", "sum", "none"):
        yield "cross_entropy", "numpy-cross-entropy", {
            "logits": d(4, 5), "targets": targets, "label_smoothing": 0.2, "reduction": reduction}


EXAMPLES = [one for part in (attention, multi_head, others) for one in part(Draw())]


@pytest.mark.parametrize(("kind", "name", "example"), EXAMPLES, ids=lambda part: part if isinstance(part, str) else "")
def test_hand_written_gradients_are_differences_of_the_forward(kind: str, name: str, example: dict[str, Any]) -> None:
    constant = {"bias"} if kind == "attention" else set()  # of the call's gradients, attention's bias is not asked for
    floating = {n: x.requires_grad_() for n, x in example.items()
                if isinstance(x, Tensor) and x.is_floating_point() and n not in constant}
    function: Callable[..., Tensor] = registry.get(kind, name)

    def of(*tensors: Tensor) -> Tensor:
        return function(**{**example, **dict(zip(floating, tensors, strict=True))})

    assert torch.autograd.gradcheck(of, tuple(floating.values()))


def test_every_oracle_is_tried() -> None:
    declared = {(one.kind, one.name) for one in registry.declarations() if one.builtin and one.name.startswith("numpy-")}
    assert {(kind, name) for kind, name, _ in EXAMPLES} == declared
