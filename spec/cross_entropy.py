"""What must hold of `cross_entropy(logits, targets, *, ignore_index, label_smoothing, reduction)`: CE-1 … CE-5, LS-1 … LS-3."""
from __future__ import annotations

import math
from typing import Any

import torch

from assay.cases import Cases, Configuration, Example, at_least, draw_values, generator
from assay.contract.declaration import Declaration
from assay.ledger import fact, identical
from assay.numbers.bound import lift
from assay.properties import Specification
from assay.spec.conduct import add_conduct
from assay.subject import Subject

BUDGET = 4096  # logits of one example


def draw_logits(family: str, shape: tuple[int, ...], source: torch.Generator, dtype: torch.dtype) -> torch.Tensor:
    """Huge logits stand on a grid of the type: 2¹⁴ or −2¹⁴ plus small steps."""
    if family.startswith("huge"):
        base = -16384.0 if family == "huge_negative" else 16384.0
        return (base + draw_values("normal", shape, source, torch.float64)).to(dtype)
    return draw_values(family, shape, source, dtype)


class CrossEntropyCases(Cases):
    """N rows of V logits: no row, one or some ignored; ids to ignore inside and outside the vocabulary; mean, sum and rows."""

    kind = "cross_entropy"
    dims = {"N": (3, 1, 2, 4, 5, 7, 8, 9, 17, 33, 65, 0), "V": (3, 2, 1, 4, 5, 7, 8, 16, 17, 31, 33, 64, 65, 129, 257, 1025)}
    flags = {"reduction": ("mean", "sum", "none"), "ignored": ("none", "some", "first", "all"),
             "label_smoothing": (0.0, 0.1, 0.4, 0.01, 0.3), "ignore_index": (-100, 0)}
    families = ("integers", "normal", "peaked", "very_peaked", "positive", "small", "cancelling", "heavy", "one_hot", "constant",
                "huge", "huge_negative")

    def adapt(self, configuration: Configuration, claims: Declaration) -> Configuration | None:
        dims, flags = dict(configuration.dims), dict(configuration.flags)
        if dims["N"] == 0 and not claims.claims("empty"):
            dims["N"] = 1
        while dims["N"] * dims["V"] > BUDGET and claims.allows("N", dims["N"] // 2):
            dims["N"] //= 2
        if not claims.claims("ignore_index"):  # who does not take the argument has promised nothing of any id, -100 neither
            flags["ignored"] = "none"
        if dims["V"] == 1:
            flags["label_smoothing"], flags["ignore_index"] = 0.0, -100
        if configuration.family.startswith("huge"):  # smoothing sums V huge logits: beyond the range of half precision
            flags["label_smoothing"] = 0.0
        if flags["reduction"] == "mean" and claims.conventions["all_ignored"] == "refused":
            flags["ignored"] = "some" if flags["ignored"] == "all" else flags["ignored"]
            dims["N"] = max(1, dims["N"])
        return configuration.but(**dims, **flags)

    def build(self, configuration: Configuration, dtype: torch.dtype) -> Example:
        rows, size = configuration.dims["N"], configuration.dims["V"]
        flags, source = configuration.flags, generator(configuration.seed, "logits")
        ignore = flags["ignore_index"]
        first = 1 if ignore == 0 else 0  # an id to ignore inside the vocabulary is no target
        targets = torch.randint(first, size, (rows,), generator=source)
        targets = targets.masked_fill(hidden_rows(flags["ignored"], rows, source), ignore)
        arguments: dict[str, Any] = {"logits": draw_logits(configuration.family, (rows, size), source, dtype), "targets": targets}
        for name, default in (("reduction", "mean"), ("label_smoothing", 0.0), ("ignore_index", -100)):
            if flags[name] != default:
                arguments[name] = flags[name]
        return Example(configuration, dtype, arguments, {"counted": targets != ignore, "ignored_id": ignore})


def hidden_rows(sort: str, rows: int, source: torch.Generator) -> torch.Tensor:
    """Which rows are ignored: all, the first of several, or about half of them, but not every one."""
    hidden = torch.rand(rows, generator=source) < 0.5
    if sort == "first":
        hidden = torch.arange(rows) == 0
    if sort in ("first", "some") and rows:
        hidden[-1] = False
    return hidden if sort in ("first", "some") else torch.full_like(hidden, sort == "all")


spec = Specification("cross_entropy", CrossEntropyCases())
conduct = add_conduct(spec)
SOME = {"ignored": ("none", "some", "first"), "N": at_least(1)}
WORDS = {**SOME, "V": at_least(2)}
PLAIN = {**WORDS, "label_smoothing": 0.0}


def log_p(example: Example) -> torch.Tensor:
    """The logarithms of the softmax, in float64."""
    return torch.log_softmax(example.logits.double(), -1)


def target_log_p(example: Example) -> torch.Tensor:
    """log p of the target of every counted row, in float64."""
    return log_p(example)[example.counted].gather(-1, example.targets[example.counted][:, None])[:, 0]


@spec.holds("CE-1", "LS-1", kills=(
    "no_shift", "log_of_softmax_floored", "softmax_twice", "base_two", "negated", "zeros", "mean_over_all_rows",
    "sum_for_mean", "mean_for_sum", "mean_for_none", "ignored_rows_count", "ignore_index_fixed", "targets_off_by_one",
    "last_word_of_odd_vocabulary", "tail_of_vocabulary_unmasked", "second_tile_not_rescaled", "smoothing_ignored",
    "smoothing_over_all", "smoothing_over_others", "smoothing_target_keeps_all", "smoothing_conventions_mixed",
    "smoothing_by_entropy", "smoothing_of_ignored_rows", "computed_in_bfloat16", "strides_ignored",
    "targets_of_first_half"), rests_on=(conduct["form"],))
def output_is_the_formula(loss: Subject, example: Example) -> None:
    """The loss is minus the log-probability of each target, smoothed, summed or averaged over the rows that count."""
    assert loss(**example) == loss.exact(**example)


@spec.holds("CE-2", "LS-3", kills=(
    "gradient_upstream_of_first_row", "gradient_upstream_ignored", "gradient_not_averaged", "gradient_averaged_over_all",
    "gradient_without_target", "gradient_without_smoothing", "gradient_of_ignored_rows", "gradient_rounded_before_difference",
    "gradient_of_target_detached"), rests_on=(output_is_the_formula,), gradient=True, given=SOME)
def gradient_is_the_formula(loss: Subject, example: Example) -> None:
    """The gradient is softmax − target distribution, times the upstream gradient of the row, over the same mean."""
    assert loss.gradients(**example)["logits"] == loss.exact_gradients(**example)["logits"]


def with_ignored_replaced(example: Example) -> Example:
    """Other finite logits, large ones too, in the ignored rows."""
    other = example.values("other rows", *example.logits.shape, family="normal").double() * 64 + 4096
    return example.but(logits=torch.where(example.counted[:, None], example.logits, other.to(example.dtype)))


@spec.holds("CE-3", "E18", kills=("ignored_rows_count", "ignored_rows_multiplied", "smoothing_of_ignored_rows"),
            rests_on=(conduct["form"],), needs=("ignore_index",), given={**WORDS, "ignored": ("some", "first"), "N": at_least(2)})
def ignored_rows_add_nothing(loss: Subject, example: Example) -> None:
    """Whatever finite logits ignored rows hold, the loss is the same bit for bit: it sees the chosen positions alone."""
    usual = loss.values(**example)
    moved = example.but(logits=example.logits.roll(1, -1))
    assert identical(usual, loss.values(**with_ignored_replaced(example)), witness=(usual, loss.values(**moved)))


@spec.holds("CE-3", kills=("gradient_of_ignored_rows", "ignored_rows_count"), rests_on=(conduct["form"],), gradient=True,
            needs=("ignore_index",), given={**WORDS, "ignored": ("some", "first"), "N": at_least(2)})
def ignored_rows_get_no_gradient(loss: Subject, example: Example) -> None:
    """The gradient at an ignored row is exactly 0, whatever finite logits it holds."""
    for one in (example, with_ignored_replaced(example)):
        found = loss.gradients(**one)["logits"].value
        assert identical(found[~example.counted], 0.0, witness=bool((found[example.counted] != 0).any()))


@spec.holds("CE-3", kills=("mean_over_all_rows", "sum_for_mean", "mean_for_sum"), rests_on=(conduct["form"],),
            needs=("reduction", "reduction=sum"), given={**WORDS, "reduction": "mean"})
def mean_is_sum_over_counted_rows(loss: Subject, example: Example) -> None:
    """The mean times the number of counted rows is the sum."""
    total = loss(**example.but(reduction="sum"))
    assert loss(**example) * float(example.counted.sum()) == total


@spec.holds("CE-3", kills=("none_counted_gives_zero", "none_counted_gives_nan"), rests_on=(conduct["form"],),
            needs=("ignore_index",), conventions={"all_ignored": ("nan", "zero")}, given={**SOME, "reduction": "mean"})
def no_counted_row_has_the_declared_outcome(loss: Subject, example: Example) -> None:
    """The mean over no counted row is what was declared: NaN or 0."""
    ignored = example.but(targets=torch.full_like(example.targets, example.ignored_id))
    usual = loss.values(**example)
    assert identical(loss.values(**ignored), loss.exact(**ignored).value, witness=bool((usual != 0) | usual.isnan()))


@spec.holds("CE-3", kills=("none_counted_not_refused",), rests_on=(conduct["form"],), needs=("ignore_index",),
            conventions={"all_ignored": "refused"}, given={**SOME, "reduction": "mean"})
def no_counted_row_is_refused(loss: Subject, example: Example) -> None:
    """The mean over no counted row is refused, as declared."""
    loss.refuses(**example.but(targets=torch.full_like(example.targets, example.ignored_id)))


@spec.holds("CE-4", kills=("mean_for_sum", "targets_of_first_half"), rests_on=(conduct["form"],), needs=("reduction",),
            given={**WORDS, "reduction": "sum", "N": at_least(2)})
def sum_adds_up_over_pieces_of_a_batch(loss: Subject, example: Example) -> None:
    """The summed loss of a batch is that of its pieces added up, wherever it is cut."""
    cut = example.integer("cut", 1, example.dims["N"] - 1)
    first = loss(**example.but(logits=example.logits[:cut], targets=example.targets[:cut]))
    second = loss(**example.but(logits=example.logits[cut:], targets=example.targets[cut:]))
    assert loss(**example) == first + second


@spec.holds("CE-4", kills=("mean_for_sum", "negated", "base_two", "targets_off_by_one"), rests_on=(conduct["form"],),
            needs=("reduction",), given={**PLAIN, "reduction": "sum", "family": ("integers", "normal", "positive", "small")})
def exponential_of_minus_the_sum_is_the_product(loss: Subject, example: Example) -> None:
    """e to minus the summed loss is the product of the targets' probabilities."""
    assert (-loss(**example)).exp() == target_log_p(example).exp().prod()


@spec.holds("CE-5", kills=("negated", "base_two", "sum_for_mean", "mean_over_all_rows"), rests_on=(conduct["form"],),
            given={**PLAIN, "reduction": "mean"})
def perplexity_is_the_inverse_geometric_mean(loss: Subject, example: Example) -> None:
    """e to the mean loss is the inverse of the geometric mean of the targets' probabilities."""
    assert loss(**example).exp() == torch.exp(-target_log_p(example).mean())


@spec.holds("CE-5", kills=("base_two", "zeros", "last_word_of_odd_vocabulary", "tail_of_vocabulary_unmasked", "negated"),
            rests_on=(conduct["form"],), given={**WORDS, "reduction": "mean", "family": ("constant",)})
def uniform_logits_have_perplexity_v(loss: Subject, example: Example) -> None:
    """Equal logits over V ids give perplexity V, whatever their value and the smoothing."""
    assert loss(**example).exp() == float(example.dims["V"])


@spec.holds("CE-1", kills=("negated",), rests_on=(conduct["form"],), given=WORDS)
def loss_is_never_negative(loss: Subject, example: Example) -> None:
    """No loss is below 0."""
    assert loss(**example) >= 0.0


@spec.holds("CE-1", kills=("log_of_softmax", "log_of_softmax_floored"), rests_on=(conduct["form"],), given=PLAIN)
def improbable_target_costs_its_gap(loss: Subject, example: Example) -> None:
    """A target that lies 1024 below V−1 equal logits costs 1024 + log(V−1): finite, however improbable."""
    known = torch.where(example.counted, example.targets, 0)[:, None]
    gap = example.but(logits=torch.zeros_like(example.logits).scatter(-1, known, -1024.0))
    rows = example.counted.double() * (1024 + math.log(example.dims["V"] - 1))
    reduction = example.arguments.get("reduction", "mean")
    count = example.counted.sum() if reduction == "mean" else 1
    assert loss(**gap) == (rows if reduction == "none" else rows.sum() / count)


@spec.holds("CE-1", kills=("no_shift",), rests_on=(conduct["form"],), given={**WORDS, "family": ("integers",)})
def adding_a_constant_changes_nothing(loss: Subject, example: Example) -> None:
    """Adding a constant that is exact in the type to all logits changes no loss.

    Logits are small integers and the constant ±1024 (±128 in bfloat16, which holds integers up to 256), so that sums are exact.
    """
    constant = 128.0 if example.dtype == torch.bfloat16 else 1024.0
    for shift in (constant, -constant):
        assert loss(**example.but(logits=example.logits + shift)) == loss.exact(**example)


@spec.holds("CE-1", kills=("last_word_of_odd_vocabulary", "second_tile_not_rescaled"), rests_on=(conduct["form"],), given=WORDS)
def renaming_ids_changes_nothing(loss: Subject, example: Example) -> None:
    """Permuting the vocabulary, targets along with it, changes no loss within the bound."""
    order = example.permutation("ids", example.dims["V"])
    known = torch.where(example.counted, example.targets, 0)
    # the id to ignore may lie in the vocabulary: what it is exchanged for must not become a target
    keep = example.ignored_id if example.ignored_id >= 0 else None
    if keep is not None:
        at = int((order == keep).nonzero())
        order[at], order[keep] = order[keep].clone(), keep
    renamed = torch.where(example.counted, order.argsort()[known], example.targets)
    assert loss(**example.but(logits=example.logits[:, order], targets=renamed)) == loss(**example)


@spec.holds("CE-1", kills=("targets_of_first_half",), rests_on=(conduct["form"],), needs=("reduction",),
            given={**WORDS, "reduction": "none", "N": at_least(2)})
def permuting_rows_permutes_losses(loss: Subject, example: Example) -> None:
    """Rows in another order give the same losses in that order, within the bound."""
    order = example.permutation("rows", example.dims["N"])
    assert loss(**example.but(logits=example.logits[order], targets=example.targets[order])) == loss(**example)[order]


@spec.holds("CE-1", kills=("maximum_of_everything",), rests_on=(conduct["form"],), needs=("reduction",),
            conventions={"row_dependence": "none"}, given={**WORDS, "reduction": "none", "ignored": "none", "N": at_least(2)})
def rows_do_not_touch_each_other(loss: Subject, example: Example) -> None:
    """Replacing the other rows by others, far larger ones too, leaves a row's loss equal bit for bit."""
    other = example.logits.clone()
    other[1:] = (example.values("other rows", *other[1:].shape, family="normal").double() * 64 + 4096).to(example.dtype)
    before, after = (loss.values(**one).reshape(-1) for one in (example, example.but(logits=other)))
    assert identical(before[0], after[0], witness=(before[1:], after[1:]))


@spec.holds("CE-2", kills=("gradient_without_target", "gradient_of_target_detached"), rests_on=(gradient_is_the_formula,),
            gradient=True, given=WORDS, dtypes=("float64", "float32", "float16"))
def gradient_rows_sum_to_zero(loss: Subject, example: Example) -> None:
    """Each row of the gradient sums to 0: probabilities can only trade mass."""
    found = loss.gradients(**example)["logits"][example.counted]
    assert found[..., 1:].sum(-1) == -found[..., 0]


@spec.holds("CE-2", kills=("gradient_upstream_ignored",), rests_on=(gradient_is_the_formula,), gradient=True, given=WORDS)
def gradient_scales_with_upstream(loss: Subject, example: Example) -> None:
    """An upstream gradient of four times the size gives four times the gradient."""
    upstream = loss.upstream(**example)
    once = loss.gradients(**example, upstream=upstream)["logits"]
    assert loss.gradients(**example, upstream=tuple(4 * part for part in upstream))["logits"] == 4 * once


# ------------------------------------------------------------------------------------------------ smoothing
SMOOTH = {**WORDS, "reduction": "mean", "label_smoothing": (0.1, 0.4, 0.3)}


def share(loss: Subject, example: Example) -> float:
    """The mass that leaves the target: ε, or ε·(V−1)/V where it is spread over all ids."""
    epsilon, size = float(example.label_smoothing), example.dims["V"]
    return epsilon if loss.conventions["smoothing"] == "others" else epsilon * (size - 1) / size


@spec.holds("LS-1", "LS-2", "E6", kills=("smoothing_ignored", "smoothing_over_all", "smoothing_over_others",
                                         "smoothing_target_keeps_all", "smoothing_conventions_mixed", "smoothing_by_entropy",
                                         "smoothing_of_ignored_rows"),
            rests_on=(output_is_the_formula,), needs=("label_smoothing",), given=SMOOTH,
            dtypes=("float64", "float32", "float16"))
def smoothing_costs_the_gap_to_the_others(loss: Subject, example: Example) -> None:
    """Smoothed − plain loss is the moved mass times (log p of the target − the others' mean log p).

    So it is positive just where the target beats the others' geometric mean. The moved mass is ε where it goes to the other ids,
    ε·(V−1)/V where it goes to all: the two declared variants are one family.
    """
    every, hit = log_p(example)[example.counted], target_log_p(example)
    others = (every.sum(-1) - hit) / (example.dims["V"] - 1)
    expected = share(loss, example) * (hit - others).mean()
    assert loss(**example) - loss(**example.but(label_smoothing=0.0)) == expected


@spec.holds("LS-1", kills=("smoothing_quadratic",), rests_on=(output_is_the_formula,),
            needs=("label_smoothing",), given=SMOOTH, dtypes=("float64", "float32"))
def smoothing_is_linear(loss: Subject, example: Example) -> None:
    """The loss is linear in ε: from ε = 0, the plain loss, twice as far is twice the change."""
    epsilon = float(example.label_smoothing)
    plain, once = loss(**example.but(label_smoothing=0.0)), loss(**example)
    assert loss(**example.but(label_smoothing=2 * epsilon)) - plain == 2 * (once - plain)


@spec.holds("LS-2", kills=("zeros", "negated"), rests_on=(output_is_the_formula,),
            needs=("label_smoothing",), given=SMOOTH)
def smoothed_loss_is_at_least_its_entropy(loss: Subject, example: Example) -> None:
    """No prediction gets below the entropy of the smoothed target."""
    assert loss(**example) >= entropy(share(loss, example), example.dims["V"])


def entropy(mass: float, size: int) -> float:
    """H(q) of a target distribution that gives `mass` away, evenly, to the others."""
    return -(1 - mass) * math.log(1 - mass) - mass * math.log(mass / (size - 1))


def best_gap(mass: float, size: int) -> float:
    """How far the target's logit lies above the others where softmax = q."""
    return math.log((1 - mass) * (size - 1) / mass)


def at_gap(example: Example, gap: float) -> tuple[Example, float]:
    """Equal logits but for the target's, which lies `gap` above; and the gap that the type could hold."""
    known = torch.where(example.counted, example.targets, 0)[:, None]
    logits = torch.zeros_like(example.logits).scatter(-1, known, gap)
    return example.but(logits=logits), float(torch.tensor(gap, dtype=example.dtype))


@spec.holds("LS-2", "E30", kills=("smoothing_target_keeps_all", "smoothing_ignored", "smoothing_over_all", "base_two"),
            rests_on=(output_is_the_formula,), needs=("label_smoothing",), given=SMOOTH)
def best_prediction_costs_the_entropy(loss: Subject, example: Example) -> None:
    """At logit gap log((1−ε)(V−1)/ε) the smoothed loss is H(q) and the plain one −log(1−ε), so perplexity is 1/(1−ε).

    The type holds the gap but for a rounding; no loss changes faster than the gap, so that is the bar of what is expected.
    """
    mass, size = share(loss, example), example.dims["V"]
    best, held = at_gap(example, best_gap(mass, size))
    slack = torch.tensor(abs(held - best_gap(mass, size)), dtype=torch.float64)
    assert loss(**best) == lift(torch.tensor(entropy(mass, size), dtype=torch.float64), slack)
    plain = loss(**best.but(label_smoothing=0.0))
    assert plain == lift(torch.tensor(-math.log(1 - mass), dtype=torch.float64), slack)


@spec.holds("LS-3", kills=("gradient_without_smoothing", "gradient_without_target"), rests_on=(gradient_is_the_formula,),
            needs=("label_smoothing",), gradient=True, given=SMOOTH)
def gradient_turns_at_the_smoothed_target(loss: Subject, example: Example) -> None:
    """The target's logit is pulled up below softmax = q and pushed down above it: there alone the gradient is 0."""
    gap, one = best_gap(share(loss, example), example.dims["V"]), (torch.ones((), dtype=example.dtype),)
    hit = example.targets[example.counted][:, None]
    low = loss.gradients(**at_gap(example, gap - 2)[0], upstream=one)["logits"][example.counted].gather(-1, hit)
    high = loss.gradients(**at_gap(example, gap + 2)[0], upstream=one)["logits"][example.counted].gather(-1, hit)
    apart = bool((low.value.abs() > low.bar).all()) and bool((high.value.abs() > high.bar).all())
    assert low <= 0.0
    assert high >= 0.0
    fact(not apart or bool((low.value < 0).all() and (high.value > 0).all()),
         "the gradient does not change its sign at softmax = q", decided=apart, check="the gradient changes its sign")
