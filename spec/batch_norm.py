"""What must hold of `batch_norm(x, weight, bias, running_mean, running_var, *, training, momentum, eps)`: BN-1 … BN-4."""
from __future__ import annotations

import math
from typing import Any

import torch

from assay.cases import Cases, Configuration, Example, at_least, draw_values, generator
from assay.contract.declaration import Declaration
from assay.ledger import fact, identical, statistic
from assay.numbers.bound import Bounded
from assay.properties import Specification
from assay.spec import chance
from assay.spec.conduct import add_conduct
from assay.spec.norm_cases import exactly, factor, usual_eps
from assay.subject import Subject

FALSE_ALARMS = 1e-9  # of one decision
FEATURES = 1024  # independent batches behind one statistical decision, or a few more


class BatchNormCases(Cases):
    """N rows of C features, training and evaluation; running statistics far from those of the batch."""

    kind = "batch_norm"
    dims = {"N": (4, 3, 2, 5, 8, 16, 17, 33, 1, 129, 0), "C": (3, 1, 2, 4, 5, 7, 8, 16, 17, 33, 64)}
    flags = {
        "training": (True, False), "momentum": (0.25, 0.1, 0.5, 1.0), "eps": (1e-5, 1e-3, 0.5, 1e-6),
        "size": ("unit", "root_eps", "below_eps", "large"), "feature": ("drawn", "equal"),
    }

    def adapt(self, configuration: Configuration, claims: Declaration) -> Configuration | None:
        found, rows = configuration, configuration.dims["N"]
        if rows < 2 and found.flags["training"]:
            found = found.but(N=2)
        if rows == 0 and not claims.claims("empty"):
            found = found.but(N=2)
        return found if "eps" in claims.keywords else found.but(eps=claims.conventions["eps"])

    def build(self, configuration: Configuration, dtype: torch.dtype) -> Example:
        flags, seed, d = configuration.flags, configuration.seed, configuration.dims
        x = draw_values(configuration.family, (d["N"], d["C"]), generator(seed, "x"), torch.float64)
        if flags["feature"] == "equal":
            x[:, 0] = 3.0
        arguments: dict[str, Any] = {"x": (x * factor(flags["size"], flags["eps"], dtype)).to(dtype)}
        for name in ("weight", "bias", "running_mean"):
            arguments[name] = draw_values("normal", (d["C"],), generator(seed, name), dtype)
        arguments["running_var"] = draw_values("positive", (d["C"],), generator(seed, "running_var"), dtype) + 0.5
        return Example(configuration, dtype, {**arguments, **{name: flags[name] for name in ("training", "momentum", "eps")}})


spec = Specification("batch_norm", BatchNormCases())
conduct = add_conduct(spec, shown_by="output_is_the_formula_in_training")

TRAINING = {"training": True, "N": at_least(2), "feature": "drawn", "family": ("integers", "normal", "positive", "peaked")}


def mean(x: torch.Tensor) -> Any:
    return exactly(x).sum(0) / x.shape[0]


def squares(x: torch.Tensor) -> Any:
    """Sum of the squared deviations of each feature."""
    deviation = exactly(x) - mean(x)
    return (deviation * deviation).sum(0)


def plain(example: Example) -> Example:
    """The same rows with weight 1 and bias 0."""
    return example.but(weight=torch.ones_like(example.weight), bias=torch.zeros_like(example.bias))


@spec.holds("BN-3", "E9", kills=(
    "one_pass_variance", "normalises_by_the_unbiased_variance", "like_layer_norm", "running_statistics_in_training",
    "epsilon_beside_the_deviation", "epsilon_ignored", "epsilon_left_out", "weight_left_out", "bias_left_out",
    "last_row_not_counted"), rests_on=(conduct["form"],), given={"training": True})
def output_is_the_formula_in_training(batch_norm: Subject, example: Example) -> None:
    """In training every output is weight·(x − mean)/√(variance + eps) + bias, mean and biased variance those of the batch."""
    assert batch_norm(**example)[0] == batch_norm.exact(**example)[0]


