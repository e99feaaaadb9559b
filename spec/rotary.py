"""What must hold of `rotary(x, positions, *, base, pairing, rotary_dim, scaling)`: ROPE-1 … ROPE-8 (and erratum E32).

E32 (rotary positions extrapolate well) is not tested: beyond the trained length it is a claim about trained models; that is
what the scalings of YARN-1 are for, which stand in rotary_scaling.py.
"""
from __future__ import annotations

import torch

from assay import registry
from assay.cases import Example, at_least
from assay.ledger import identical
from assay.numbers.bound import Bounded
from assay.numbers.evaluate import evaluate
from assay.properties import Specification
from assay.spec.conduct import add_conduct
from assay.spec.rotary_cases import SCALINGS, RotaryCases
from assay.subject import Subject

spec = Specification("rotary", RotaryCases())
conduct = add_conduct(spec)

NEAR = ("index", "offset", "near_256", "hundreds", "per_sequence", "permuted", "packed", "thousand")
NO_SHIFT_OF_LISTS = ("none", *(name for name in SCALINGS if not name.startswith("longrope")))


SOME = {"B": at_least(1), "T": at_least(1)}


def pairing_of(rotary: Subject, example: Example) -> str:
    return str(example.get("pairing", rotary.conventions.get("pairing", "interleaved")))


