"""What must hold of `mlm_mask(ids, special, *, mask_id, vocab_size, p, seed)`: MLM-1, MLM-2.

Which tokens are chosen is chance: counts are binomial, and every test is exact (see `chance.binomial`). A thousand
rows make a rate that is a tenth off, a favoured position or a shared pattern certain to be found.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from assay.cases import Cases, Configuration, Example, generator
from assay.contract.declaration import Declaration
from assay.errors import ExampleOverError
from assay.ledger import fact, statistic
from assay.properties import Specification
from assay.spec.chance import binomial, stats
from assay.spec.conduct import add_conduct
from assay.subject import Subject

ALPHA = 1e-9
IGNORED = -100


class MlmMaskCases(Cases):
    """Rows of T ids, the first special and the last as well or not, some padded; the mask id is never among them."""

    kind = "mlm_mask"
    dims = {"B": (1000, 1, 2, 3), "T": (16, 3, 4, 5, 17, 33, 130), "V": (101, 64, 1000, 11)}
    flags = {"p": (0.15, 0.5, 0.3), "padded": (False, True), "last_special": (True, False)}
    families = ("integers",)

    def adapt(self, configuration: Configuration, claims: Declaration) -> Configuration | None:
        return configuration

    def build(self, configuration: Configuration, dtype: torch.dtype) -> Example:
        d, flags, seed = configuration.dims, configuration.flags, configuration.seed
        source, mask_id = generator(seed, "ids"), 3 + seed % 7
        ids = torch.randint(0, d["V"] - 1, (d["B"], d["T"]), generator=source)
        ids = ids + (ids >= mask_id)
        special = torch.zeros(ids.shape, dtype=torch.bool)
        special[:, 0] = True
        special[:, -1] = flags["last_special"] and d["T"] > 3
        if flags["padded"]:
            special[::2, d["T"] // 2 + 1 :] = True
        arguments: dict[str, Any] = {
            "ids": ids,
            "special": special,
            "mask_id": mask_id,
            "vocab_size": d["V"],
            "p": flags["p"],
            "seed": 1 + 7919 * seed,
        }
        return Example(configuration, dtype, arguments)


@dataclass(frozen=True)
class Masked:
    """One call's outcome."""

    ids: torch.Tensor
    labels: torch.Tensor
    chosen: torch.Tensor  # where there is a label


def masked(mlm_mask: Subject, example: Example) -> Masked:
    """One call, found to give whole numbers; ends the example where it does not."""
    ids, labels = mlm_mask(**example)
    for name, got in (("ids", ids), ("labels", labels)):
        if not fact(
            got.dtype == example.ids.dtype,
            f"{name} are {got.dtype}",
            expected=str(example.ids.dtype),
            decided=False,
            check=f"type of {name}",
        ):
            raise ExampleOverError("no ids")
    return Masked(ids, labels, labels != IGNORED)


def share(count: int, trials: int, low: float, high: float, alpha: float, text: str) -> None:
    """A count out of so many is one that a probability in low … high explains."""
    assert statistic(
        binomial(count, trials, low, high),
        alpha,
        text=text,
        got=f"{count} of {trials}",
        expected=f"a share of {low:.4g}" + (f" to {high:.4g}" if high > low else ""),
    )


def agree(mlm_mask: Subject, example: Example) -> None:
    """Labels and ids fit together, no special token is chosen, and the share of chosen ones is right."""
    found = masked(mlm_mask, example)
    _labels_fit(found, example)
    _special_kept(found, example)
    eligible = int((~example.special).sum())
    if mlm_mask.conventions["mlm_choice"] == "bernoulli":
        share(int(found.chosen.sum()), eligible, example.p, example.p, ALPHA, "the share of chosen tokens is not p")


