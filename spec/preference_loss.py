"""What must hold of `preference_loss(r_chosen, r_rejected)`: RL-1."""
from __future__ import annotations

import math
from typing import Any

import torch

from assay.cases import Cases, Configuration, Example, draw_values, generator
from assay.contract.declaration import Declaration
from assay.properties import Specification
from assay.spec.conduct import add_conduct
from assay.subject import Subject


class PreferenceCases(Cases):
    """N pairs of rewards; differences from tiny to far beyond what an exponential can hold."""

    kind = "preference_loss"
    dims = {"N": (3, 1, 2, 4, 5, 7, 8, 9, 16, 17, 33, 65, 129)}
    families = ("integers", "normal", "peaked", "very_peaked", "positive", "small", "cancelling", "heavy", "constant")

    def adapt(self, configuration: Configuration, claims: Declaration) -> Configuration | None:
        return configuration

    def build(self, configuration: Configuration, dtype: torch.dtype) -> Example:
        shape, family = (configuration.dims["N"],), configuration.family
        arguments: dict[str, Any] = {name: draw_values(family, shape, generator(configuration.seed, name), dtype)
                                     for name in ("r_chosen", "r_rejected")}
        return Example(configuration, dtype, arguments)


spec = Specification("preference_loss", PreferenceCases())
conduct = add_conduct(spec)
ORDINARY = ("integers", "normal", "peaked", "heavy")


def apart(example: Example, gap: float) -> Example:
    """Every chosen reward `gap` above its rejected one."""
    return example.but(r_chosen=torch.full_like(example.r_chosen, gap), r_rejected=torch.zeros_like(example.r_rejected))


def several(size: int) -> bool:
    return size > 1


@spec.holds("RL-1", kills=(
    "log_of_sigmoid_floored", "swapped", "sum_over_pairs", "mean_first", "negated", "zeros", "sigmoid_without_logarithm", "hinge",
    "clamped", "rewards_squashed", "rewards_penalised", "base_two", "last_odd_pair_left_out", "all_pairs"),
    rests_on=(conduct["form"],))
def output_is_the_formula(loss: Subject, example: Example) -> None:
    """The loss is the mean over pairs of −log σ(r_chosen − r_rejected)."""
    assert loss(**example) == loss.exact(**example)


@spec.holds("RL-1", kills=("rejected_detached", "gradient_saturates", "gradient_not_averaged", "swapped"),
            rests_on=(output_is_the_formula,), gradient=True)
def gradient_is_the_formula(loss: Subject, example: Example) -> None:
    """The gradient of a chosen reward is −σ(−Δ) over the number of pairs; that of the rejected one is its opposite."""
    found, expected = loss.gradients(**example), loss.exact_gradients(**example)
    assert found["r_chosen"] == expected["r_chosen"]
    assert found["r_rejected"] == expected["r_rejected"]


@spec.holds("RL-1", kills=("rewards_squashed", "rewards_penalised"), rests_on=(conduct["form"],), given={"family": ("integers",)})
def difference_alone_matters(loss: Subject, example: Example) -> None:
    """Adding the same number, exact in the type, to both rewards of every pair changes nothing within the bound.

    Rewards are small integers; the number is ±64, so that sums are exact.
    """
    for shift in (64.0, -64.0):
        moved = example.but(r_chosen=example.r_chosen + shift, r_rejected=example.r_rejected + shift)
        assert loss(**moved) == loss.exact(**example)


@spec.holds("RL-1", kills=("log_of_sigmoid", "log_of_sigmoid_floored", "plain_softplus", "clamped", "swapped"),
            rests_on=(conduct["form"],))
def large_differences_stay_finite(loss: Subject, example: Example) -> None:
    """A rejected answer 1024 ahead costs 1024, one 1024 behind costs nothing: no infinity, no NaN."""
    assert loss(**apart(example, -1024.0)) == 1024.0
    assert loss(**apart(example, 1024.0)) == 0.0


@spec.holds("RL-1", kills=("base_two", "zeros", "hinge", "sum_over_pairs"), rests_on=(conduct["form"],))
def equal_rewards_cost_log_two(loss: Subject, example: Example) -> None:
    """Where both answers score alike, the loss is log 2, whatever the rewards."""
    assert loss(**example.but(r_rejected=example.r_chosen)) == math.log(2.0)


@spec.holds("RL-1", kills=("hinge", "sigmoid_without_logarithm", "clamped", "negated"), rests_on=(conduct["form"],),
            given={"family": ORDINARY})
def swapping_costs_the_mean_difference(loss: Subject, example: Example) -> None:
    """Exchanging chosen and rejected raises the loss by the mean difference: −log σ(−Δ) + log σ(Δ) = Δ."""
    swapped = example.but(r_chosen=example.r_rejected, r_rejected=example.r_chosen)
    expected = (example.r_chosen.double() - example.r_rejected.double()).mean()
    assert loss(**swapped) - loss(**example) == expected


@spec.holds("RL-1", kills=("last_odd_pair_left_out",), rests_on=(conduct["form"],), given={"family": ORDINARY, "N": several})
def order_of_pairs_does_not_matter(loss: Subject, example: Example) -> None:
    """Permuting the pairs changes nothing within the bound."""
    order = example.permutation("pairs", example.dims["N"])
    assert loss(**example.but(r_chosen=example.r_chosen[order], r_rejected=example.r_rejected[order])) == loss(**example)


@spec.holds("RL-1", kills=("sum_over_pairs", "mean_first", "all_pairs", "last_odd_pair_left_out"), rests_on=(conduct["form"],),
            given={"family": ORDINARY, "N": several})
def mean_of_the_pairs_alone(loss: Subject, example: Example) -> None:
    """The loss of a batch is the mean of the losses of its pairs."""
    cut = example.integer("cut", 1, example.dims["N"] - 1)
    first = loss(**example.but(r_chosen=example.r_chosen[:cut], r_rejected=example.r_rejected[:cut]))
    second = loss(**example.but(r_chosen=example.r_chosen[cut:], r_rejected=example.r_rejected[cut:]))
    size = example.dims["N"]
    assert loss(**example) * size == first * cut + second * (size - cut)


@spec.holds("RL-1", kills=("rejected_detached",), rests_on=(gradient_is_the_formula,), gradient=True)
def gradients_of_a_pair_are_opposite(loss: Subject, example: Example) -> None:
    """What lifts the chosen reward lowers the rejected one by as much."""
    found = loss.gradients(**example)
    assert found["r_chosen"] == -found["r_rejected"]
