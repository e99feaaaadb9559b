"""What must hold of `alibi(num_heads, q_len, k_len)`: ALI-1, ALI-2 (and erratum E11).

Three numbers go in, so there is no input to overwrite, to lay out otherwise or to follow in type: float32 or wider.
"""
from __future__ import annotations

import math
from typing import Any

import torch

from assay.cases import Cases, Configuration, Example, at_least
from assay.contract.declaration import Declaration
from assay.ledger import fact, identical
from assay.numbers.bound import lift
from assay.properties import Specification
from assay.spec.conduct import add_conduct, formula
from assay.subject import Subject

FLOAT32 = ("float32",)
BUDGET = 30_000  # elements H·Tq·Tk of one example
UNSHIFTED = {"alibi_row_shift": "none"}


class AlibiCases(Cases):
    """Heads in powers of two and between; as many, fewer and more queries than keys; distances beyond 256."""

    kind = "alibi"
    dims = {"H": (2, 1, 3, 4, 5, 6, 7, 8, 12, 16, 20, 24), "Tq": (3, 1, 2, 4, 5, 8, 17, 33, 0),
            "Tk": (3, 4, 2, 5, 1, 8, 17, 33, 300, 600, 0)}
    families = ("integers",)

    def adapt(self, configuration: Configuration, claims: Declaration) -> Configuration | None:
        dims = dict(configuration.dims)
        if not claims.claims("cross_lengths"):
            dims["Tq"] = dims["Tk"] = min(dims["Tk"], 33)
        if not claims.claims("empty"):
            dims = {letter: max(1, size) for letter, size in dims.items()}
        while math.prod(dims.values()) > BUDGET and dims["Tq"] > 1:
            dims["Tq"] = dims["Tq"] // 2
        named = {"num_heads": "H", "q_len": "Tq", "k_len": "Tk"}
        if not all(claims.allows(name, dims[letter]) for name, letter in named.items()):
            return None
        return Configuration(configuration.kind, dims, configuration.flags, configuration.family, configuration.layout,
                             configuration.seed)

    def build(self, configuration: Configuration, dtype: torch.dtype) -> Example:
        d = configuration.dims
        return Example(configuration, dtype, {"num_heads": d["H"], "q_len": d["Tq"], "k_len": d["Tk"]})


def by_distance(alibi: Subject, example: Example) -> Any:
    """The bias (H,Tq,Tk), a declared per-row constant removed by subtracting the entry of the query's own position.

    With a per-row constant the bias of keys behind the query may be a bonus; under a causal mask it is never seen: 0 here.
    """
    if alibi.conventions["alibi_row_shift"] == "none" or not example.q_len * example.k_len:
        return alibi(**example)
    bias, exact = alibi.values(**example), alibi.exact(**example).value
    if not isinstance(bias, torch.Tensor) or bias.shape != exact.shape:
        return alibi(**example)  # which says so
    found, penalty = _unshifted(bias, example), _unshifted(exact, example)
    reach = bias.abs() + _own(bias, example).abs() + penalty.abs()
    return lift(found, _rate(alibi, example) * reach * (found != 0))


def _rate(alibi: Subject, example: Example) -> torch.Tensor:
    """How far a head's slope times a number may be off, relative to it, (H,1,1).

    Which constant a row has is the implementation's own choice, so the bar of +slope·j is not its bar. It makes an entry as
    slope·(integer) or as the penalty plus a constant that the row shares, rounded: the slope's error is relative to the penalty,
    that of the last rounding to the entry, and so it is with the entry of the query's own position.
    """
    allowed = alibi.bars(**example.but(q_len=1, k_len=2))  # +slope·j at j = 1
    return allowed.bar[:, :, 1:] / allowed.value[:, :, 1:]


def _places(example: Example) -> torch.Tensor:
    """The position of every query among the keys, (Tq,)."""
    return (torch.arange(example.q_len) + example.k_len - example.q_len).clamp(0, example.k_len - 1)