def _labels_fit(found: Masked, example: Example) -> None:
    wrong = found.chosen & (found.labels != example.ids)
    assert fact(
        not bool(wrong.any()),
        "a label is not the original id",
        got=_values(found.labels, wrong),
        expected=_values(example.ids, wrong),
        check="labels",
        decided=bool(found.chosen.any()),
    )
    changed = ~found.chosen & (found.ids != example.ids)
    assert fact(
        not bool(changed.any()),
        "an id without a label is changed",
        got=_values(found.ids, changed),
        expected=_values(example.ids, changed),
        check="unchosen ids",
    )


def _special_kept(found: Masked, example: Example) -> None:
    assert fact(
        not bool((found.chosen & example.special).any()),
        "a special token or padding is chosen",
        check="special tokens",
        decided=bool(found.chosen.any()),
    )


def _values(tensor: torch.Tensor, where: torch.Tensor) -> str:
    return str(tensor[where][:4].tolist())


spec = Specification("mlm_mask", MlmMaskCases())
conduct = add_conduct(spec, agree=agree, shown_by="labels_hold_the_original_ids")
MANY: dict[str, Any] = {"B": 1000, "T": (16, 17, 33, 130)}
ONE_BY_ONE, COUNTED = {"mlm_choice": "bernoulli"}, {"mlm_choice": "count"}


@spec.holds(
    "MLM-2",
    kills=("labels_after_masking", "labels_everywhere", "labels_zero_elsewhere", "labels_inverted"),
    rests_on=(conduct["form"],),
)
def labels_hold_the_original_ids(mlm_mask: Subject, example: Example) -> None:
    """Labels hold the original id at chosen positions and −100 elsewhere; unchosen ids are unchanged."""
    found = masked(mlm_mask, example)
    _labels_fit(found, example)
    assert fact(
        not bool(found.chosen[:, :1].any()), "a position that is never chosen has a label", check="labels elsewhere"
    )


@spec.holds(
    "MLM-1",
    kills=("special_chosen", "special_inverted", "last_special_unprotected", "labels_everywhere"),
    rests_on=(conduct["form"],),
    given={"T": (16, 17, 33)},
)
def special_tokens_are_never_chosen(mlm_mask: Subject, example: Example) -> None:
    """Special tokens and padding are never chosen."""
    _special_kept(masked(mlm_mask, example), example)


@spec.holds(
    "MLM-1",
    "MLM-2",
    kills=("labels_wherever_the_mask_stands",),
    rests_on=(special_tokens_are_never_chosen,),
    given={"T": (16, 17, 33)},
)
def masks_that_stood_there_have_no_label(mlm_mask: Subject, example: Example) -> None:
    """Special tokens that hold the mask's id already, in a text hidden before, get no label: what is chosen is not told by ids."""
    hidden_before = example.but(ids=torch.where(example.special, example.mask_id, example.ids))
    found = masked(mlm_mask, hidden_before)
    _special_kept(found, hidden_before)
    _labels_fit(found, hidden_before)


@spec.holds(
    "MLM-1",
    kills=("rate_fixed", "rate_too_low", "everything_chosen", "nothing_chosen", "at_least_one_a_row", "at_most_twenty_a_row"),
    conventions=ONE_BY_ONE,
    rests_on=(conduct["form"],),
    statistical=ALPHA,
    given={"B": 1000},
)
def share_of_chosen_tokens_is_p(mlm_mask: Subject, example: Example) -> None:
    """Each ordinary token is chosen with probability p, in short rows and in long ones."""
    found = masked(mlm_mask, example)
    share(
        int(found.chosen.sum()),
        int((~example.special).sum()),
        example.p,
        example.p,
        ALPHA,
        "the share of chosen tokens is not p",
    )


