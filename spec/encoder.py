"""What must hold of a stack of bidirectional layers: ENC-1, ENC-2, DEC-3, PRE-2, RES-3, MHA-9, COST-1, VIT-2 of a stack."""
from __future__ import annotations

from typing import Any

import torch

from assay.cases import Configuration, Example, draw_values, generator
from assay.ledger import fact, identical
from assay.properties import Specification
from assay.spec.block_cases import (
    LAYER_FLAGS,
    SILENT_FEED,
    LayerCases,
    drawn_mask,
    layer_options,
    layer_parameters,
    scaled,
    without_keys,
)
from assay.spec.conduct import add_conduct
from assay.subject import Subject


class StackCases(LayerCases):
    """As layers, L of them; few layers, for bars grow with each."""

    kind = "encoder"
    dims = {"L": (2, 1, 3), **{letter: sizes[:3] for letter, sizes in LayerCases.dims.items()}, "T": (3, 1, 2, 5, 8)}
    flags = LAYER_FLAGS

    def build(self, configuration: Configuration, dtype: torch.dtype) -> Example:
        d, seed = configuration.dims, configuration.seed
        arguments: dict[str, Any] = {
            "x": draw_values(configuration.family, (d["B"], d["T"], d["H"] * d["D"]), generator(seed, "x"), dtype),
            "layers": [layer_parameters(configuration, dtype, f"layer {depth}") for depth in range(d["L"])],
            **layer_options(configuration)}
        made = drawn_mask(configuration.flags["mask"], d["B"], d["T"], d["T"], generator(seed, "mask"))
        return Example(configuration, dtype, arguments if made is None else {**arguments, "mask": made})


spec = Specification("encoder", StackCases())
conduct = add_conduct(spec)
SOME: dict[str, Any] = {"B": lambda size: size > 0, "L": lambda size: size > 0}
SEVERAL: dict[str, Any] = {**SOME, "T": lambda size: size > 1}


@spec.holds("ENC-1", "BLK-1", kills=(
    "causal", "mask_ignored", "mask_in_first_layer_only", "mask_inverted", "last_layer_left_out", "first_layer_repeated",
    "layers_reversed", "layers_in_parallel", "last_norm_skipped", "attention_without_residual", "samples_mixed", "final_norm_added",
    "placement_ignored", "positions_ignored", "positions_unasked", "last_position_unseen"), rests_on=(conduct["form"],))
def output_is_the_formula(encoder: Subject, example: Example) -> None:
    """Layers of bidirectional self-attention and feed-forward network, each with residual and norm, one after another."""
    assert encoder(**example) == encoder.exact(**example)


@spec.holds("MSK-9", "ENC-1", kills=("mask_of_one_token_ignored",), rests_on=(output_is_the_formula,),
            needs=("mask", "padding", "empty_rows"), examples=3,
            given={"B": (1, 2), "T": (1, 2, 3), "placement": ("pre", "post"), "mask": "none", "L": (1, 2)})
def tokens_without_keys_are_right(encoder: Subject, example: Example) -> None:
    """A token that sees no key gets nothing from attention but the output bias, also where it is the only one of its sequence."""
    for mask in without_keys(example.dims["B"], example.dims["T"], example.dims["T"]):
        hidden = example.but(mask=mask)
        assert encoder(**hidden) == encoder.exact(**hidden)


@spec.holds("ENC-1", kills=("gradient_stops_between_layers",), rests_on=(output_is_the_formula,), gradient=True,
            given={**SOME, "L": (2, 3), "ffn": ("swiglu", "mlp")}, examples=8)
def gradients_are_the_formula(encoder: Subject, example: Example) -> None:
    """The gradients of input and every layer's parameters are those of the formula."""
    got, want = encoder.gradients(**example), encoder.exact_gradients(**example)
    for name in got:
        assert got[name] == want[name]


@spec.holds("ENC-1", "E33", kills=("causal", "last_position_unseen", "mask_inverted"), rests_on=(conduct["form"],), gradient=True,
            given={**SEVERAL, "mask": ("none", "padding"), "ffn": ("swiglu", "mlp"), "family": ("normal", "positive")})
def every_position_depends_on_every_real_one(encoder: Subject, example: Example) -> None:
    """The gradient of one position's output reaches every real position, the later ones too, and no padded one."""
    batch, length, width = example.x.shape
    at = example.integer("position", 0, length - 1)
    above = torch.zeros(example.x.shape, dtype=example.dtype)
    above[:, at] = example.values("above", batch, width, family="normal")
    found = encoder.answer(_wrt=("x",), _upstream=(above,), **example).gradients.get("x")
    reached = torch.zeros(batch, length, dtype=torch.bool) if found is None else (found != 0).any(-1)
    expected = (encoder.gradient_bars(**example, wrt=("x",), upstream=(above,))["x"])
    sure = (expected.value.abs() > expected.bar).any(-1)
    assert fact(bool(reached[sure].all()), "a position is not reached", got=f"{int(reached[sure].sum())} positions",
                expected=f"all of {int(sure.sum())}", check="positions reached", decided=bool(sure.any()))
    if "mask" in example:
        padded = ~example.mask & (torch.arange(length) != at)
        if bool(padded.any()) and found is not None:
            assert identical(found[padded].double(), 0.0, witness=bool(reached.any()))


@spec.holds("ENC-2", "VIT-2", kills=("causal", "positions_unasked", "last_position_unseen"), rests_on=(conduct["form"],),
            given={**SEVERAL, "mask": "none", "positions": "none"})
def order_is_unseen_without_positions(encoder: Subject, example: Example) -> None:
    """Without positions and mask, permuting the tokens permutes the outputs and does nothing else."""
    order = example.permutation("tokens", example.x.shape[1])
    assert encoder(**example.but(x=example.x[:, order])) == encoder(**example)[:, order]


