"""Random attention and softmax cases, and how far a way of computing them lies from its bounds."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from assay.numbers.bound import Bounded
from assay.numbers.evaluate import Evaluation

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


@dataclass(frozen=True)
class Case:
    """One drawn call."""

    arguments: dict[str, Any]
    upstream: torch.Tensor
    dtype: torch.dtype
    label: str


class Draw:
    """Small choices from one seed."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def choice(self, *options: Any) -> Any:
        return options[int(torch.randint(len(options), (1,), generator=self.generator))]

    def numbers(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self.generator)

    def flags(self, *shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=self.generator) < 0.7


SIZES = {"normal": 1.0, "peaked4": 4.0, "peaked16": 16.0, "small": 1e-4, "cancelling": 1.0, "integers": 1.0}


def _family(draw: Draw, family: str, *shape: int) -> torch.Tensor:
    drawn = draw.numbers(*shape)
    if family == "integers":
        return (2.0 * drawn).round()
    if family == "cancelling" and shape[-1] > 1:
        half = shape[-1] // 2
        drawn = drawn * 4.0
        drawn[..., half : 2 * half] = -drawn[..., :half] * (1.0 + 0.01 * draw.numbers(*shape)[..., :half])
    return drawn * SIZES[family]


def attention_case(seed: int, dtype: torch.dtype) -> Case:
    """Dims, masks and values of one attention call."""
    draw = Draw(seed)
    groups, share = draw.choice(1, 1, 2, 3), draw.choice(1, 1, 2)
    batch, heads = draw.choice(1, 2), groups * share
    tq = draw.choice(1, 2, 5, 17, 33, 33, 65, 130)
    tk, d, dv = draw.choice(tq, tq, 1, 7, 40), draw.choice(1, 4, 16, 16, 31, 64), draw.choice(1, 8, 16)
    family = draw.choice(*SIZES)
    q, k = (_family(draw, family, batch, n, t, d).to(dtype) for n, t in ((heads, tq), (groups, tk)))
    v = (_family(draw, "small" if family == "small" else draw.choice("normal", "integers"), batch, groups, tk, dv)).to(
        dtype
    )
    options: dict[str, Any] = {}
    if draw.choice(True, False):
        options["causal"] = True
    if draw.choice(True, False, False):
        options["mask"] = draw.flags(
            *draw.choice((tq, tk), (batch, 1, tq, tk), (batch, heads, tq, tk), (batch, 1, 1, tk))
        )
    if draw.choice(True, False, False):
        options["bias"] = draw.numbers(heads, tq, tk).to(dtype)
    if draw.choice(True, False, False):
        options["window"] = draw.choice(1, 3, 16)
    if draw.choice(True, False, False):
        options["scale"] = draw.choice(0.25, 0.3, 1.0)
    if draw.choice(True, False, False, False):
        options["softcap"] = draw.choice(5.0, 30.0)
    upstream = draw.numbers(batch, heads, tq, dv).to(dtype)
    label = f"{family} B{batch} H{heads}/{groups} Tq{tq} Tk{tk} D{d} Dv{dv} {sorted(options)} seed={seed}"
    return Case({"q": q, "k": k, "v": v, **options}, upstream, dtype, label)


def softmax_case(seed: int, dtype: torch.dtype) -> Case:
    """One softmax call."""
    draw = Draw(seed)
    shape = draw.choice((1,), (7,), (3, 33), (2, 5, 130), (4, 1), (2, 300))
    family = draw.choice(*SIZES)
    x = _family(draw, family, *shape).to(dtype)
    if draw.choice(True, False) and shape[-1] > 1:
        x[..., 1:] = x[..., 1:].masked_fill(~draw.flags(*shape)[..., 1:], -math.inf)
    dim = draw.choice(-1, -1, 0)
    if dim == 0:
        x = x.masked_fill(x == -math.inf, 0.0)
    return Case({"x": x, "dim": dim}, draw.numbers(*shape).to(dtype), dtype, f"{family} {shape} dim={dim} seed={seed}")


def computed(way: Callable[..., torch.Tensor], case: Case, wrt: tuple[str, ...]) -> dict[str, torch.Tensor]:
    """Output and gradients of one way."""
    leaves = {name: case.arguments[name].clone().requires_grad_() for name in wrt}
    out = way(**{**case.arguments, **leaves})
    out.backward(case.upstream)
    grads = {name: torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for name, leaf in leaves.items()}
    return {"out": out.detach(), **grads}


def worst(actual: torch.Tensor, expected: Bounded) -> float:
    """The largest error in units of the bar; infinite where NaN or an exact value is missed."""
    apart = (actual.double() - expected.value).abs()
    same = (actual.double() == expected.value) | (actual.isnan() & expected.value.isnan())
    ratio = torch.where(same, 0.0, apart / expected.bar)
    return float(ratio.nan_to_num(nan=math.inf).max()) if ratio.numel() else 0.0


def ratios(actual: dict[str, torch.Tensor], expected: Evaluation) -> dict[str, float]:
    """Error over bar of the output and of every gradient."""
    return {
        name: worst(value, expected.outputs[0] if name == "out" else expected.gradients[name])
        for name, value in actual.items()
    }
