"""What must hold of a stack of layers as it grows deeper: PRE-3.

Weights are those of a new model, norms of weight 1. An example is decided where the formula itself is clear of the thresholds, see
`own_rounding.within`.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from assay import registry
from assay.cases import Example
from assay.errors import NotExercisedError
from assay.spec.block_cases import layer_parameters
from assay.spec.encoder import conduct, spec
from assay.spec.own_rounding import of_full_precision, within
from assay.subject import Subject

SHALLOW, DEEP = 4, 36  # layers: the root of their ratio is 3
WITHIN = 2.0  # "as 1/√L", and "does not fall", within a factor of 2, as DN-2 has it
LAST = "ffn.w_out"

Pass = Callable[[Example], torch.Tensor]
Back = Callable[[Example, torch.Tensor], Mapping[str, torch.Tensor]]


@spec.holds("PRE-3", kills=("placement_ignored",), rests_on=(conduct["form"],), gradient=True, needs=("placement",), examples=2,
            dtypes=("float32",),
            given={"B": 2, "T": 5, "L": 1, "H": 4, "G": "H", "D": 4, "F": 16, "placement": ("pre", "post"),
                   "norm": ("rms", "layer"), "ffn": "mlp", "activation": ("relu", "silu"), "biases": False, "mask": "none",
                   "positions": "none", "family": "normal", "layout": "contiguous"})
def last_gradient_falls_with_depth_under_pre_norm_alone(encoder: Subject, example: Example) -> None:
    """In a new model the last feed-forward matrix's gradient falls as 1/√L under pre-norm, and does not fall under post-norm.

    Under pre-norm a norm comes last, as in such models. Over the first matrix's gradient it is larger under post-norm, the more so
    the deeper the stack.
    """
    if not all(encoder.declaration.allows("placement", placement) for placement in ("pre", "post")):
        raise NotExercisedError("it declares one placement alone")
    of_full_precision(encoder)
    found, rounded = (_shares(example, *sides) for sides in (_sides(encoder), _exact_sides()))
    exact = _shares(example.but(x=example.x.double()), *_exact_sides())
    falls = (DEEP / SHALLOW) ** 0.5
    for name, low, high, said in (
        ("pre", 1 / (falls * WITHIN), WITHIN / falls, f"about 1/{falls:.0f} of that at {SHALLOW} layers"),
        ("post", 1 / WITHIN, float("inf"), f"half of that at {SHALLOW} layers, or more"),
        ("between", 1.0, float("inf"), "larger under post-norm"), ("deeper", 1.0, float("inf"), "the more so the deeper"),
    ):
        assert within(name, low, high, found, exact=exact, rounded=rounded, text=_SAID[name], expected=said)


_SAID = {
    "pre": f"the last matrix's gradient at {DEEP} layers of pre-norm is another",
    "post": f"the last matrix's gradient falls at {DEEP} layers of post-norm",
    "between": "last over first gradient is no larger under post-norm than under pre-norm",
    "deeper": "last over first gradient under post-norm does not grow beside pre-norm's",
}


def _shares(example: Example, forward: Pass, backward: Back) -> dict[str, float]:
    """Gradients of the deep stack over those of the shallow one; last over first, post-norm's over pre-norm's."""
    last: dict[tuple[str, int], float] = {}
    ratio: dict[tuple[str, int], float] = {}
    for placement in ("pre", "post"):
        for layers in (SHALLOW, DEEP):
            deep = example.but(placement=placement, layers=_new(example, layers))
            gradients = backward(deep, _above(forward(deep), deep))
            first, final = (float(gradients[f"layers/{place}/{LAST}"].double().norm()) for place in (0, layers - 1))
            last[placement, layers], ratio[placement, layers] = final, final / first if first else float("inf")
    between = {layers: ratio["post", layers] / ratio["pre", layers] for layers in (SHALLOW, DEEP)}
    return {"pre": last["pre", DEEP] / last["pre", SHALLOW], "post": last["post", DEEP] / last["post", SHALLOW],
            "between": between[DEEP], "deeper": between[DEEP] / between[SHALLOW]}


def _new(example: Example, layers: int) -> list[dict[str, torch.Tensor]]:
    """Layers of a new model, in the type of x."""
    made = (layer_parameters(example.configuration, example.dtype, f"deep {depth}") for depth in range(layers))
    return [{name: torch.ones_like(w) if name.startswith("norm") and name.endswith("weight") else w for name, w in
             ((name, w.to(example.x.dtype)) for name, w in params.items())} for params in made]


def _above(out: torch.Tensor, example: Example) -> torch.Tensor:
    """The gradient that reaches the stack: under pre-norm through the norm that comes last in such models."""
    drawn = example.values("above", *out.shape, family="normal").to(example.x.dtype)
    if example.arguments.get("placement", "pre") == "post":
        return drawn
    x = out.to(example.x.dtype).detach().requires_grad_()
    with torch.enable_grad():
        centred = x if example.configuration.flags["norm"] == "rms" else x - x.mean(-1, keepdim=True)
        normalised = centred / torch.sqrt((centred * centred).mean(-1, keepdim=True) + 1e-6)
    return torch.autograd.grad(normalised, x, drawn)[0]


def _sides(encoder: Subject) -> tuple[Pass, Back]:
    """By the implementation."""
    def backward(example: Example, above: torch.Tensor) -> Mapping[str, torch.Tensor]:
        wrt = tuple(f"layers/{place}/{LAST}" for place in (0, len(example.layers) - 1))
        found = encoder.answer(_wrt=wrt, _upstream=(above,), **example).gradients
        return {name: torch.zeros(1) if (part := found.get(name)) is None else part for name in wrt}
    return lambda example: encoder.values(**example), backward


def _exact_sides() -> tuple[Pass, Back]:
    """By the formula, in the type of x."""
    formula = registry.reference("encoder").encoder

    def backward(example: Example, above: torch.Tensor) -> Mapping[str, torch.Tensor]:
        places, layers = (0, len(example.layers) - 1), [dict(params) for params in example.layers]
        for place in places:
            layers[place][LAST] = layers[place][LAST].detach().requires_grad_()
        with torch.enable_grad():
            out = formula(**example.but(layers=layers).arguments)
        found = torch.autograd.grad(out, [layers[place][LAST] for place in places], above)
        return {f"layers/{place}/{LAST}": part for place, part in zip(places, found, strict=True)}

    def forward(example: Example) -> torch.Tensor:
        with torch.no_grad():
            return formula(**example.arguments)
    return forward, backward