@spec.holds(
    "MLM-1", kills=("count_unsteady",), conventions=COUNTED, needs=("p",), rests_on=(conduct["form"],),
    given=MANY | {"p": (0.5, 0.3)},
)
def count_of_chosen_tokens_is_fixed_where_declared(mlm_mask: Subject, example: Example) -> None:
    """Each row has its share of chosen tokens, rounded to a whole number either way, and at least one."""
    chosen, wanted = masked(mlm_mask, example).chosen.sum(-1), example.p * (~example.special).sum(-1)
    fits = ((chosen - wanted).abs() < 1) | ((chosen == 1) & (wanted < 1))
    assert fact(
        bool(fits.all()),
        "a row's count is not its share",
        got=str(chosen[~fits][:4].tolist()),
        expected=f"about {wanted[~fits][:4].tolist()}",
        check="chosen tokens a row",
    )


@spec.holds(
    "MLM-1",
    kills=("early_positions_favoured", "last_position_never_chosen", "rows_share_pattern"),
    needs=("p",), rests_on=(conduct["form"],),
    statistical=ALPHA,
    given=MANY | {"p": (0.5, 0.3)},
)
def positions_are_chosen_alike(mlm_mask: Subject, example: Example) -> None:
    """Every position is chosen as often as its rows' share says: none is favoured, and rows are drawn apart."""
    found, eligible = masked(mlm_mask, example), ~example.special
    likely = _likely(mlm_mask, example)
    tested = [t for t in range(eligible.shape[1]) if bool(eligible[:, t].any())]
    for t in tested:
        rows = eligible[:, t]
        low, high = float(likely[0][rows].min()), float(likely[1][rows].max())
        share(
            int(found.chosen[rows, t].sum()),
            int(rows.sum()),
            low,
            high,
            ALPHA / len(tested),
            f"position {t} is not chosen as often as it should be",
        )


@spec.holds(
    "MLM-1",
    kills=("id_zero_never_chosen",),
    conventions=ONE_BY_ONE,
    needs=("p",), rests_on=(share_of_chosen_tokens_is_p,),
    statistical=ALPHA,
    given=MANY | {"V": 11, "p": (0.5, 0.3)},
)
def ids_are_chosen_alike(mlm_mask: Subject, example: Example) -> None:
    """Every ordinary token is chosen with probability p whatever its id: what is special is told by the flags alone."""
    found, ordinary = masked(mlm_mask, example), ~example.special
    tested = [name for name in range(example.vocab_size) if name != example.mask_id]
    for name in tested:
        here = ordinary & (example.ids == name)
        count, trials = int((found.chosen & here).sum()), int(here.sum())
        share(count, trials, example.p, example.p, ALPHA / len(tested), f"tokens of id {name} are not chosen with probability p")


def _likely(mlm_mask: Subject, example: Example) -> tuple[torch.Tensor, torch.Tensor]:
    """Least and greatest probability (B,) of a row's ordinary token to be chosen."""
    count = (~example.special).sum(-1).double()
    if mlm_mask.conventions["mlm_choice"] == "bernoulli":
        return torch.full_like(count, example.p), torch.full_like(count, example.p)
    wanted = example.p * count
    return wanted.floor() / count.clamp(min=1), (wanted.ceil().clamp(min=1) / count.clamp(min=1)).clamp(max=1)


@spec.holds(
    "MLM-1",
    kills=("fixed_count", "rows_share_pattern"),
    conventions=ONE_BY_ONE,
    needs=("p",), rests_on=(share_of_chosen_tokens_is_p,),
    statistical=ALPHA,
    given=MANY | {"padded": False, "p": (0.5, 0.3)},
)
def counts_vary_as_independent_choices_do(mlm_mask: Subject, example: Example) -> None:
    """The number of chosen tokens of a row varies from row to row as that of independent choices does."""
    counts, size = masked(mlm_mask, example).chosen.sum(-1), int((~example.special[0]).sum())
    usual = round(example.p * size)
    likely = float(stats().binom.pmf(usual, size, example.p))
    share(
        int((counts == usual).sum()),
        len(counts),
        likely,
        likely,
        ALPHA,
        f"rows with {usual} chosen tokens are too many or too few",
    )


