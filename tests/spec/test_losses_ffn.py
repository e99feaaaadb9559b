"""Losses, feed-forward layers and dropout: what their specifications rest on, and statements about sizes alone."""
from __future__ import annotations

import math

import pytest
import torch
from scipy.stats import binom
from torch import Tensor

from assay import registry
from assay.cases import Configuration, Example
from assay.contract.declaration import declare
from assay.ledger import open_ledger
from assay.run.hosts import LocalHost
from assay.run.judge import Settings
from assay.run.judging import Bench
from assay.run.plan import Selection, make_plan
from assay.spec import chance, dropout
from assay.subject import Subject

KINDS = ("cross_entropy", "lm_loss", "preference_loss", "policy_loss", "feed_forward", "gated_feed_forward", "dropout")


def llama_width(width: int) -> int:
    """The smallest multiple of 256 that is at least ⌊8C/3⌋."""
    return -(-(8 * width // 3) // 256) * 256


def test_glu_2_three_matrices_of_two_thirds_hold_what_two_of_four_times_hold() -> None:
    """GLU-2: 3·C·F of F = (2/3)·4C is 8C², up to the rounding of F."""
    for width in (3, 48, 768, 3 * 1024):
        assert 3 * width * (8 * width // 3) == 2 * width * (4 * width)
    ratio = 3 * 4096 * 11008 / (8 * 4096**2)
    assert ratio == pytest.approx(1.0078, abs=5e-5)


def test_cost_2_and_e2_llama_is_11008_wide() -> None:
    """COST-2, E2: 4096 gives 11008, where one of the notes has 11006, no multiple of 256."""
    assert llama_width(4096) == 11008
    assert 11006 % 256 != 0
    assert llama_width(5120) == 13824


def test_e6_both_ways_to_smooth_are_one_family() -> None:
    """E6: ε over the others is ε·V/(V−1) over all."""
    reference = registry.reference("cross_entropy").cross_entropy
    source = torch.Generator().manual_seed(0)
    logits, targets = torch.randn(4, 7, generator=source, dtype=torch.float64), torch.tensor([0, 3, 6, 1])
    others = reference(logits, targets, label_smoothing=0.3, smoothing="others")
    everyone = reference(logits, targets, label_smoothing=0.3 * 7 / 6, smoothing="all")
    torch.testing.assert_close(others, everyone)


@pytest.mark.parametrize("kl", ["k1", "k2", "k3"])
def test_the_declared_estimator_reaches_the_formula(kl: str) -> None:
    """The convention `kl` becomes the keyword kl_estimator; the argument `kl` stays the weight."""
    declaration = next(made.declaration for made in registry.benigns("policy_loss") if made.id.endswith("/one_mean"))
    named = declaration.__class__(**{**declaration.__dict__, "conventions": {**declaration.conventions, "kl": kl}})
    arguments = {"logp": torch.tensor([[-1.0]]), "logp_old": torch.tensor([[-1.0]]), "logp_ref": torch.tensor([[-3.0]]),
                 "advantage": torch.zeros(1, 1), "clip": 0.2, "kl": 0.5}
    example = Example(Configuration("policy_loss", {"B": 1, "T": 1}), torch.float32, arguments)
    host = LocalHost([named])
    with open_ledger():
        found = Subject(named, host, torch.float32, example).exact(**example)
    expected = {"k1": 2.0, "k2": 2.0, "k3": math.exp(-2) + 1}[kl]
    assert float(found.value) == pytest.approx(0.5 * expected)


def accepted(trials: int, p: float) -> tuple[int, int]:
    """The least and the greatest count that the test of a rate lets pass."""
    passing = [count for count in range(int(binom.ppf(1e-12, trials, p)) - 9, int(binom.ppf(1 - 1e-12, trials, p)) + 10)
               if chance.binomial(count, trials, p, p) >= dropout.ALPHA]
    assert passing == list(range(passing[0], passing[-1] + 1))
    return passing[0], passing[-1]


@pytest.mark.parametrize(("p", "others"), [
    (0.003, (0.0, 0.009)), (0.1, (0.08, 0.12)), (0.25, (0.2, 0.3)), (0.5, (0.4, 0.6)), (0.9, (0.72, 0.88))])
def test_the_rate_test_finds_a_rate_that_is_off_by_a_fifth(p: float, others: tuple[float, ...]) -> None:
    """Power above 1 − 10⁻⁶ against a share of zeros (or, for p above ½, of kept ones) that is a fifth off; a very low one may be
    up to three times as high."""
    trials = dropout.DRAWS[0] * dropout.DRAWS[1]
    first, last = accepted(trials, p)
    for other in others:
        assert min(binom.sf(first - 1, trials, other), binom.cdf(last, trials, other)) < 1e-6


@pytest.mark.parametrize("p", [0.01, 0.1, 0.5, 0.81])
def test_the_rate_test_seldom_raises_a_false_alarm(p: float) -> None:
    """The counts that are turned away have a probability of at most ALPHA."""
    first, last = accepted(1000, p)
    assert binom.cdf(first - 1, 1000, p) + binom.sf(last, 1000, p) <= dropout.ALPHA


@pytest.mark.parametrize("kind", KINDS)
def test_every_planted_fault_is_named_by_a_property(kind: str) -> None:
    named = {fault for prop in registry.properties(kind) for fault in prop.kills}
    assert {fault.id for fault in registry.faults(kind)} <= named
    assert named <= {fault.id for fault in registry.faults(kind)}


def test_every_statement_is_held() -> None:
    held = {statement for kind in KINDS for prop in registry.properties(kind) for statement in prop.statements}
    assert held >= {*(f"CE-{n}" for n in range(1, 6)), *(f"LS-{n}" for n in range(1, 4)), *(f"FFN-{n}" for n in range(1, 7)),
                    "GLU-1", "GLU-2", "SFT-1", "RL-1", "RL-2", "COST-2"}


def gathered(logits: Tensor, targets: Tensor, *, reduction: str = "mean") -> Tensor:
    """Right for every target there is, and without an id to ignore: its index must lie in the vocabulary."""
    losses = -torch.log_softmax(logits, -1).gather(-1, targets[:, None])[:, 0]
    return losses if reduction == "none" else losses.sum() if reduction == "sum" else losses.mean()


def test_who_takes_no_ignore_index_is_asked_to_ignore_nothing() -> None:
    made = declare("cross_entropy", gathered, name="gathered")
    plan = make_plan([made], registry.properties("cross_entropy"), Selection(dtypes=("float32",)))
    asked = {case.property.partition("/")[2] for case in plan.cases}
    assert {"output_is_the_formula", "gradient_is_the_formula"} <= asked
    assert asked.isdisjoint({"ignored_rows_add_nothing", "ignored_rows_get_no_gradient", "no_counted_row_has_the_declared_outcome"})
    bench = Bench([{"isolated": False, "declared": [made]}], Settings(profile="quick"), None)
    for case in plan.cases:
        if case.property.endswith(("output_is_the_formula", "gradient_is_the_formula", "results_have_the_right_form")):
            found = bench.run(case)
            assert found["status"] == "pass", found["message"]
