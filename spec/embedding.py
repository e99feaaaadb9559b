"""What must hold of `embedding(ids, weight)`: EMB-2."""
from __future__ import annotations

import torch

from assay.cases import Cases, Configuration, Example, at_least, draw_values, generator
from assay.contract.declaration import Declaration
from assay.ledger import identical
from assay.numbers.bound import Bounded
from assay.properties import Specification
from assay.spec.conduct import add_conduct
from assay.subject import Subject


class EmbeddingCases(Cases):
    """Ids of one, two and three axes; rows used once, often, never; tables of one row and of more than 256."""

    kind = "embedding"
    dims = {"V": (5, 2, 3, 7, 1, 16, 300, 1000), "C": (3, 1, 2, 4, 8, 17), "T": (4, 1, 2, 3, 7, 33, 0), "B": (2, 1, 3, 0)}
    flags = {"axes": (2, 1, 3), "used": ("any", "few", "last", "all")}
    families = ("integers", "normal", "positive", "heavy", "cancelling", "small", "peaked")

    def adapt(self, configuration: Configuration, claims: Declaration) -> Configuration | None:
        if not claims.claims("empty"):
            configuration = configuration.but(**{letter: max(1, configuration.dims[letter]) for letter in "BT"})
        return configuration

    def build(self, configuration: Configuration, dtype: torch.dtype) -> Example:
        d, seed = configuration.dims, configuration.seed
        shape = {1: (d["T"],), 2: (d["B"], d["T"]), 3: (d["B"], 2, d["T"])}[configuration.flags["axes"]]
        ids = draw_ids(configuration.flags["used"], shape, d["V"], generator(seed, "ids"))
        return Example(configuration, dtype, {
            "ids": ids, "weight": draw_values(configuration.family, (d["V"], d["C"]), generator(seed, "weight"), dtype)})


def draw_ids(used: str, shape: tuple[int, ...], rows: int, source: torch.Generator) -> torch.Tensor:
    """Ids of any rows, of two rows alone, of the last ones, or of one after another."""
    found = torch.randint(0, rows, shape, generator=source)
    if used == "few":
        return (found % 2).clamp_max(rows - 1)
    if used == "last":
        return rows - 1 - found % min(3, rows)
    return torch.arange(found.numel()).reshape(shape) % rows if used == "all" else found


spec = Specification("embedding", EmbeddingCases())
conduct = add_conduct(spec, shown_by="ids_pick_rows")


SOME = {"B": at_least(1), "T": at_least(1)}


@spec.holds("EMB-2", kills=("whole_table_zeroed", "first_row_is_padding", "off_by_one", "scaled_by_the_width", "ids_in_half"),
            rests_on=(conduct["form"],))
def ids_pick_rows(embedding: Subject, example: Example) -> None:
    """Every token gets the row of the table that its id names, unchanged."""
    assert embedding(**example) == embedding.exact(**example)


@spec.holds("EMB-2", kills=("off_by_one", "first_row_is_padding", "scaled_by_the_width"), rests_on=(conduct["form"],),
            given={**SOME, "V": (2, 3, 5, 7, 16), "axes": 1})
def it_is_one_hot_times_the_table(embedding: Subject, example: Example) -> None:
    """One-hot vectors times the table give the same."""
    one_hot = torch.nn.functional.one_hot(example.ids, example.dims["V"]).double()
    assert embedding(**example) == one_hot @ example.weight.double()


@spec.holds("EMB-2", kills=("mixed_with_neighbours",), rests_on=(conduct["form"],),
            given={**SOME, "T": at_least(2)})
def equal_ids_get_equal_rows(embedding: Subject, example: Example) -> None:
    """Wherever an id stands, it gets the same row, bit for bit; the rest of the sequence has no part in it."""
    ids = example.ids.clone()
    ids[..., -1] = ids[..., 0]
    out = embedding(**example.but(ids=ids)).value
    assert identical(out[..., -1, :], out[..., 0, :], witness=bool((out != 0).any()))


@spec.holds("EMB-2", kills=("negative_ids_wrap", "large_ids_wrap", "large_ids_clamped"), rests_on=(conduct["form"],),
            given=SOME)
def ids_outside_the_table_are_refused(embedding: Subject, example: Example) -> None:
    """An id below 0, or from V on, is an error: no wrapping, no last row, no garbage."""
    for wrong in (example.dims["V"], example.dims["V"] + 7, -1):
        ids = example.ids.clone()
        ids[..., -1] = wrong
        assert embedding.refuses(**example.but(ids=ids))


@spec.holds("EMB-2", kills=("last_use_wins", "gradient_averaged", "gradient_everywhere", "no_gradient_to_row_zero",
                            "weight_without_gradient"), rests_on=(ids_pick_rows,), gradient=True)
def gradient_of_a_row_is_the_sum_over_its_uses(embedding: Subject, example: Example) -> None:
    """The gradient of each row is the sum of the upstream rows of the tokens that used it."""
    assert embedding.gradients(**example)["weight"] == embedding.exact_gradients(**example)["weight"]


@spec.holds("EMB-2", kills=("gradient_everywhere",), rests_on=(conduct["form"],), gradient=True,
            given={**SOME, "V": at_least(3), "used": ("few", "last")})
def unused_rows_get_no_gradient(embedding: Subject, example: Example) -> None:
    """Rows that no token used have gradient exactly 0."""
    gradient: Bounded = embedding.gradients(**example)["weight"]
    used = torch.zeros(example.dims["V"], dtype=torch.bool)
    used[example.ids.flatten()] = True
    assert identical(gradient.value[~used], 0.0, witness=bool((gradient.value[used] != 0).any()))