@spec.holds(
    "MLM-1",
    kills=("chosen_in_runs",),
    conventions=ONE_BY_ONE,
    needs=("p",), rests_on=(share_of_chosen_tokens_is_p,),
    statistical=2 * ALPHA,
    given=MANY | {"padded": False, "p": (0.5, 0.3)},
)
def neighbours_are_chosen_independently(mlm_mask: Subject, example: Example) -> None:
    """Two neighbours are both chosen with probability p²."""
    inner = masked(mlm_mask, example).chosen[:, 1:-1]
    for start in (0, 1):
        both = inner[:, start:-1:2] & inner[:, start + 1 :: 2]
        share(
            int(both.sum()),
            both.numel(),
            example.p**2,
            example.p**2,
            ALPHA,
            "neighbours are chosen together too often or too seldom",
        )


@spec.holds(
    "MLM-1",
    kills=("ids_unchanged", "wrong_mask_id", "some_kept"),
    conventions={"mlm_replace": "mask_only"},
    rests_on=(labels_hold_the_original_ids,),
)
def chosen_tokens_become_the_mask(mlm_mask: Subject, example: Example) -> None:
    """Every chosen token becomes the mask."""
    found = masked(mlm_mask, example)
    wrong = found.chosen & (found.ids != example.mask_id)
    assert fact(
        not bool(wrong.any()),
        "a chosen token does not become the mask",
        got=_values(found.ids, wrong),
        expected=str(example.mask_id),
        check="chosen ids",
        decided=bool(found.chosen.any()),
    )


