"""How examples of layer_norm and rms_norm are drawn, and what their properties have in common."""
from __future__ import annotations

import math
from typing import Any

import torch

from assay.cases import Cases, Configuration, Example, at_least, draw_values, generator
from assay.contract.declaration import Declaration
from assay.numbers.bound import Bounded, lift

BUDGET = 6_000  # elements of one example


class NormCases(Cases):
    """Tokens of C features in any number of leading axes; eps far below, at and far above the variance.

    size: unit, or scaled so that the variance is about eps ("root_eps"), far below it ("below_eps"), or far above it ("large").
    token: as drawn, all features equal, or all zero.
    """

    dims = {"C": (4, 3, 2, 1, 5, 6, 7, 8, 9, 16, 17, 33, 64, 129, 257, 1025), "T": (3, 2, 1, 5, 0), "B": (2, 1, 3, 0)}
    flags = {
        "rank": ("tokens", "batch", "vector", "deep"), "eps": (1e-5, 1e-6, 0.5, 1e-3, 1e-12),
        "size": ("unit", "root_eps", "below_eps", "large"), "token": ("drawn", "equal", "zero"),
        "weights": ("drawn", "ones"),
    }
    vectors: tuple[str, ...] = ("weight",)

    def adapt(self, configuration: Configuration, claims: Declaration) -> Configuration | None:
        dims = dict(configuration.dims)
        if configuration.flags["eps"] == 0 and "eps" in claims.keywords:  # a token of zeros has no result
            return None
        if not claims.claims("empty"):
            dims = {letter: max(1, size) for letter, size in dims.items()}
        if math.prod(dims.values()) > BUDGET:
            dims.update({letter: 1 for letter in ("B", "T") if claims.allows(letter, 1) and dims[letter] > 1})
        found = Configuration(configuration.kind, dims, configuration.flags, configuration.family, configuration.layout,
                              configuration.seed)
        return found if "eps" in claims.keywords else found.but(eps=claims.conventions["eps"])

    def build(self, configuration: Configuration, dtype: torch.dtype) -> Example:
        flags, seed, width = configuration.flags, configuration.seed, configuration.dims["C"]
        x = draw_values(configuration.family, shape_of(configuration), generator(seed, "x"), torch.float64)
        x = of_kind(x, flags["token"]) * factor(flags["size"], flags["eps"], dtype)
        arguments: dict[str, Any] = {"x": x.to(dtype)}
        for name in self.vectors:
            drawn = on_a_grid(draw_values("normal", (width,), generator(seed, name), torch.float64), dtype)
            arguments[name] = drawn if flags["weights"] == "drawn" else torch.full_like(drawn, float(name == "weight"))
        return Example(configuration, dtype, {**arguments, "eps": flags["eps"]})


def shape_of(configuration: Configuration) -> tuple[int, ...]:
    d = configuration.dims
    return {"tokens": (d["T"], d["C"]), "batch": (d["B"], d["T"], d["C"]), "vector": (d["C"],),
            "deep": (d["B"], 1, d["T"], d["C"])}[configuration.flags["rank"]]


def of_kind(x: torch.Tensor, token: str) -> torch.Tensor:
    """The first token made constant or zero, where that is asked."""
    if token == "drawn" or x.numel() == 0:
        return x
    flat = x.reshape(-1, x.shape[-1]).clone()
    flat[0] = 0.0 if token == "zero" else 3.0
    return flat.reshape(x.shape)


def on_a_grid(weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Weights that 1 can be taken from and added to again in float32 without rounding (in float64 those of that type): modules
    that keep weight − 1 must not lose any."""
    step = 2.0**-48 if dtype == torch.float64 else 2.0**-20
    return ((weight / step).round() * step).to(dtype)


def factor(size: str, eps: float, dtype: torch.dtype) -> float:
    """A power of two, so that scaled values stay exact; in half precision one whose squares stay in range."""
    root = 2.0 ** round(math.log2(eps) / 2)
    return {"unit": 1.0, "root_eps": root, "below_eps": root / 64, "large": 8.0 if dtype == torch.float16 else 64.0}[size]


SOME = {"T": at_least(1), "B": at_least(1)}
TOKENS = {**SOME, "rank": ("tokens", "batch", "deep")}


def usual_eps(eps: float) -> bool:
    """Far from the underflow of half precision."""
    return eps >= 1e-6


def exactly(x: torch.Tensor) -> Bounded:
    """The values as they are, for arithmetic whose own float64 roundings are counted."""
    return lift(x.double(), torch.zeros(x.shape, dtype=torch.float64))


def mean_square(x: torch.Tensor) -> Any:
    """Mean of the squares of every token, last axis kept."""
    exact = exactly(x)
    return (exact * exact).sum(-1, keepdim=True) / x.shape[-1]


def centred(x: torch.Tensor) -> Any:
    exact = exactly(x)
    return exact - exact.sum(-1, keepdim=True) / x.shape[-1]


def variance(x: torch.Tensor) -> Any:
    """The biased variance of every token, last axis kept."""
    deviation = centred(x)
    return (deviation * deviation).sum(-1, keepdim=True) / x.shape[-1]


def mean_zero(x: torch.Tensor) -> torch.Tensor:
    """Features in pairs (a, −a): every token has mean 0 in any arithmetic."""
    even = x[..., 0::2]
    found = torch.zeros_like(x)
    found[..., 0::2] = even
    found[..., 1::2] = -even[..., : x.shape[-1] // 2]
    if x.shape[-1] % 2:
        found[..., -1] = 0.0
    return found


def others_replaced(example: Example) -> Example:
    """All tokens but the first replaced by others, far larger ones."""
    x = example.x.clone()
    rest = x.reshape(-1, x.shape[-1])[1:]
    far = 4.0 if example.dtype == torch.float16 else 64.0  # squares must stay in range
    rest = (example.values("other tokens", *rest.shape, family="normal").double() * far + 2 * far).to(example.dtype)
    return example.but(x=torch.cat([x.reshape(-1, x.shape[-1])[:1], rest]).reshape(x.shape))


def one_feature_grown(example: Example, times: float) -> tuple[Example, torch.Tensor]:
    """One feature of every token multiplied; and which features were left."""
    place = example.integer("grown feature", 0, example.x.shape[-1] - 1)
    x = example.x.clone()
    x[..., place] = (x[..., place] + 1) * times
    left = torch.arange(x.shape[-1]) != place
    return example.but(x=x), left