def _own(bias: torch.Tensor, example: Example) -> torch.Tensor:
    return bias.gather(-1, _places(example)[None, :, None].expand(example.num_heads, -1, 1))


def _unshifted(bias: torch.Tensor, example: Example) -> torch.Tensor:
    """A bias without the constant of its row, and 0 at the keys behind the query."""
    return (bias - _own(bias, example)) * (torch.arange(example.k_len) <= _places(example)[:, None])


def agree(alibi: Subject, example: Example) -> None:
    """The bias lies within its bar of the formula, a declared constant of each row apart."""
    if alibi.conventions["alibi_row_shift"] == "none":
        formula(alibi, example)
        return
    exact = alibi.exact(**example).value
    assert by_distance(alibi, example) == (_unshifted(exact, example) if exact.numel() else exact)


spec = Specification("alibi", AlibiCases())
conduct = add_conduct(spec, agree=agree, without=("inputs", "layouts", "history"), dtypes=FLOAT32, shown_by="bias_is_the_formula")


SOME = {"Tq": at_least(1), "Tk": at_least(2)}


def aligned(example: Example) -> Example:
    """The same example with no more queries than keys, so that every query has a position among the keys."""
    return example.but(q_len=min(example.q_len, example.k_len))


@spec.holds("ALI-1", "E11", kills=(
    "exponent_from_zero", "no_power_of_two_as_if", "every_other_from_second", "of_the_next_power", "slopes_reversed",
    "slopes_of_all_heads_alike", "divided_by_the_slope", "slope_is_the_head_number", "bonus_for_distance",
    "aligned_at_the_top_left", "future_not_penalised", "distance_in_bfloat16", "distance_capped", "relative_to_length",
    "squared", "per_row_undeclared", "shifted_with_every_other_slope_from_second"), rests_on=(conduct["form"],), dtypes=FLOAT32)
def bias_is_the_formula(alibi: Subject, example: Example) -> None:
    """The bias is −slope_h·|i − j|, the last query lined up with the last key, slopes 2^(−8h/H) where H is a power of two."""
    agree(alibi, example)


@spec.holds("ALI-1", kills=("no_power_of_two_as_if", "every_other_from_second", "of_the_next_power", "slopes_reversed",
                            "shifted_with_every_other_slope_from_second"),
            rests_on=(conduct["form"],), given={**SOME, "H": (3, 5, 6, 7, 12, 20, 24)}, dtypes=FLOAT32)
def heads_between_powers_of_two_borrow_slopes(alibi: Subject, example: Example) -> None:
    """For H no power of two: the slopes of the power of two n below, then every other one of those of 2n heads."""
    heads, n = example.num_heads, 2 ** int(math.log2(example.num_heads))
    if not (alibi.declaration.allows("num_heads", n) and alibi.declaration.allows("num_heads", 2 * n)
            and alibi.declaration.allows("H", n) and alibi.declaration.allows("H", 2 * n)):
        fact(True, "", check="the neighbouring powers of two are claimed", decided=False)
        return
    bias = by_distance(alibi, example)
    assert bias[:n] == by_distance(alibi, example.but(num_heads=n))
    assert bias[n:] == by_distance(alibi, example.but(num_heads=2 * n))[::2][: heads - n]


@spec.holds("ALI-1", kills=("exponent_from_zero", "slopes_of_all_heads_alike", "divided_by_the_slope",
                            "slope_is_the_head_number"), rests_on=(conduct["form"],),
            given={**SOME, "H": (2, 4, 8, 16, 1)}, dtypes=FLOAT32)
def slopes_fall_geometrically(alibi: Subject, example: Example) -> None:
    """For H a power of two each head's bias is 2^(−8/H) times the one before, and 256 times that of the last is the distance."""
    example = aligned(example)
    bias, heads = by_distance(alibi, example), example.num_heads
    own = torch.arange(example.q_len) + example.k_len - example.q_len
    distance = (own[:, None] - torch.arange(example.k_len)).double()
    seen = distance >= 0
    if heads > 1:
        assert bias[1:, seen] == bias[:-1, seen] * 2.0 ** (-8 / heads)
    assert bias[-1, seen] * 256.0 == -distance[seen]


