"""What must hold of `sinusoidal(positions, dim, *, base)`: SIN-1 … SIN-5. There is no type to follow: float32 or wider."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from assay import registry
from assay.cases import Cases, Configuration, Example, at_least, generator
from assay.contract.declaration import Declaration
from assay.ledger import fact
from assay.numbers.bound import Bounded
from assay.numbers.evaluate import evaluate
from assay.properties import Specification
from assay.spec.conduct import add_conduct
from assay.subject import Subject

FLOAT32 = ("float32",)
LONG = ("thousands", "hundred_thousand", "million")
NEAR = ("offset", "index", "near_256", "hundreds", "permuted")


class SinusoidalCases(Cases):
    """Even widths; positions 0, small, around 256, hundreds, thousands, 10⁵ and 10⁶, in any order."""

    kind = "sinusoidal"
    dims = {"T": (3, 1, 2, 4, 5, 8, 17, 64, 0), "C": (8, 2, 4, 6, 10, 16, 32, 64, 128, 512)}
    flags = {"positions": ("offset", "index", "near_256", "hundreds", "permuted", *LONG, "negative"),
             "base": (10000.0, 500.0, 500000.0)}
    families = ("integers",)

    def adapt(self, configuration: Configuration, claims: Declaration) -> Configuration | None:
        if not claims.allows("dim", configuration.dims["C"]):
            return None
        if configuration.dims["T"] == 0 and not claims.claims("empty"):
            configuration = configuration.but(T=1)
        positions = configuration.flags["positions"]
        if positions in LONG and not claims.claims("long_positions"):
            configuration = configuration.but(positions="hundreds")
        if positions == "negative" and not claims.claims("negative_positions"):
            configuration = configuration.but(positions="offset")
        return configuration

    def build(self, configuration: Configuration, dtype: torch.dtype) -> Example:
        d, flags = configuration.dims, configuration.flags
        arguments: dict[str, Any] = {
            "positions": draw_positions(flags["positions"], d, generator(configuration.seed, "positions")), "dim": d["C"]}
        if flags["base"] != 10000.0:
            arguments["base"] = flags["base"]
        return Example(configuration, dtype, arguments)


def draw_positions(name: str, dims: Mapping[str, int], source: torch.Generator) -> torch.Tensor:
    length = dims["T"]
    steps, start = torch.arange(length), int(torch.randint(1, 60, (), generator=source))
    if name == "permuted":
        return torch.randperm(length, generator=source) + start
    if name in LONG:
        first = {"thousands": 5000, "hundred_thousand": 100_000, "million": 999_000}[name]
        return first + torch.randint(0, 1000, (length,), generator=source)
    return {"index": steps, "offset": steps + start, "near_256": steps + 254 + start % 3,
            "hundreds": 300 + start + 7 * steps, "negative": steps - length - start}[name]


spec = Specification("sinusoidal", SinusoidalCases())
conduct = add_conduct(spec, dtypes=FLOAT32, shown_by="table_is_the_formula")


SOME = {"T": at_least(1)}


def waves(table: Any) -> tuple[Any, Any]:
    """Sines and cosines of a table (T,C): (T,C/2) each."""
    return table[..., 0::2], table[..., 1::2]


def with_bars_of_waves(sinusoidal: Subject, example: Example) -> Bounded:
    """The table, with how far entries may lie from the waves of the very angles that were formed, whichever they were."""
    table = sinusoidal(**example).value
    crest = evaluate(registry.reference("sinusoidal").ANY_ANGLE, {}, sinusoidal.dtype,
                     sinusoidal.declaration.arithmetic).outputs[0]
    return Bounded(table, crest.bar.expand(table.shape))


@spec.holds("SIN-1", "SIN-4", kills=(
    "base_1000_and_odd_exponent", "cosine_one_step_on", "sine_and_cosine_in_halves", "sine_and_cosine_swapped",
    "half_the_exponent", "other_spacing", "stretched_to_a_span", "counts_from_zero", "counts_from_one", "ignores_positions",
    "wraps_at_5000", "angle_in_bfloat16", "stored_in_bfloat16", "positions_in_bfloat16", "base_ignored"),
    rests_on=(conduct["form"],), dtypes=FLOAT32)
def table_is_the_formula(sinusoidal: Subject, example: Example) -> None:
    """Entry 2i is sin(p·base^(−2i/C)) and entry 2i+1 the cosine of the same."""
    assert sinusoidal(**example) == sinusoidal.exact(**example)


@spec.holds("SIN-2", kills=("sine_and_cosine_in_halves", "cosine_one_step_on", "stored_in_bfloat16", "counts_from_one",
                            "positions_in_bfloat16"),
            rests_on=(conduct["form"],), given={**SOME, "positions": NEAR}, dtypes=FLOAT32)
def a_step_is_a_turn(sinusoidal: Subject, example: Example) -> None:
    """PE(p + δ) is PE(p) turned, pair by pair, by an angle that is the same for every p: that of PE(δ)."""
    steps = example.integer("steps", 1, 40)
    sine, cosine = waves(sinusoidal(**example))
    step_sine, step_cosine = waves(sinusoidal(**example.but(positions=torch.tensor([steps]))))
    later_sine, later_cosine = waves(sinusoidal(**example.but(positions=example.positions + steps)))
    assert later_sine == sine * step_cosine + cosine * step_sine
    assert later_cosine == cosine * step_cosine - sine * step_sine


@spec.holds("SIN-3", kills=("grows_with_position", "stored_in_bfloat16", "cosine_one_step_on"), rests_on=(conduct["form"],),
            given=SOME, dtypes=FLOAT32)
def entries_are_waves_of_height_one(sinusoidal: Subject, example: Example) -> None:
    """No entry exceeds 1, each pair has squared length 1 and each position C/2, at any position.

    The bar is that of a sine alone: sin² + cos² = 1 of whatever angle was formed.
    """
    table = with_bars_of_waves(sinusoidal, example)
    assert table.abs() <= 1.0
    sine, cosine = waves(table)
    assert sine * sine + cosine * cosine == 1.0
    assert (table * table).sum(-1) == example.dims["C"] / 2


@spec.holds("SIN-3", kills=("positions_in_bfloat16",), rests_on=(conduct["form"],),
            given={"T": 64, "C": (8, 10, 16, 32, 64), "positions": ("offset", "near_256", "thousands"), "base": 10000.0},
            dtypes=FLOAT32)
def positions_are_told_apart(sinusoidal: Subject, example: Example) -> None:
    """Encodings of distinct positions within 4,096 of each other are further than 0.6 apart, for widths from 8 on."""
    first = 4500 if example.configuration.flags["positions"] == "thousands" else 0
    span = 1024 if first == 0 else 4096
    places = first + torch.randperm(span, generator=example.generator("places"))[:64]
    places[1] = places[0] + 1
    table = sinusoidal(**example.but(positions=places.unique()))
    gaps = table[:, None] - table[None]
    apart = (gaps * gaps).sum(-1)[~torch.eye(table.shape[0], dtype=torch.bool)]
    assert apart >= 0.6**2


@spec.holds("SIN-3", kills=("stretched_to_a_span", "counts_from_zero", "ignores_positions"), rests_on=(conduct["form"],),
            given={"T": at_least(2)}, dtypes=FLOAT32)
def a_position_does_not_depend_on_the_others(sinusoidal: Subject, example: Example) -> None:
    """The encoding of a position is the same however many are asked for, and whichever come before."""
    table, count = sinusoidal(**example), example.dims["T"]
    assert sinusoidal(**example.but(positions=example.positions[count // 2 :].clone())) == table[count // 2 :]
    assert sinusoidal(**example.but(positions=example.positions.flip(0))) == table.flip(0)


@spec.holds("SIN-3", kills=("odd_width_accepted",), rests_on=(conduct["form"],), needs=("base",), given=SOME, dtypes=FLOAT32)
def odd_width_is_refused(sinusoidal: Subject, example: Example) -> None:
    """An odd width is refused: sines and cosines come in pairs.

    Asked of those that take a base. What takes none hands out a library's table, and some libraries cut the last pair.
    """
    assert sinusoidal.refuses(**example.but(dim=example.dims["C"] + 1))
    assert sinusoidal.refuses(**example.but(dim=1))


@spec.holds("SIN-4", kills=("wraps_at_5000", "angle_in_bfloat16", "positions_in_bfloat16", "grows_with_position"),
            rests_on=(conduct["form"],), needs=("long_positions",), given={**SOME, "positions": (*NEAR, *LONG), "C": at_least(4)},
            dtypes=FLOAT32)
def far_positions_are_accurate(sinusoidal: Subject, example: Example) -> None:
    """Up to 10⁶, as near the origin, entries are finite and right to position · frequency · a few 2⁻²⁴."""
    table = sinusoidal(**example)
    assert fact(bool(table.value.isfinite().all()), "an entry is infinite or NaN", check="entries are finite", decided=False)
    assert table == sinusoidal.exact(**example)


@spec.holds("SIN-5", kills=("sine_and_cosine_swapped", "counts_from_one", "grows_with_position", "stretched_to_a_span",
                            "stored_in_bfloat16"),
            rests_on=(conduct["form"],), given={**SOME, "positions": (*NEAR, "thousands")}, dtypes=FLOAT32)
def products_depend_on_distance_only(sinusoidal: Subject, example: Example) -> None:
    """⟨PE(p), PE(q)⟩ is the sum of the cosines of PE(p − q), the same for (p, q) and (p + s, q + s)."""
    p, q = example.positions, example.positions + example.integer("distance", 1, 40)

    def products(shift: int) -> Any:
        return (sinusoidal(**example.but(positions=p + shift)) * sinusoidal(**example.but(positions=q + shift))).sum(-1)

    _, cosines = waves(sinusoidal(**example.but(positions=q - p)))
    assert products(0) == cosines.sum(-1)
    assert products(0) == products(9)


@spec.holds("SIN-1", kills=("remembers_by_length",), rests_on=(conduct["form"],), given=SOME, dtypes=FLOAT32)
def earlier_calls_with_other_positions_do_not_matter(sinusoidal: Subject, example: Example) -> None:
    """As many positions elsewhere give their own values, also after this call."""
    sinusoidal(**example)
    other = example.but(positions=example.positions + 5)
    assert sinusoidal(**other) == sinusoidal.exact(**other)
