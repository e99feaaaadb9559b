"""The specifications of norms and residuals: what their helpers must do, and that their bars tell two passes from one."""
from __future__ import annotations

import pytest
import torch

from assay import registry
from assay.ledger import open_ledger
from assay.numbers.arithmetic import Arithmetic
from assay.numbers.evaluate import evaluate
from assay.run.judge import Settings
from assay.run.judging import Bench
from assay.run.plan import Selection, make_plan
from assay.spec.batch_norm import chi_square
from assay.spec.norm_cases import mean_zero, variance

KINDS = ("layer_norm", "rms_norm", "batch_norm", "residual", "add_rms_norm")
PROBES = [  # property, planted fault: the inputs that hide each are in the property's cases
    ("layer_norm/a_large_mean_costs_no_more_than_its_digits", "layer_norm/one_pass_variance"),
    ("layer_norm/epsilon_is_inside_the_root", "layer_norm/epsilon_as_a_floor"),
    ("rms_norm/one_large_feature_shrinks_the_others", "rms_norm/no_reduction"),
    ("rms_norm/no_mean_is_computed", "rms_norm/computes_a_mean_nobody_needs"),
    ("batch_norm/batch_statistics_scatter_with_the_batch", "batch_norm/running_variance_biased"),
    ("residual/skip_and_branch_can_cancel", "residual/branch_without_gradient"),
    ("add_rms_norm/sum_comes_back_as_it_is", "add_rms_norm/normalised_returned_for_the_sum"),
    ("add_rms_norm/opposite_addends_give_zero", "add_rms_norm/norm_of_x_alone"),
    ("add_rms_norm/gradient_of_the_sum_goes_straight_through", "add_rms_norm/sum_without_gradient"),
]


def statuses(prop: str, planted: str) -> set[str]:
    kind = prop.partition("/")[0]
    pool = [*registry.faults(kind), *registry.benigns(kind)]
    declaration = next(made for made in pool if made.id == planted).declaration
    target = {"isolated": False, "declarations": [{"kind": kind, "name": declaration.name, "planted": planted}]}
    bench = Bench([target], Settings(profile="quick"), None)
    plan = make_plan([declaration], registry.properties(kind), Selection(only=(prop,)))
    return {bench.run(case)["status"] for case in plan.cases}


@pytest.mark.parametrize(("prop", "planted"), PROBES)
def test_fault_is_killed(prop: str, planted: str) -> None:
    assert "fail" in statuses(prop, planted)


@pytest.mark.parametrize("benign", ["welford_step_by_step", "affine_like_group_norm"])
def test_ladder_passes_right_ways(benign: str) -> None:
    assert statuses("layer_norm/a_large_mean_costs_no_more_than_its_digits", f"layer_norm/{benign}") == {"pass"}


@pytest.mark.parametrize("benign", ["norm_before_the_rounding", "norm_after_the_rounding",
                                    "root_before_and_sum_after_the_rounding"])
def test_the_norm_of_a_sum_may_come_before_or_after_its_rounding(benign: str) -> None:
    for prop in ("output_is_the_formula", "what_is_normalised_is_the_sum_that_comes_back", "gradients_are_the_formula"):
        assert statuses(f"add_rms_norm/{prop}", f"add_rms_norm/{benign}") == {"pass"}


@pytest.mark.parametrize("kind", KINDS)
def test_every_fault_that_is_named_exists(kind: str) -> None:
    known = {fault.id for fault in registry.faults(kind)}
    assert {kill for prop in registry.properties(kind) for kill in prop.kills} <= known


def test_bar_grows_with_the_mean_and_not_with_its_square() -> None:
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    weights = {"weight": torch.ones(4), "bias": torch.zeros(4), "eps": 1e-5}
    bars = [evaluate(registry.forms("layer_norm"), {"x": x + mean, **weights}, torch.float32, Arithmetic()).outputs[0].bar.max()
            for mean in (1e2, 1e3, 1e4)]
    assert 5 < bars[1] / bars[0] < 20
    assert 5 < bars[2] / bars[1] < 20


def test_tokens_of_mean_zero() -> None:
    for width in (1, 2, 5):
        assert not bool(mean_zero(torch.randn(3, width, generator=torch.Generator().manual_seed(1))).sum(-1).any())


def test_variance_is_the_biased_one() -> None:
    x = torch.tensor([[1.0, 3.0]])
    with open_ledger():
        assert variance(x) == torch.ones(1, 1, dtype=torch.float64)


@pytest.mark.parametrize(("value", "holds"), [(1024.0, True), (1150.0, True), (1400.0, False), (700.0, False)])
def test_chi_square_is_two_sided(value: float, holds: bool) -> None:
    with open_ledger():
        assert bool(chi_square(value, 1024, "scatter")) is holds