@spec.holds("BN-3", "BN-1", "E9", kills=("batch_statistics_in_evaluation", "like_layer_norm", "epsilon_left_out",
                                         "epsilon_beside_the_deviation", "weight_left_out", "bias_left_out"),
            rests_on=(conduct["form"],), given={"training": False, "N": at_least(1)})
def output_is_the_formula_in_evaluation(batch_norm: Subject, example: Example) -> None:
    """In evaluation every output is weight·(x − running mean)/√(running variance + eps) + bias."""
    assert batch_norm(**example)[0] == batch_norm.exact(**example)[0]


@spec.holds("BN-4", kills=("momentum_the_other_way", "running_variance_biased", "running_not_updated", "last_row_not_counted"),
            rests_on=(conduct["form"],), given={"training": True})
def running_statistics_move_by_the_momentum(batch_norm: Subject, example: Example) -> None:
    """In training the running mean and variance move to (1 − m)·running + m·batch, in the declared direction and variance."""
    found, exact = batch_norm(**example), batch_norm.exact(**example)
    assert found[1] == exact[1]
    assert found[2] == exact[2]


@spec.holds("BN-4", kills=("updates_in_evaluation",), rests_on=(conduct["form"],), given={"training": False, "N": at_least(2)})
def running_statistics_rest_in_evaluation(batch_norm: Subject, example: Example) -> None:
    """In evaluation the running statistics come back exactly as they were."""
    found = batch_norm.values(**example)
    moves = bool((example.x.double().mean(0) != example.running_mean.double()).any())
    assert identical(found[1], example.running_mean.double(), witness=moves)
    assert identical(found[2], example.running_var.double(), witness=moves)


@spec.holds("BN-1", kills=("batch_statistics_in_evaluation",), rests_on=(conduct["form"],),
            conventions={"row_dependence": "none"}, given={"training": False, "N": at_least(2)})
def evaluation_sees_one_row_at_a_time(batch_norm: Subject, example: Example) -> None:
    """In evaluation, replacing all other rows leaves a row's output equal bit for bit."""
    before, after = batch_norm.values(**example)[0], batch_norm.values(**others_replaced(example))[0]
    assert identical(before[0], after[0], witness=bool((before[1:] != after[1:]).any()))


@spec.holds("BN-1", kills=("evaluation_in_training", "like_layer_norm"), rests_on=(conduct["form"],),
            given={**TRAINING, "size": "unit"})
def training_sees_the_whole_batch(batch_norm: Subject, example: Example) -> None:
    """In training a row's output depends on the other rows."""
    moved = others_replaced(example)
    before, after = batch_norm(**example)[0][0], batch_norm(**moved)[0][0]
    exact = (batch_norm.exact(**example)[0].value[0] - batch_norm.exact(**moved)[0].value[0]).abs()
    apart = exact > 2 * (before.bar + after.bar)
    if not bool(apart.any()):
        fact(True, "", check="the other rows are seen in the exact output", decided=False)
        return
    assert before[apart] != after[apart]


def others_replaced(example: Example) -> Example:
    x = example.x.clone()
    x[1:] = (example.values("other rows", *x[1:].shape, family="normal").double() * 4 + 8).to(example.dtype)
    return example.but(x=x)


@spec.holds("BN-3", "BN-1", kills=("like_layer_norm", "running_statistics_in_training", "last_row_not_counted"),
            rests_on=(conduct["form"],), given=TRAINING, dtypes=("float64", "float32", "float16"))
def every_feature_gets_mean_zero(batch_norm: Subject, example: Example) -> None:
    """In training, with weight 1 and bias 0, every feature sums to 0 over the batch."""
    y = batch_norm(**plain(example))[0]
    assert y[1:].sum(0) == -y[0]


@spec.holds("BN-3", "E9", kills=("normalises_by_the_unbiased_variance", "epsilon_beside_the_deviation", "epsilon_left_out"),
            rests_on=(conduct["form"],), given=TRAINING)