def pairs(rotary: Subject, example: Example, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """First and second channel of every turning pair, (B,H,T,R/2) each."""
    return registry.reference("rotary").pairs(x[..., : example.width], pairing_of(rotary, example))


def channels(rotary: Subject, example: Example) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers of the channels that are first and second in their pairs."""
    return pairs(rotary, example, torch.arange(example.width))


def magnitude(example: Example) -> float:
    """The attention factor: what lengths are multiplied by."""
    return float(registry.reference("rotary").attention_factor(example.get("scaling")))


def with_bars_of_the_turn(rotary: Subject, example: Example) -> tuple[Bounded, Bounded]:
    """The turned pairs, with how far they may lie from x turned by the very angle that was formed, whichever it was."""
    first, second = pairs(rotary, example, rotary(**example).value)
    options = {name: example[name] for name in ("rotary_dim", "scaling") if name in example}
    reach = evaluate(registry.reference("rotary").ANY_ANGLE,
                     {"x": example.x, "pairing": pairing_of(rotary, example), **options},
                     rotary.dtype, rotary.declaration.arithmetic).outputs[0]
    return Bounded(first, reach.bar), Bounded(second, reach.bar)


@spec.holds("ROPE-1", "ROPE-6", "ROPE-7", kills=(
    "other_pairing", "pairs_by_two_angles", "positions_doubled", "frequencies_in_bfloat16", "positions_in_the_input_type",
    "angles_in_the_input_type", "tables_in_the_input_type", "rotates_all_channels", "partial_by_head_width",
    "counts_from_zero", "counts_on_by_one", "first_row_for_all", "positions_from_one", "positions_wrap",
    "turns_the_other_way", "frequencies_reversed", "half_the_exponent", "base_ignored", "first_channel_overwritten",
    "steps_added_up", "frequencies_in_the_input_type"), rests_on=(conduct["form"],))
def output_is_the_formula(rotary: Subject, example: Example) -> None:
    """Every pair (a, b) becomes (a·cos φ − b·sin φ, a·sin φ + b·cos φ), φ = position · base^(−2i/R)."""
    assert rotary(**example) == rotary.exact(**example)


@spec.holds("ROPE-1", "ROPE-7", kills=("positions_in_the_input_type", "angles_in_the_input_type", "frequencies_in_bfloat16",
                                       "steps_added_up", "frequencies_in_the_input_type"), rests_on=(conduct["form"],),
            given={**SOME, "positions": ("hundreds", "near_256", "thousand", "hundred_thousand", "million"), "scaled": "none",
                   "D": at_least(4)})
def angles_are_formed_in_float32(rotary: Subject, example: Example) -> None:
    """Pairs (1, 0) come out as (cos φ, sin φ), the angle good to position · frequency · a few 2⁻²⁴ for inputs of any type."""
    first, _ = channels(rotary, example)
    x = torch.zeros_like(example.x)
    x[..., first] = 1.0
    probe = example.but(x=x)
    assert rotary(**probe) == rotary.exact(**probe)


@spec.holds("ROPE-2", kills=("pairs_by_two_angles", "first_channel_overwritten", "attention_factor_squared",
                             "attention_factor_missing", "attention_factor_ignored", "cosine_and_sine_from_two_angles"),
            rests_on=(conduct["form"],), given=SOME)
def length_of_each_pair_is_kept(rotary: Subject, example: Example) -> None:
    """y₀² + y₁² = m²·(x₀² + x₁²) for every pair at every position, m the attention factor; so the norm is kept in whole.

    The bar is that of the turn alone: whatever the angle, cos² + sin² = 1, so errors of the angle have no part in it.
    """
    first, second = with_bars_of_the_turn(rotary, example)
    a, b = pairs(rotary, example, example.x.double())
    kept = magnitude(example) ** 2 * (a * a + b * b)
    found = first * first + second * second
    assert found == kept
    assert found.sum(-1) == kept.sum(-1)


@spec.holds("ROPE-3", kills=("pairs_by_two_angles", "first_channel_overwritten", "positions_in_the_input_type",
                             "frequency_drifts_with_position"),
            rests_on=(conduct["form"],), given={**SOME, "positions": NEAR, "scaled": NO_SHIFT_OF_LISTS, "T": at_least(2)})
def scores_depend_on_distance_only(rotary: Subject, example: Example) -> None:
    """⟨R_m q, R_n k⟩ = ⟨R_{m+s} q, R_{n+s} k⟩: a common shift of positions leaves scores as they are."""
    m = example.positions
    n = m[..., example.permutation("n", m.shape[-1])]
    k = example.but(x=example.values("k", *example.x.shape))
    shift = (1, 7, 45, 200)[example.integer("shift", 0, 3)]

    def scores(by: int) -> torch.Tensor:
        query, key = rotary(**example.but(positions=m + by)), rotary(**k.but(positions=n + by))
        return (query * key).sum(-1)

    assert scores(0) == scores(shift)


@spec.holds("ROPE-4", kills=("positions_from_one", "zero_position_turns"), rests_on=(conduct["form"],),
            given={**SOME, "scaled": ("none", "linear", "ntk", "llama3"), "T": at_least(2)})
def position_zero_changes_nothing(rotary: Subject, example: Example) -> None:
    """At position 0 every channel comes out as it went in, bit for bit."""
    positions = example.positions.clone()
    positions[..., 0], positions[..., 1] = 0, 3
    x = example.x.clone()
    x[..., 1, :] = 1.0
    out = rotary(**example.but(positions=positions, x=x)).value
    assert identical(out[..., 0, :], x[..., 0, :], witness=bool((out[..., 1, :] != 1.0).any()))


@spec.holds("ROPE-4", kills=("positions_from_one", "frequency_drifts_with_position", "first_channel_overwritten",
                             "pairs_by_two_angles"),
            rests_on=(output_is_the_formula,), given={**SOME, "positions": NEAR, "scaled": "none"})
def turns_add_up(rotary: Subject, example: Example) -> None:
    """R_b (R_a x) = R_{a+b} x."""
    b = example.positions.flip(-1)
    once = rotary(**example)
    twice = rotary(**example.but(x=once.value.to(example.dtype), positions=b))
    at_once = rotary(**example.but(positions=example.positions + b))
    assert Bounded(twice.value, twice.bar + carried(rotary, example, once.bar)) == at_once


def carried(rotary: Subject, example: Example, bar: torch.Tensor) -> torch.Tensor:
    """How far an error of x reaches through a turn by any angle: at most the sum over its pair."""
    first, second = channels(rotary, example)
    through = bar.clone()
    through[..., first] = through[..., second] = bar[..., first] + bar[..., second]
    return through


@spec.holds("ROPE-4", kills=("negative_positions_mirrored",), rests_on=(conduct["form"],), needs=("negative_positions",),
            given={**SOME, "positions": (*NEAR, "negative"), "scaled": "none"})
def negative_position_undoes(rotary: Subject, example: Example) -> None:
    """R_{−m} (R_m x) = x."""
    there = rotary(**example)
    back = rotary(**example.but(x=there.value.to(example.dtype), positions=-example.positions))
    assert Bounded(back.value, back.bar + carried(rotary, example, there.bar)) == example.x.double()


@spec.holds("ROPE-5", kills=("brought_to_unit_length", "negative_entries_dropped"), rests_on=(output_is_the_formula,),
            given=SOME)
def linear_in_x(rotary: Subject, example: Example) -> None:
    """R(2x + u) = 2·R(x) + R(u)."""
    x, u = (example.values(name, *example.x.shape, family="integers") for name in ("x", "u"))
    both = rotary(**example.but(x=2 * x + u))
    assert both == 2 * rotary(**example.but(x=x)) + rotary(**example.but(x=u))


@spec.holds("ROPE-6", kills=("other_pairing", "pairing_ignored"), rests_on=(conduct["form"],), needs=("pairing", "pairing=half"),
            given={**SOME, "D": at_least(4), "pairing": "interleaved"})
def pairings_are_one_map_up_to_order(rotary: Subject, example: Example) -> None:
    """Interleaved pairs and halves are the same map with the channels in another fixed order."""
    half = example.but(pairing="half")
    order = torch.cat([*channels(rotary, example), torch.arange(example.width, example.x.shape[-1])])
    moved = rotary(**half.but(x=example.x[..., order].contiguous()))
    assert rotary(**example)[..., order] == moved


@spec.holds("ROPE-1", "ROPE-6", kills=("other_pairing", "partner_one_further", "rotates_all_channels"),
            rests_on=(conduct["form"],), given={**SOME, "positions": ("offset", "hundreds", "near_256"), "D": at_least(4)})
def one_channel_reaches_its_partner_only(rotary: Subject, example: Example) -> None:
    """A token with one non-zero channel turns into one with that channel and its partner; all others are exactly 0."""
    first, second = channels(rotary, example)
    pair = example.integer("pair", 0, first.numel() - 1)
    x = torch.zeros_like(example.x)
    x[..., first[pair]] = 2.0
    out = rotary(**example.but(x=x)).value
    mine = torch.zeros(out.shape[-1], dtype=torch.bool)
    mine[first[pair]] = mine[second[pair]] = True
    assert identical(out[..., ~mine], 0.0, witness=bool((out[..., second[pair]] != 0).any()))


@spec.holds("ROPE-1", kills=("rotates_all_channels", "tail_unwritten", "tail_zeroed"), rests_on=(conduct["form"],),
            needs=("rotary_dim",), given={**SOME, "turned": ("half", "two"), "D": at_least(5), "scaled": "none"})
def channels_beyond_rotary_dim_pass(rotary: Subject, example: Example) -> None:
    """With rotary_dim = R, channels from R on come out as they went in, bit for bit."""
    moved = example.but(x=example.x + 1, positions=example.positions + 1)
    out = rotary.under(fill_empty=True).values(**moved)
    turned, passed = out[..., : example.width], out[..., example.width :]
    assert identical(passed, moved.x[..., example.width :], witness=bool((turned != moved.x[..., : example.width]).any()))


@spec.holds("ROPE-1", kills=("counts_on_by_one", "counts_from_zero", "ignores_positions"), rests_on=(conduct["form"],),
            given={**SOME, "T": at_least(3), "positions": ("index", "offset", "packed", "per_sequence", "hundreds")})
def tokens_carry_their_positions(rotary: Subject, example: Example) -> None:
    """Permuting tokens together with their positions permutes the outputs."""
    order = example.permutation("tokens", example.dims["T"])
    moved = example.but(x=example.x[:, :, order].contiguous(), positions=example.positions[..., order].contiguous())
    assert rotary(**moved) == rotary(**example)[:, :, order]


@spec.holds("ROPE-1", kills=("first_row_for_all", "first_sequence_only"), rests_on=(conduct["form"],),
            given={"B": (2, 3), "T": at_least(1), "positions": "per_sequence",
                   "scaled": lambda name: not name.startswith("longrope")})
def every_sequence_has_its_own_positions(rotary: Subject, example: Example) -> None:
    """Positions (B, T) give each sequence what it gets alone with its own row of positions (T,)."""
    together = rotary(**example)
    for row in range(example.dims["B"]):
        alone = rotary(**example.but(x=example.x[row : row + 1], positions=example.positions[row]))
        assert together[row : row + 1] == alone


@spec.holds("ROPE-8", kills=("no_backward", "backward_turns_forward", "backward_does_not_turn"),
            rests_on=(output_is_the_formula,), gradient=True)
def gradient_turns_back(rotary: Subject, example: Example) -> None:
    """∂x is the upstream gradient turned by the opposite angle: R_{−m}·∂y."""
    assert rotary.gradients(**example)["x"] == rotary.exact_gradients(**example)["x"]


@spec.holds("ROPE-8", kills=("backward_turns_forward", "backward_does_not_turn"), rests_on=(conduct["form"],), gradient=True,
            given={**SOME, "positions": NEAR})
def gradient_is_the_adjoint(rotary: Subject, example: Example) -> None:
    """⟨R x, g⟩ = ⟨x, ∂x⟩ for every token: the backward pass is the transpose of the forward one."""
    upstream = rotary.upstream(**example)
    gradient = rotary.gradients(**example, upstream=upstream)["x"]
    forward = (rotary(**example) * upstream[0].double()).sum(-1)
    assert forward == (gradient * example.x.double()).sum(-1)


@spec.holds("ROPE-1", kills=("table_by_half_width", "table_forgets_the_base", "table_by_length"), rests_on=(conduct["form"],),
            given={**SOME, "D": (8, 16, 32, 64, 128), "positions": ("offset", "hundreds", "per_sequence"), "scaled": "none",
                   "turned": "all"})
def earlier_settings_do_not_matter(rotary: Subject, example: Example) -> None:
    """After a call with another base, another width and other positions, this call is as right as before."""
    fixed = {"base": 1000.0} if rotary.declaration.claims("base") and rotary.declaration.allows("base", 1000.0) else {}
    half = example.dims["D"] // 2
    smaller = example.but(x=example.x[..., :half].contiguous())
    if rotary.declaration.allows("D", half):
        assert rotary(**example) == rotary.exact(**example)
        assert rotary(**smaller) == rotary.exact(**smaller)
    for other in (example.but(positions=example.positions + 11), example.but(**fixed)):
        assert rotary(**other) == rotary.exact(**other)
    assert rotary(**example) == rotary.exact(**example)
