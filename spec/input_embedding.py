"""What must hold of `input_embedding(ids, w_token, w_pos, *, positions=None)`: EMB-1, LRN-1."""
from __future__ import annotations

from typing import Any

import torch

from assay.cases import Cases, Configuration, Example, at_least, draw_values, generator
from assay.contract.declaration import Declaration
from assay.ledger import identical
from assay.properties import Specification
from assay.spec.conduct import add_conduct
from assay.subject import Subject


class InputEmbeddingCases(Cases):
    """Positions absent, from elsewhere, one row per sequence, restarting; sequences as long as the table and shorter."""

    kind = "input_embedding"
    dims = {"V": (5, 2, 1, 7, 16, 300), "C": (3, 1, 2, 4, 8, 17), "T": (4, 1, 2, 3, 5, 8, 17, 0), "B": (2, 1, 3, 4, 0),
            "room": (3, 0, 1, 20, 300)}  # T_max − T
    flags = {"positions": (None, "offset", "per_sequence", "packed", "permuted", "last")}
    families = ("integers", "normal", "positive", "heavy", "cancelling", "small", "peaked")

    def adapt(self, configuration: Configuration, claims: Declaration) -> Configuration | None:
        if not claims.claims("empty"):
            configuration = configuration.but(**{letter: max(1, configuration.dims[letter]) for letter in "BT"})
        if not claims.claims("positions"):
            configuration = configuration.but(positions=None)
        if configuration.dims["T"] + configuration.dims["room"] == 0:
            configuration = configuration.but(room=1)
        return configuration

    def build(self, configuration: Configuration, dtype: torch.dtype) -> Example:
        d, seed, family = configuration.dims, configuration.seed, configuration.family
        arguments: dict[str, Any] = {
            "ids": torch.randint(0, d["V"], (d["B"], d["T"]), generator=generator(seed, "ids")),
            "w_token": draw_values(family, (d["V"], d["C"]), generator(seed, "w_token"), dtype),
            "w_pos": draw_values(family, (d["T"] + d["room"], d["C"]), generator(seed, "w_pos"), dtype),
        }
        positions = draw_positions(configuration.flags["positions"], d, generator(seed, "positions"))
        if positions is not None:
            arguments["positions"] = positions
        return Example(configuration, dtype, arguments)