def every_feature_gets_variance_one(batch_norm: Subject, example: Example) -> None:
    """In training, with weight 1 and bias 0, every feature's mean square is v/(v + eps), v its biased variance."""
    y = batch_norm(**plain(example))[0]
    v = squares(example.x) / example.x.shape[0]
    assert (y * y).sum(0) / example.x.shape[0] == v / (v + example.eps)


@spec.holds("LN-5", "E23", kills=("weight_left_out", "bias_left_out", "normalises_by_the_unbiased_variance"),
            rests_on=(conduct["form"],), given={**TRAINING, "size": ("unit", "root_eps")})
def weight_and_bias_can_undo_the_whole_batch(batch_norm: Subject, example: Example) -> None:
    """In training, with weight √(v + eps) and bias the mean of each feature, it is the identity on the whole batch."""
    root = squares(example.x) / example.x.shape[0] + example.eps
    weight, bias = root.sqrt().value.to(example.dtype), mean(example.x).value.to(example.dtype)
    y = batch_norm(**example.but(weight=weight, bias=bias))[0]
    given = exactly(weight) / root.sqrt()  # 1 but for the rounding of the weight to its type
    assert y == given * (exactly(example.x) - mean(example.x)) + exactly(bias)


@spec.holds("BN-3", kills=("last_row_not_counted",), rests_on=(conduct["form"],), given=TRAINING)
def order_of_rows_does_not_matter(batch_norm: Subject, example: Example) -> None:
    """Permuting the rows permutes the output and leaves the statistics as they are."""
    shuffle = example.permutation("rows", example.x.shape[0])
    before, after = batch_norm(**example), batch_norm(**example.but(x=example.x[shuffle]))
    assert after[0] == before[0][shuffle]
    assert after[1] == before[1]
    assert after[2] == before[2]


@spec.holds("BN-3", kills=("normalises_by_the_unbiased_variance", "last_row_not_counted"), rests_on=(conduct["form"],),
            given={**TRAINING, "N": (2, 3, 4, 5, 8)})
def a_batch_twice_over_gives_the_same(batch_norm: Subject, example: Example) -> None:
    """In training a batch put twice behind itself gives the same output: the variance divides by N, not N − 1."""
    if not batch_norm.declaration.allows("N", 2 * example.x.shape[0]):
        fact(True, "", check="twice as many rows are within the limits", decided=False)
        return
    double = batch_norm(**example.but(x=torch.cat((example.x, example.x))))[0]
    assert double[: example.x.shape[0]] == batch_norm(**example)[0]


@spec.holds("BN-3", kills=("one_pass_variance",), rests_on=(conduct["form"],), dtypes=("float32", "float64"),
            given={**TRAINING, "family": "normal", "size": "unit", "eps": (1e-5, 1e-6)})
def a_large_mean_costs_no_more_than_its_digits(batch_norm: Subject, example: Example) -> None:
    """From mean = deviation to mean = 10⁴ deviations the error grows as the mean, not as its square."""
    for rung in range(5):
        steep = plain(example).but(x=(example.x.double() + 10.0**rung).to(example.dtype))
        assert batch_norm(**steep)[0] == batch_norm.exact(**steep)[0]


@spec.holds("BN-3", "E9", kills=("epsilon_left_out",), rests_on=(conduct["form"],),
            given={"training": True, "feature": "equal", "eps": usual_eps})
def equal_rows_give_the_bias(batch_norm: Subject, example: Example) -> None:
    """A feature that is equal in all rows gives the bias within the bound, not NaN."""
    y = batch_norm(**example)[0][:, 0]
    assert y == exactly(example.bias)[0].expand(y.shape)


@spec.holds("BN-4", kills=("one_row_gives_nan",), rests_on=(conduct["form"],), examples=4,
            given={"training": True, "feature": "drawn", "eps": usual_eps})
def one_row_in_training_gives_the_bias_or_is_refused(batch_norm: Subject, example: Example) -> None:
    """A batch of one row in training gives the bias, or is refused with a message; it never gives NaN."""
    one = example.but(x=example.x[:1])
    answer = batch_norm._call(dict(one), (), ())
    if answer.refusal is not None:
        fact(bool(answer.refusal.message.strip()), "one row in training is refused without a message", check="it says why")
        return
    allowed = batch_norm.bars(**one, bn_variance="biased")[0]
    assert Bounded(answer.outputs[0].to(torch.float64), allowed.bar) == exactly(one.bias).expand(1, -1)


