"""Values of options that are false in Python and count all the same: what is written `scale or default` loses them.

A scale of 0 is asked for over keys of which none is hidden, and which fill tiles of up to 128: −∞ behind a mask, or in the rest of
a tile, does not stay below every score where it is multiplied by it, and a library may leave this to its callers. A scale below 0
is asked of what offers `negative_scale` alone, behind masks too: kernels multiply by its root, or take the largest score before it.
"""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from assay.cases import Example, at_least
from assay.properties import Specification
from assay.spec import (
    attention,
    batch_norm,
    blockwise_attention,
    latent_attention,
    packed_attention,
    paged_attention,
    policy_loss,
    qk_norm_attention,
    residual,
    sink_attention,
)
from assay.spec.larger import Larger
from assay.subject import Subject

ZERO: Mapping[str, Any] = {"scale": 0.0, "causal": False, "family": ("positive",), "B": (1, 2), "H": (2, 1), "D": (2, 4),
                           "Dv": (2, 4)}
SEEN: Mapping[str, Any] = {"Tq": (2, 3, 1), "Tk": (128,), "window": None, "lengths": "free"}


class WholeTiles(latent_attention.LatentAttentionCases):
    """Sequences that fill a tile, of few and narrow heads."""

    budget = 500_000


def _scale(spec: Specification, statement: str, given: Mapping[str, Any], rests_on: str = "output_is_the_formula") -> Larger:
    names = {*spec.cases.dims, *spec.cases.flags, "family"}
    chosen = {name: choice for name, choice in {**ZERO, **given}.items() if name in names}
    return Larger(spec, "scale_may_be_zero", "A scale of 0 is a number like any other: all keys count alike.", statement,
                  ("scale_of_zero_taken_for_none",), chosen, gradient=None, rests_on=rests_on, needs=("scale",))


TABLE: tuple[Larger, ...] = (
    _scale(attention.spec, "ATT-13", {**SEEN, "mask": "none", "bias": "none", "softcap": None}),
    _scale(blockwise_attention.spec, "FLA-1", {**SEEN, "mask": "none", "block_k": (64, 32, 16)}, "output_is_attention"),
    _scale(paged_attention.spec, "PAG-1", {"T": (128,), "S": (16,), "lengths": "full", "table": "exact"},
           "output_is_attention_over_the_blocks"),
    _scale(sink_attention.spec, "X-SINK-1", {**SEEN, "sinks": ("drawn", "zeros", "steps")}),
    _scale(qk_norm_attention.spec, "X-QKN-1", {**SEEN, "positions": "none"}),
    _scale(packed_attention.spec, "X-PACK-1", {**SEEN, "B": 1, "lengths": "equal", "keys": "other"}),
    _scale(Specification("latent_attention", WholeTiles()), "X-MLA-1", {"positions": "none", "B": 1, "T": 128, "R": (2, 4),
                                                                        "C": (3, 4), "Lk": (2, 3)}),
    Larger(batch_norm.spec, "momentum_may_be_zero", "With a momentum of 0 the running statistics stay, or are the batch's where "
           "the old ones are weighed by it.", "BN-4", ("momentum_of_zero_taken_for_the_default",),
           {"momentum": 0.0, "training": True, "N": (4, 2, 8)}, gradient=None, rests_on="running_statistics_move_by_the_momentum"),
    Larger(residual.spec, "alpha_may_be_zero", "With alpha = 0 the input is left out of the sum.", "DN-1",
           ("alpha_of_zero_taken_for_one",), {"alpha": 0.0, "placement": "deepnorm", "sublayer": ("linear", "tanh_linear"),
                                              "B": (1, 2), "T": (2, 3), "C": (2, 4, 3)}, needs=("alpha",)),
    Larger(policy_loss.spec, "clip_may_be_zero", "With a clip of 0 no ratio beyond 1 counts for more than 1.", "RL-2",
           ("clip_of_zero_taken_for_the_default",), {"clip": 0.0, "kl": (0.1, 0.0)}, gradient=None),  # at ratio 1 it has two slopes
)
for _one in TABLE:
    _one.add()


@attention.spec.holds("ATT-13", kills=("scaled_after_the_mask", "sign_of_the_scale_lost"),
                      rests_on=(attention.output_is_the_formula,), needs=("scale", "negative_scale", "mask"), examples=6,
                      given={**attention.NO_EMPTY, "scale": (-0.5, 0.0, -1.0), "Tk": at_least(2), "softcap": None,
                             "mask": ("shared", "full", "padding"), "causal": (False, True)})
def hidden_keys_stay_hidden_at_any_scale(attend: Subject, example: Example) -> None:
    """With a scale of zero or below, too, a hidden key has no weight: the scale comes before the masks."""
    assert attend(**example) == attend.exact(**example)