def draw_positions(name: str | None, dims: Any, source: torch.Generator) -> torch.Tensor | None:
    if name is None:
        return None
    length, room = dims["T"], dims["room"]
    steps = torch.arange(length)
    if name == "packed":
        return torch.cat((steps[: length - length // 2], steps[: length // 2]))
    if name == "permuted":
        return torch.randperm(length + room, generator=source)[:length]
    if name == "per_sequence":
        return steps + torch.randint(0, room + 1, (dims["B"], 1), generator=source)
    return steps + (room if name == "last" else int(torch.randint(0, room + 1, (), generator=source)))


spec = Specification("input_embedding", InputEmbeddingCases())
conduct = add_conduct(spec, shown_by="input_is_token_row_plus_position_row")


SOME = {"B": at_least(1), "T": at_least(1)}


@spec.holds("EMB-1", "LRN-1", kills=(
    "first_row_for_all", "restarts_not_seen", "counts_from_one", "counts_backwards", "no_positions", "multiplied",
    "token_scaled", "averaged"), rests_on=(conduct["form"],))
def input_is_token_row_plus_position_row(input_embedding: Subject, example: Example) -> None:
    """Every token gets the row of its id plus the row of its position."""
    assert input_embedding(**example) == input_embedding.exact(**example)


@spec.holds("EMB-1", kills=("counts_from_one", "counts_backwards"), rests_on=(conduct["form"],), needs=("positions",),
            given={**SOME, "positions": None, "T": at_least(2)})
def positions_left_out_are_counted_from_zero(input_embedding: Subject, example: Example) -> None:
    """Without positions tokens stand at 0, 1, 2 …, in every sequence."""
    counted = input_embedding.exact(**example.but(positions=torch.arange(example.dims["T"])))
    assert input_embedding(**example) == counted


@spec.holds("EMB-1", kills=("no_positions", "multiplied", "token_scaled", "averaged"), rests_on=(conduct["form"],), given=SOME)
def each_table_comes_in_unchanged(input_embedding: Subject, example: Example) -> None:
    """With one of the tables 0 the output is the other's rows, bit for bit."""
    places = example.get("positions", torch.arange(example.dims["T"]))
    tokens = input_embedding(**example.but(w_pos=torch.zeros_like(example.w_pos))).value
    rows = input_embedding(**example.but(w_token=torch.zeros_like(example.w_token))).value
    assert identical(tokens, example.w_token[example.ids], witness=bool((tokens != 0).any()))
    assert identical(rows, example.w_pos[places].expand(rows.shape), witness=bool((rows != 0).any()))


@spec.holds("EMB-1", kills=("first_row_for_all",), rests_on=(conduct["form"],), needs=("positions",),
            given={"B": (2, 3, 4), "T": at_least(1), "positions": "per_sequence", "room": at_least(1)})
def every_sequence_has_its_own_positions(input_embedding: Subject, example: Example) -> None:
    """Positions (B, T) give each sequence what it gets alone."""
    together = input_embedding(**example)
    for row in range(example.dims["B"]):
        alone = input_embedding(**example.but(ids=example.ids[row : row + 1], positions=example.positions[row]))
        assert together[row : row + 1] == alone


@spec.holds("LRN-1", kills=("wraps_beyond_the_table", "clamped_to_the_table", "zero_beyond_the_table"),
            rests_on=(conduct["form"],), needs=("positions",), given={**SOME, "positions": ("offset", "last", "per_sequence")})
def positions_beyond_the_table_are_refused(input_embedding: Subject, example: Example) -> None:
    """A position from T_max on, or below 0, is an error: no wrapping, no last row, no garbage."""
    rows = example.w_pos.shape[0]
    for wrong in (rows, rows + 9, -1):
        positions = example.positions.clone()
        positions[..., -1] = wrong
        assert input_embedding.refuses(**example.but(positions=positions))


@spec.holds("LRN-1", kills=("wraps_beyond_the_table", "clamped_to_the_table", "zero_beyond_the_table"),
            rests_on=(conduct["form"],), given={**SOME, "positions": None})
def sequences_longer_than_the_table_are_refused(input_embedding: Subject, example: Example) -> None:
    """More tokens than the table has positions is an error."""
    longer = torch.cat((example.ids, example.ids.new_zeros(example.dims["B"], example.dims["room"] + 1)), dim=-1)
    assert input_embedding.refuses(**example.but(ids=longer))


@spec.holds("EMB-1", "EMB-2", kills=("token_ids_wrap",), rests_on=(conduct["form"],), given=SOME)
def ids_outside_the_vocabulary_are_refused(input_embedding: Subject, example: Example) -> None:
    """An id below 0, or from V on, is an error."""
    for wrong in (example.dims["V"], example.dims["V"] + 3, -1):
        ids = example.ids.clone()
        ids[..., -1] = wrong
        assert input_embedding.refuses(**example.but(ids=ids))


@spec.holds("EMB-1", kills=("position_gradient_of_one_sequence", "positions_without_gradient"),
            rests_on=(input_is_token_row_plus_position_row,), gradient=True)
def gradients_sum_over_uses(input_embedding: Subject, example: Example) -> None:
    """Each row of either table gets the sum of the upstream rows of the tokens that used it."""
    got, want = input_embedding.gradients(**example), input_embedding.exact_gradients(**example)
    for name in ("w_token", "w_pos"):
        assert got[name] == want[name]


@spec.holds("LRN-1", kills=("remembers_by_length",), rests_on=(conduct["form"],), needs=("positions",),
            given={**SOME, "positions": "offset", "room": at_least(3)})
def earlier_positions_do_not_matter(input_embedding: Subject, example: Example) -> None:
    """The same ids elsewhere give the rows of where they stand now."""
    steps = torch.arange(example.dims["T"])
    for start in (0, example.dims["room"], 1):
        moved = example.but(positions=steps + start)
        assert input_embedding(**moved) == input_embedding.exact(**moved)