@spec.holds("BN-2", kills=("last_row_not_counted", "running_variance_biased", "momentum_the_other_way"),
            rests_on=(running_statistics_move_by_the_momentum,), dtypes=("float64", "float32"), statistical=FALSE_ALARMS,
            examples=0, given={"training": True, "N": (4, 2, 8, 16), "C": (64, 33, 16), "family": "normal", "size": "unit",
                               "feature": "drawn", "momentum": 0.5, "eps": usual_eps})
def batch_statistics_scatter_with_the_batch(batch_norm: Subject, example: Example) -> None:
    """Over batches of n normal rows the mean scatters as σ/√n, and n·variance/σ² is χ² with n − 1 degrees of freedom.

    So the biased variance has mean (n − 1)σ²/n and deviation σ²√(2(n − 1))/n. With momentum m the batch's statistics are read
    back out of the running ones; one feature is one batch. The statistics of a layer norm know no n: LN-4.
    """
    rows, width = example.x.shape
    unbiased = batch_norm.conventions["bn_variance"] == "unbiased"
    weight_of_batch = 0.25 if batch_norm.conventions["bn_momentum"] == "new" else 0.75
    means, chi = [], []
    zero, one = torch.zeros(width, dtype=example.dtype), torch.ones(width, dtype=example.dtype)
    for call in range(-(-FEATURES // width)):
        x = example.values(f"batch {call}", rows, width, family="normal")
        found = batch_norm.values(**example.but(x=x, running_mean=zero, running_var=one, momentum=0.25))
        means.append(found[1] / weight_of_batch * math.sqrt(rows))
        chi.append((found[2] - (1 - weight_of_batch)) / weight_of_batch * (rows - 1 if unbiased else rows))
    scattered, drawn = torch.cat(means), torch.cat(chi)
    assert chi_square(float((scattered**2).sum()), scattered.numel(), "the batch mean does not scatter as σ/√n")
    total = float(drawn.sum())
    assert chi_square(total, drawn.numel() * (rows - 1), "the mean of the batch variance is not (n − 1)σ²/n")
    normal = chance.stats().norm.ppf(chance.stats().chi2.cdf(drawn.clamp_min(0).numpy(), rows - 1).clip(1e-12, 1 - 1e-12))
    assert chi_square(float((normal**2).sum()), drawn.numel(), "the batch variance does not scatter as σ²√(2(n − 1))/n")


def chi_square(value: float, degrees: int, text: str) -> Any:
    """Two-sided: the value against χ² with so many degrees of freedom."""
    return statistic(chance.chi_square(value, degrees), FALSE_ALARMS, text=text, got=f"{value:.6g}", expected=f"about {degrees}")


@spec.holds("BN-3", kills=("statistics_taken_for_constants", "gradient_of_the_wrong_sign"),
            rests_on=(output_is_the_formula_in_training,), gradient=True)
def gradients_are_the_formula(batch_norm: Subject, example: Example) -> None:
    """In training ∂x = weight·r·(g − mean g − x̂·mean(g·x̂)) over the batch; in evaluation weight·r·g. Running ones take none."""
    found, exact = batch_norm.gradients(**example), batch_norm.exact_gradients(**example)
    for name in ("x", "weight", "bias"):
        assert found[name] == exact[name]


@spec.holds("BN-3", kills=("statistics_taken_for_constants",), rests_on=(gradients_are_the_formula,), gradient=True,
            given=TRAINING, dtypes=("float64", "float32", "float16"))
def gradients_of_a_batch_sum_to_zero(batch_norm: Subject, example: Example) -> None:
    """In training a shift of all rows changes nothing, so ∂x sums to 0 over the batch."""
    gradient = batch_norm.gradients(**example, wrt=("x",))["x"]
    assert gradient[1:].sum(0) == -gradient[0]
