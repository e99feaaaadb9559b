"""What must hold of residual connections, layer upon layer: DN-2.

A stack is made of calls of the implementation; its gradients are led back call by call. An example is decided where the formula
itself is clear of the thresholds of the statement, see `own_rounding.within`.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from assay import registry
from assay.cases import Example, generator
from assay.hosting import Recipe
from assay.recipes import build
from assay.spec.own_rounding import of_full_precision, within
from assay.spec.residual import conduct, spec
from assay.subject import Subject

SHALLOW, DEEP = 6, 60  # layers, of two sub-layers each
RATE = 2.0**-10  # of the one step, so small that outputs move in proportion to it
WITHIN, FAR = 2.0, 10.0  # the statement's "within ×2"; "far below" is an order of magnitude

Weights = Mapping[str, torch.Tensor]
Forward = Callable[[torch.Tensor, Weights], torch.Tensor]
Backward = Callable[[torch.Tensor, Weights, torch.Tensor], tuple[torch.Tensor, Weights]]


@spec.holds("DN-2", kills=("deepnorm_alpha_ignored", "deepnorm_alpha_on_the_branch"), rests_on=(conduct["form"],), gradient=True,
            needs=("alpha", "placement"), dtypes=("float32",), examples=3,
            given={"B": 2, "T": 4, "C": 16, "placement": "deepnorm", "alpha": 2.0, "sublayer": "linear", "family": "normal",
                   "layout": "contiguous"})
def one_step_moves_deep_and_shallow_stacks_alike(residual: Subject, example: Example) -> None:
    """One step of gradient descent moves a DeepNorm stack of 60 layers as far as one of 6, and far less than a post-norm stack.

    Alpha and beta are those that are published for encoders: (2N)^¼, and (8N)^−¼ on the matrices.
    """
    weight = torch.ones(example.x.shape[-1], dtype=example.dtype)
    calm = example.but(norm=Recipe(example.norm.name, {**example.norm.parameters, "weight": weight}))
    of_full_precision(residual)
    found = _moves(calm, *_sides(residual, calm), example.dtype)
    exact, rounded = (_moves(calm, *_exact_sides(calm, dtype), dtype) for dtype in (torch.float64, example.dtype))
    assert within("depth", 1 / WITHIN, WITHIN, found, exact=exact, rounded=rounded, expected=f"1, within a factor of {WITHIN:g}",
                  text=f"one step moves {DEEP} layers by another amount than {SHALLOW}")
    assert within("post-norm", FAR, math.inf, found, exact=exact, rounded=rounded, expected=f"{FAR:g} times as far, or more",
                  text="one step moves a post-norm stack not much further")


Sides = tuple[Callable[[str, float], Forward], Callable[[str, float], Backward]]


def _sides(residual: Subject, example: Example) -> Sides:
    """Forward and backward of one sub-layer by the implementation."""
    def call(x: torch.Tensor, weights: Weights, placement: str, alpha: float) -> dict[str, Any]:
        scaled = {"alpha": alpha} if placement == "deepnorm" else {}
        return {"x": x, "sublayer": Recipe("relu_mlp", dict(weights)), "norm": example.norm, "placement": placement, **scaled}

    def forward(placement: str, alpha: float) -> Forward:
        return lambda x, weights: residual.values(**call(x, weights, placement, alpha)).to(example.dtype)

    def backward(placement: str, alpha: float) -> Backward:
        def lead(x: torch.Tensor, weights: Weights, above: torch.Tensor) -> tuple[torch.Tensor, Weights]:
            found = residual.answer(_wrt=("x", "sublayer"), _upstream=(above,), **call(x, weights, placement, alpha)).gradients
            known = {name: torch.zeros_like(x) if part is None else part for name, part in found.items()}
            return known.get("x", torch.zeros_like(x)), {
                name: known.get(f"sublayer/{name}", torch.zeros_like(weight)) for name, weight in weights.items()}
        return lead

    return forward, backward


def _exact_sides(example: Example, dtype: torch.dtype) -> Sides:
    """The same by the formula."""
    formula = registry.reference("residual").residual
    norm = build(Recipe(example.norm.name, {name: value.to(dtype) if isinstance(value, torch.Tensor) else value
                                            for name, value in example.norm.parameters.items()}))

    def forward(placement: str, alpha: float) -> Forward:
        return lambda x, weights: formula(x, build(Recipe("relu_mlp", dict(weights))), norm, placement=placement, alpha=alpha)

    def backward(placement: str, alpha: float) -> Backward:
        def lead(x: torch.Tensor, weights: Weights, above: torch.Tensor) -> tuple[torch.Tensor, Weights]:
            leaves = [one.detach().requires_grad_() for one in (x, *weights.values())]
            with torch.enable_grad():
                out = forward(placement, alpha)(leaves[0], dict(zip(weights, leaves[1:], strict=True)))
            found = torch.autograd.grad(out, leaves, above)
            return found[0], dict(zip(weights, found[1:], strict=True))
        return lead

    return forward, backward


def _moves(example: Example, forward: Callable[[str, float], Forward], backward: Callable[[str, float], Backward],
           dtype: torch.dtype) -> dict[str, float]:
    """How far one step moves the output: a deep DeepNorm stack's over a shallow one's, a post-norm stack's over the deep one's."""
    moves = {}
    for name, layers, placement in (("shallow", SHALLOW, "deepnorm"), ("deep", DEEP, "deepnorm"), ("post", DEEP, "post")):
        alpha, beta = ((2 * layers) ** 0.25, (8 * layers) ** -0.25) if placement == "deepnorm" else (1.0, 1.0)
        stack = _stack(example, 2 * layers, beta, dtype)
        moves[name] = _moved(example.x.to(dtype), stack, forward(placement, alpha), backward(placement, alpha), example)
    return {"depth": _over(moves["deep"], moves["shallow"]), "post-norm": _over(moves["post"], moves["deep"])}


def _over(one: float, other: float) -> float:
    return one / other if other else math.inf


def _stack(example: Example, count: int, beta: float, dtype: torch.dtype) -> list[Weights]:
    """Matrices of deviation beta/√(inputs), rounded to the type under test."""
    source, width = generator(example.configuration.seed, "stack"), example.x.shape[-1]
    deviation = beta / width**0.5
    return [{name: (deviation * torch.randn(width, width, generator=source, dtype=torch.float64)).to(example.dtype).to(dtype)
             for name in ("w_in", "w_out")} for _ in range(count)]


def _moved(x: torch.Tensor, stack: Sequence[Weights], forward: Forward, backward: Backward, example: Example) -> float:
    inputs = [x]
    for weights in stack:
        inputs.append(forward(inputs[-1], weights))
    before = inputs.pop()
    above = example.values("above", *x.shape, family="normal").to(x.dtype)
    stepped: list[Weights] = []
    for given, weights in zip(reversed(inputs), reversed(stack), strict=True):
        above, gradients = backward(given, weights, above)
        stepped.append({name: weight - RATE * gradients[name] for name, weight in weights.items()})
    after = x
    for weights in reversed(stepped):
        after = forward(after, weights)
    return float((after.double() - before.double()).norm())