@spec.holds("ALI-1", kills=("bonus_for_distance", "aligned_at_the_top_left", "per_row_undeclared"),
            rests_on=(conduct["form"],), given=SOME, conventions=UNSHIFTED, dtypes=FLOAT32)
def own_position_is_free_and_others_cost(alibi: Subject, example: Example) -> None:
    """The bias is exactly 0 where query and key have the same position, counted from the end, and negative elsewhere."""
    example = aligned(example)
    bias = alibi(**example).value
    own = torch.arange(example.q_len) + example.k_len - example.q_len
    same = own[:, None] == torch.arange(example.k_len)
    assert identical(bias[:, same], 0.0, witness=bool((bias[:, ~same] != 0).any()))
    assert fact(bool((bias[:, ~same] < 0).all()), "a bias between two positions is not negative", check="distance costs",
                decided=bool((~same).any()))


@spec.holds("ALI-2", kills=("per_row_undeclared", "row_dependent"), rests_on=(conduct["form"],),
            given={"Tq": at_least(2), "Tk": at_least(3)}, dtypes=FLOAT32)
def bias_depends_on_distance_alone(alibi: Subject, example: Example) -> None:
    """One query and one key further on, the bias is the same."""
    bias = by_distance(alibi, aligned(example))
    assert bias[:, 1:, 1:] == bias[:, :-1, :-1]


@spec.holds("ALI-2", kills=("squared", "distance_capped"), rests_on=(conduct["form"],),
            given={"Tq": at_least(1), "Tk": (5, 17, 33, 300, 600)}, dtypes=FLOAT32)
def twice_as_far_costs_twice_as_much(alibi: Subject, example: Example) -> None:
    """The last query's bias for a key at distance 2d is twice that at distance d."""
    bias = by_distance(alibi, example)[:, -1].flip(-1)
    assert bias[:, ::2] == 2 * bias[:, : (example.k_len + 1) // 2]


@spec.holds("ALI-2", kills=("relative_to_length", "aligned_at_the_top_left"), rests_on=(conduct["form"],),
            given=SOME, dtypes=FLOAT32)
def longer_sequences_extend_the_bias(alibi: Subject, example: Example) -> None:
    """With more keys before them, or more of both, queries and keys keep the bias they had."""
    example, more = aligned(example), example.integer("more", 1, 9)
    bias = by_distance(alibi, example)
    grown = [one for one in (example.but(k_len=example.k_len + more),
                             example.but(q_len=example.q_len + more, k_len=example.k_len + more))
             if all(alibi.declaration.allows(name, one[option]) for name, option in
                    (("Tq", "q_len"), ("Tk", "k_len"), ("q_len", "q_len"), ("k_len", "k_len")))]
    if not alibi.declaration.claims("cross_lengths"):
        grown = [one for one in grown if one.q_len == one.k_len]
    for one in grown:
        assert by_distance(alibi, one)[:, -example.q_len :, -example.k_len :] == bias
    if not grown:
        fact(True, "", check="longer sequences are claimed", decided=False)


@spec.holds("ALI-2", kills=("shared_between_instances", "longest_kept"), rests_on=(conduct["form"],), given=SOME,
            dtypes=FLOAT32)
def earlier_sizes_do_not_matter(alibi: Subject, example: Example) -> None:
    """After calls with other numbers of heads, queries and keys, each call is right."""
    claims = alibi.declaration
    changes: list[dict[str, int]] = [{"num_heads": example.num_heads + 1}]
    if claims.claims("cross_lengths"):
        changes += [{"k_len": example.k_len + 7}, {"q_len": example.q_len + 3, "k_len": example.k_len + 5}]
    letters = {"num_heads": "H", "q_len": "Tq", "k_len": "Tk"}
    changes = [change for change in changes if all(
        claims.allows(name, size) and claims.allows(letters[name], size) for name, size in change.items())]
    for change in (*changes, {}):
        agree(alibi, example.but(**change))