@spec.holds("ENC-2", "VIT-2", kills=("positions_ignored",), rests_on=(conduct["form"],), needs=("positions",),
            given={**SEVERAL, "mask": "none", "positions": "index", "D": (4, 2), "T": (3, 5, 8), "family": ("normal", "peaked")})
def positions_make_order_seen(encoder: Subject, example: Example) -> None:
    """With positions the order is seen; tokens that take their positions along are only permuted."""
    order = example.integer("turn", 1, example.x.shape[1] - 1) + torch.arange(example.x.shape[1])
    order = order % example.x.shape[1]
    order = order.flip(0)
    plain, turned = encoder(**example), example.but(x=example.x[:, order])
    assert encoder(**turned.but(positions=example.positions[order])) == plain[:, order]
    assert encoder(**turned) == encoder.exact(**turned)


@spec.holds("PRE-2", kills=("placement_ignored", "last_norm_skipped"), needs=("placement",), rests_on=(conduct["form"],),
            given={**SOME, "placement": "post", "D": (4, 8), "family": ("normal", "positive")})
def post_norm_outputs_are_normalised(encoder: Subject, example: Example) -> None:
    """With norms whose weight is 1 every position of a post-norm stack has mean square 1 (but for eps), whatever its depth."""
    plain = [{name: torch.ones_like(w) if name.endswith("norm1.weight") or name.endswith("norm2.weight") else
              torch.zeros_like(w) if name.startswith("norm") else w for name, w in params.items()} for params in example.layers]
    calm = example.but(layers=plain)
    out, exact = encoder(**calm), encoder.exact(**calm)
    assert (out * out).mean(-1) == (exact * exact).mean(-1)


@spec.holds("RES-3", "PRE-2", kills=("attention_without_residual", "gradient_stops_between_layers"), gradient=True,
            rests_on=(conduct["form"],), dtypes=("float64", "float32"), examples=2,
            given={**SEVERAL, "placement": "pre", "mask": "none", "ffn": ("swiglu", "mlp"), "L": (2, 3), "H": (2, 4), "D": (4, 8),
                   "F": (5, 6, 16), "biases": False, "family": "normal"})
def gradient_survives_many_residual_layers(encoder: Subject, example: Example) -> None:
    """Through 24 pre-norm layers of small gain the gradient keeps at least half its norm: the residual path carries it."""
    small = ("attn.w_o", *SILENT_FEED)
    many = [scaled(example.layers[depth % len(example.layers)], small, 2.0**-6) for depth in range(24)]
    deep = example.but(layers=many)
    above = example.values("above", *example.x.shape, family="normal")
    found = encoder.answer(_wrt=("x",), _upstream=(above,), **deep).gradients.get("x")
    share = 0.0 if found is None else float(found.double().norm() / above.double().norm())
    assert fact(share >= 0.5, "the gradient dies out over the layers", got=f"{share:.3g} of its norm", expected="at least half",
                check="norm of the gradient")


@spec.holds("MHA-9", "E24", kills=("attention_without_residual", "layers_in_parallel"), rests_on=(conduct["form"],), examples=2,
            dtypes=("float64", "float32"),
            given={**SEVERAL, "placement": "pre", "mask": "none", "positions": "none", "ffn": ("swiglu", "mlp"), "L": (2, 3),
                   "T": (5, 8), "H": (2, 4), "D": (4, 8), "biases": False, "norm": "rms", "family": "normal"})
def residuals_keep_tokens_apart(encoder: Subject, example: Example) -> None:
    """Stacked residual layers keep the tokens' differences, which attention alone would lose within a few layers.

    Twelve layers that average all tokens (no scores, values of small gain): without residuals every token ends as the same.
    """
    even = {"attn.w_q": 0.0, "attn.w_k": 0.0}
    layers = [{name: w * even.get(name, 2.0**-4 if name in ("attn.w_o", *SILENT_FEED) else 1.0) for name, w in
               example.layers[depth % len(example.layers)].items()} for depth in range(12)]
    deep = example.but(layers=layers)
    out, before = encoder.values(**deep), example.x.double()
    kept = _differences(out) / _differences(before)
    assert fact(kept >= 0.5, "the tokens have become alike", got=f"{kept:.3g} of their differences are left",
                expected="at least half", check="differences of tokens")
    assert encoder(**deep) == encoder.exact(**deep)


def _differences(x: torch.Tensor) -> float:
    """‖X − 1x̄ᵀ‖/‖X‖, the least over the batch."""
    return float(((x - x.mean(1, keepdim=True)).flatten(1).norm(dim=1) / x.flatten(1).norm(dim=1)).min())


@spec.holds("COST-1", kills=("work_done_twice",), rests_on=(conduct["form"],), dtypes=("float32",), examples=4,
            given={**SOME, "mask": "none", "positions": "none", "ffn": ("swiglu", "mlp"), "layout": "contiguous"})
def work_is_that_of_the_parameters_and_the_scores(encoder: Subject, example: Example) -> None:
    """Multiply-adds are those of every matrix with every token, plus 2·T²·C a layer and sequence, and no more."""
    batch, length, width = example.x.shape
    matrices = sum(w.numel() for params in example.layers for w in params.values() if w.dim() == 2)
    limit = batch * (length * matrices + len(example.layers) * 2 * length * length * width)
    counted = encoder.counts(**example)["multiply_adds"]
    assert fact(counted <= limit, "there are more multiply-adds than the parameters and scores need", got=f"{counted:,}",
                expected=f"at most {limit:,}", check="multiply-adds")
