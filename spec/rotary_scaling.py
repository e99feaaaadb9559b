"""What must hold of rotary positions beyond the trained length: YARN-1."""
from __future__ import annotations

import torch

from assay.cases import Example, at_least
from assay.spec.rotary import SOME, conduct, length_of_each_pair_is_kept, magnitude, output_is_the_formula, pairs, spec
from assay.spec.rotary_cases import SCALINGS
from assay.subject import Subject

NEEDS = ("scaling",)


@spec.holds("YARN-1", kills=(
    "ntk_base_beyond_all_length", "ntk_exponent_one", "llama3_unscaled", "llama3_without_the_blend", "long_factors_lost",
    "factors_multiplied", "short_list_always", "attention_factor_ignored", "attention_factor_missing",
    "attention_factor_squared", "longrope_factor_of_yarn", "linear_ignored", "linear_multiplies", "yarn_without_the_ramp",
    "yarn_kept_and_interpolated_swapped", "yarn_scales_all", "yarn_turns_without_two_pi", "length_from_the_head_axis",
    "length_of_the_call"), rests_on=(conduct["form"], output_is_the_formula), needs=NEEDS,
    given={**SOME, "scaled": tuple(SCALINGS), "D": at_least(4)})
def scaled_output_is_the_formula(rotary: Subject, example: Example) -> None:
    """Linear, NTK, YaRN, LongRoPE and Llama 3 scaling change frequencies, and the output's size, as published."""
    assert rotary(**example) == rotary.exact(**example)


@spec.holds("YARN-1", kills=("factor_never_read", "other_types_turn_at_half_speed"), rests_on=(conduct["form"],), needs=NEEDS,
            given={**SOME, "scaled": tuple(SCALINGS), "D": at_least(4), "positions": ("offset", "hundreds", "per_sequence")})
def factor_one_is_no_scaling(rotary: Subject, example: Example) -> None:
    """With factor 1 (LongRoPE: all factors 1) the output is that of no scaling."""
    ones = {name: [1.0] * len(value) for name, value in example.scaling.items() if isinstance(value, list)}
    kept = {name: value for name, value in example.scaling.items() if name != "attention_factor"}
    assert rotary(**example.but(scaling={**kept, **ones, "factor": 1.0})) == rotary.exact(**example.without("scaling"))


@spec.holds("YARN-1", kills=("linear_ignored", "linear_multiplies"), rests_on=(conduct["form"],), needs=NEEDS,
            given={**SOME, "scaled": "linear", "D": at_least(4), "positions": ("offset", "hundreds", "per_sequence", "thousand")})
def linear_scaling_divides_positions(rotary: Subject, example: Example) -> None:
    """Positions s·p under linear scaling by s are positions p without."""
    stretched = example.but(positions=example.positions * int(example.scaling["factor"]))
    assert rotary(**stretched) == rotary(**example.without("scaling"))


@spec.holds("YARN-1", kills=("ntk_exponent_one", "ntk_base_beyond_all_length", "yarn_kept_and_interpolated_swapped",
                             "yarn_scales_all", "llama3_unscaled"), rests_on=(conduct["form"],), needs=NEEDS,
            given={**SOME, "scaled": ("ntk", "yarn", "yarn_given", "llama3"), "D": (8, 16, 32, 64, 128), "turned": "all",
                   "base": 10000.0, "positions": ("offset", "hundreds", "thousand", "per_sequence")})
def fast_pairs_are_kept_and_slow_ones_divided(rotary: Subject, example: Example) -> None:
    """The fastest pair turns as without scaling, the slowest 1/s as far, apart from the output's common factor."""
    s = int(example.scaling["factor"])
    fine = example.but(positions=example.positions * s)
    out = rotary(**fine)
    plain, divided = (rotary.exact(**one.without("scaling")) for one in (fine, example))
    for got, whole, part in zip(*(pairs(rotary, example, y) for y in (out, plain, divided)), strict=True):
        assert got[..., 0] == magnitude(example) * whole[..., 0]
        assert got[..., -1] == magnitude(example) * part[..., -1]


@spec.holds("YARN-1", kills=("short_list_always", "longest_ever_seen", "length_from_the_head_axis", "length_of_the_call"),
            rests_on=(length_of_each_pair_is_kept,), needs=NEEDS,
            given={**SOME, "scaled": ("longrope", "longrope_given"), "D": at_least(4), "T": (2, 3, 4, 5)})
def longrope_changes_lists_at_the_original_length(rotary: Subject, example: Example) -> None:
    """The long list is used once a position reaches the original length, whatever was called before."""
    length, steps = int(example.scaling["original_length"]), torch.arange(example.dims["T"])
    below = example.but(positions=length - 1 - steps)
    above = example.but(positions=length - steps)
    for one in (below, above, below):
        assert rotary(**one) == rotary.exact(**one)