@spec.holds(
    "MLM-1",
    kills=("all_hidden", "none_kept", "random_from_lower_half"),
    conventions={"mlm_replace": "bert"},
    needs=("p",), rests_on=(labels_hold_the_original_ids,),
    statistical=4 * ALPHA,
    given=MANY | {"p": (0.5, 0.3), "V": (101, 1000)},
)
def replacement_is_80_10_10_where_declared(mlm_mask: Subject, example: Example) -> None:
    """Of the chosen tokens 80 % become the mask, 10 % a random id, and 10 % stay.

    The random id may be the mask or the original one, or be drawn from the others alone.
    """
    found = masked(mlm_mask, example)
    chosen, slack = int(found.chosen.sum()), 0.1 / (example.vocab_size - 1)
    hidden = found.chosen & (found.ids == example.mask_id)
    stayed = found.chosen & (found.ids == example.ids)
    other = found.chosen & ~hidden & ~stayed
    share(int(hidden.sum()), chosen, 0.8, 0.8 + slack, ALPHA, "the share of masks is not 80 %")
    share(int(stayed.sum()), chosen, 0.1, 0.1 + slack, ALPHA, "the share of tokens that stay is not 10 %")
    share(int(other.sum()), chosen, 0.1 - 2 * slack, 0.1, ALPHA, "the share of random ids is not 10 %")
    upper, edge = other & (found.ids >= example.vocab_size // 2), 3 / example.vocab_size
    share(
        int(upper.sum()),
        int(other.sum()),
        0.5 - edge,
        0.5 + edge,
        ALPHA,
        "random ids do not come from the whole vocabulary",
    )


@spec.holds(
    "MLM-1",
    kills=("last_id_never_random", "random_from_lower_half", "one_random_id"),
    conventions={"mlm_replace": "bert"},
    needs=("p",), rests_on=(replacement_is_80_10_10_where_declared,),
    statistical=ALPHA,
    given=MANY | {"p": (0.5, 0.3), "V": 11},
)
def random_ids_come_from_the_whole_vocabulary_where_declared(mlm_mask: Subject, example: Example) -> None:
    """A tenth of the chosen tokens is spread evenly over the vocabulary, its first and last id included.

    An id takes the place of others with probability 0.1/V, or up to 0.1/(V−2) where the mask and the original are not drawn.
    """
    found, size = masked(mlm_mask, example), example.vocab_size
    tested = [name for name in range(size) if name != example.mask_id]
    for name in tested:
        others = found.chosen & (example.ids != name)
        count = int((others & (found.ids == name)).sum())
        text = f"id {name} is not a random id as often as others"
        share(count, int(others.sum()), 0.1 / size, 0.1 / (size - 2), ALPHA / len(tested), text)


@spec.holds("MLM-2", kills=("seed_ignored",), rests_on=(conduct["form"],), given=MANY)
def same_seed_gives_the_same_choice(mlm_mask: Subject, example: Example) -> None:
    """The same seed gives the same choice, also after another seed."""
    first = masked(mlm_mask, example)
    masked(mlm_mask, example.but(seed=example.seed + 1))
    again = masked(mlm_mask, example)
    assert fact(
        torch.equal(first.labels, again.labels) and torch.equal(first.ids, again.ids),
        "two calls with one seed differ",
        check="choice",
        decided=bool(first.chosen.any()),
    )


@spec.holds(
    "MLM-1",
    kills=("seed_constant", "eight_bits_of_the_seed"),
    conventions=ONE_BY_ONE,
    rests_on=(share_of_chosen_tokens_is_p,),
    statistical=4 * ALPHA,
    given=MANY,
)
def another_seed_gives_another_choice(mlm_mask: Subject, example: Example) -> None:
    """Two seeds, close or far, choose a token both with probability p²."""
    first, square = masked(mlm_mask, example).chosen, example.p**2
    for step in (1, 2, 256, 65536):
        both = first & masked(mlm_mask, example.but(seed=example.seed + step)).chosen
        share(
            int(both.sum()),
            int((~example.special).sum()),
            square,
            math.nextafter(square, 1),
            ALPHA,
            "choices of two seeds are not independent",
        )


@spec.holds("MLM-1", kills=("share_of_zero_taken_for_the_default",), conventions=ONE_BY_ONE, needs=("p",),
            rests_on=(conduct["form"],), examples=2, given={"B": 1000, "p": 0.0})
def share_of_zero_chooses_nothing(mlm_mask: Subject, example: Example) -> None:
    """With p = 0 no token is chosen, and the ids come back as they were."""
    found = masked(mlm_mask, example)
    assert fact(not bool(found.chosen.any()), "tokens are chosen though p is 0", check="nothing is chosen",
                got=str(int(found.chosen.sum())), expected="0")
    assert fact(torch.equal(found.ids, example.ids), "ids are changed though p is 0", check="unchosen ids")


@spec.holds("MLM-2", kills=("mask_id_of_zero_taken_for_one",), conventions={"mlm_replace": "mask_only"},
            rests_on=(conduct["form"],), examples=2, given={"B": 1000, "p": (0.5, 0.15)})
def mask_id_may_be_zero(mlm_mask: Subject, example: Example) -> None:
    """The mask's id may be 0: every chosen token becomes it."""
    free = torch.where(example.ids == 0, example.mask_id, example.ids)  # no 0 among the ids
    found = masked(mlm_mask, example.but(ids=free, mask_id=0))
    assert fact(not bool(found.ids[found.chosen].any()), "a chosen token is not the mask's id", check="ids of chosen tokens",
                got=_values(found.ids, found.chosen & (found.ids != 0)), expected="0", decided=bool(found.chosen.any()))


@spec.holds("CONDUCT", kills=("seed_of_zero_draws_anew",), conventions={"repeatability": "bitwise"}, rests_on=(conduct["form"],),
            examples=2, given={"B": 1000, "p": (0.5, 0.15)})
def seed_of_zero_is_a_seed(mlm_mask: Subject, example: Example) -> None:
    """With seed 0, too, the same call chooses the same tokens."""
    first, again = (masked(mlm_mask, example.but(seed=0)) for _ in range(2))
    assert fact(torch.equal(first.chosen, again.chosen), "the same call with seed 0 chooses other tokens", check="chosen tokens",
                decided=bool(first.chosen.any()))
