"""Discrete choices: decisions by margin, exact tests of chance, and the specifications that rest on them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from assay import registry
from assay.cases import Configuration
from assay.contract.conventions import FIXED
from assay.contract.declaration import Declaration, declare
from assay.contract.kinds import KINDS as KINDS_KNOWN
from assay.contract.kinds import REQUIRED
from assay.numbers.bound import Bounded
from assay.properties import Property
from assay.reference.router import router
from assay.run.judge import Settings
from assay.run.judging import Bench
from assay.run.plan import CaseSpec, why_not
from assay.spec.chance import binomial
from assay.spec.margins import certain, membership, reachable
from assay.spec.moe import MIXTRAL, expert_parameters, parameters

KINDS = ("router", "moe", "logits_filter", "sampler", "mlm_mask", "tokenizer")


def measured(values: list[list[float]], bar: float) -> Bounded:
    value = torch.tensor(values, dtype=torch.float64)
    return Bounded(value, torch.full_like(value, bar))


def result(declaration: Declaration, prop: str, dtype: str = "float32") -> dict[str, Any]:
    """The outcome of one property on one built-in or planted implementation, in this process."""
    bench = Bench([{"isolated": False, "declarations": [], "declared": [declaration]}], Settings(profile="quick"), None)
    try:
        return bench.run(CaseSpec(prop, declaration.kind, declaration.name, "cpu", dtype))
    finally:
        bench.close()


# ------------------------------------------------------------------------------------------------ margins
@pytest.mark.parametrize(("chosen", "possible"), [([0, 1], True), ([0, 2], True), ([1, 2], False), ([0, 3], False)])
def test_choices_within_the_bars_are_reachable(chosen: list[int], possible: bool) -> None:
    scores = measured([[5.0, 2.0, 1.9, 0.0]], 0.1)
    picked = membership(torch.tensor([chosen]), 4)
    assert bool(reachable([scores], picked)[0]) is possible


def test_exact_scores_decide_exactly_and_ties_either_way() -> None:
    scores = measured([[3.0, 2.0, 2.0]], 0.0)
    assert bool(reachable([scores], membership(torch.tensor([[0, 1]]), 3))[0])
    assert bool(reachable([scores], membership(torch.tensor([[0, 2]]), 3))[0])
    assert not bool(reachable([scores], membership(torch.tensor([[1, 2]]), 3))[0])


def test_any_one_of_the_deciding_numbers_will_do() -> None:
    scores, underflowed = measured([[0.0, -200.0, -300.0]], 0.0), measured([[1.0, 0.0, 0.0]], 0.0)
    picked = membership(torch.tensor([[0, 2]]), 3)
    assert not bool(reachable([scores], picked)[0])
    assert bool(reachable([scores, underflowed], picked)[0])


def test_certain_rows_have_a_margin_by_every_number() -> None:
    scores = measured([[3.0, 2.0, 1.0], [3.0, 2.0, 1.95]], 0.1)
    assert certain([scores], 2).tolist() == [True, False]
    assert certain([scores, measured([[1.0, 1.0, 1.0], [3.0, 2.0, 1.0]], 0.1)], 2).tolist() == [False, False]
    assert certain([scores], 3).tolist() == [True, True]


def test_the_router_weighs_a_given_choice() -> None:
    x, w_router = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0], [1.0, 0.0], [1.0, 5.0]])
    weights, indices = router(x, w_router, top_k=2, indices=torch.tensor([[0, 2]]))
    assert indices.tolist() == [[0, 2]]
    torch.testing.assert_close(weights, torch.softmax(torch.tensor([[0.0, 1.0]]), -1), rtol=0.0, atol=0.0)


# ------------------------------------------------------------------------------------------------ chance
def test_binomial_tail_is_exact() -> None:
    assert binomial(0, 10, 0.5, 0.5) == pytest.approx(2 * 0.5**10, rel=1e-12, abs=0.0)
    assert binomial(5, 10, 0.5, 0.5) == 1.0
    assert binomial(10, 10, 0.2, 1.0) == 1.0
    assert binomial(0, 1000, 0.0, 0.0) == 1.0
    assert binomial(1, 1000, 0.0, 0.0) == 0.0


def test_false_alarms_are_as_rare_as_said() -> None:
    """Under the null the p-value of a discrete two-sided test is never too small too often."""
    source = torch.Generator().manual_seed(3)
    draws = (torch.rand(4000, 200, generator=source, dtype=torch.float64) < 0.3).sum(-1)
    found = torch.tensor([binomial(int(count), 200, 0.3, 0.3) for count in draws.unique()], dtype=torch.float64)
    shares = torch.stack([(draws == count).double().mean() for count in draws.unique()])
    for alpha in (0.1, 0.01):
        assert float(shares[found < alpha].sum()) <= alpha + 4 * math.sqrt(alpha / 4000)


# ------------------------------------------------------------------------------------------------ Mixtral
def test_mixtral_holds_46_7_and_uses_12_9_billion() -> None:
    assert parameters(MIXTRAL, 8) == 46_702_792_704
    assert parameters(MIXTRAL, 2) == 12_879_925_248


def test_eight_models_of_seven_billion_are_not_mixtral() -> None:
    """The literal text of the note: an expert is one layer's network of 176 million, not a model."""
    assert expert_parameters(MIXTRAL["C"], MIXTRAL["F"]) == 176_160_768
    assert parameters(MIXTRAL, 8) < 0.85 * 8 * 7e9


# ------------------------------------------------------------------------------------------------ specifications
SENT = [
    ("router", "MOE-1 MOE-2 MOE-3 MOE-5 MOE-6 MOE-7 MOE-11"),
    ("moe", "MOE-1 MOE-2 MOE-3 MOE-4 MOE-5 MOE-6 MOE-7 MOE-8 MOE-9 MOE-11 COST-3 E10 E16"),
    ("logits_filter", "GEN-1 GEN-2 GEN-3 GEN-4 GEN-7 E13 E14"),
    ("sampler", "GEN-5 GEN-8"),
    ("mlm_mask", "MLM-1 MLM-2"),
    ("tokenizer", "TOK-1 TOK-2"),
]


@pytest.mark.parametrize(("kind", "statements"), SENT)
def test_statements_are_covered(kind: str, statements: str) -> None:
    covered = {statement for prop in registry.properties(kind) for statement in prop.statements}
    assert set(statements.split()) <= covered


@pytest.mark.parametrize("kind", KINDS)
def test_configurations_rebuild_their_examples(kind: str) -> None:
    cases = registry.properties(kind)[0].cases
    claims = next(made for made in registry.declarations(kind) if made.name == "reference")
    for drawn in cases.boundary(claims, {})[:4]:
        again = cases.build(Configuration.from_json(drawn.to_json()), torch.float32)
        for name, value in cases.build(drawn, torch.float32).items():
            if isinstance(value, torch.Tensor):
                assert torch.equal(value, again[name])


NEAR = [
    ("router", "weights_are_the_formula"),
    ("moe", "output_is_the_formula"),
    ("logits_filter", "temperature_then_top_k_then_top_p"),
    ("sampler", "tokens_come_with_their_frequencies"),
    ("mlm_mask", "share_of_chosen_tokens_is_p"),
    ("tokenizer", "text_comes_back"),
]


@pytest.mark.parametrize(("kind", "name"), NEAR)
def test_unusual_right_ways_pass(kind: str, name: str) -> None:
    prop = _property(kind, name)
    for benign in registry.benigns(kind):
        if not why_not(prop, benign.declaration):
            found = result(benign.declaration, prop.id, "bfloat16")
            assert found["status"] == "pass", f"{benign.id}: {found['message']}"


@pytest.mark.parametrize(("kind", "name"), NEAR)
def test_first_faults_are_killed(kind: str, name: str) -> None:
    prop, faults = _property(kind, name), {made.id: made for made in registry.faults(kind)}
    for id in prop.kills[:3]:
        assert result(faults[id].declaration, prop.id)["status"] == "fail", id


def _property(kind: str, name: str) -> Property:
    return next(prop for prop in registry.properties(kind) if prop.id == f"{kind}/{name}")


FOR_NOBODY_ELSE = {  # given what the call's default is, spelt otherwise by the flag
    "residual/deepnorm_with_alpha_one_is_post_norm", "latent_attention/without_positions_order_does_not_matter",
    "latent_attention/scale_may_be_zero",
}


@pytest.mark.parametrize("kind", [name for name, made in KINDS_KNOWN.items() if not made.factory])
def test_options_asked_for_are_claimed(kind: str) -> None:
    """A property that gives an option another value than its default needs the option, or is one of those who lack it too."""
    options = KINDS_KNOWN[kind].options
    for prop in registry.properties(kind):
        for name, rule in prop.given.items():
            first = getattr(prop.cases, "flags", {}).get(name, ("",))[0]
            settled = name not in options or options[name] is REQUIRED or name in FIXED or name in prop.needs
            if settled or callable(rule) or prop.id in FOR_NOBODY_ELSE:
                continue
            assert first in (rule if isinstance(rule, tuple) else (rule,)), f"{prop.id}: {name}={rule} without needs={name}"


def draws_three_in_twenty(ids: torch.Tensor, special: torch.Tensor, *, mask_id: int, vocab_size: int, seed: int) -> Any:
    """Right, for the one share of 15 %."""
    source = torch.Generator().manual_seed(seed)
    chosen = (torch.rand(ids.shape, generator=source) < 0.15) & ~special
    return torch.where(chosen, mask_id, ids), torch.where(chosen, ids, -100)


def test_who_takes_no_share_is_asked_for_no_other() -> None:
    made = declare("mlm_mask", draws_three_in_twenty, name="three_in_twenty", dtypes=("float32",))
    asked = [prop for prop in registry.properties("mlm_mask") if not why_not(prop, made)]
    assert {"mlm_mask/share_of_chosen_tokens_is_p", "mlm_mask/mask_id_may_be_zero"} <= {prop.id for prop in asked}
    for prop in asked:
        found = result(made, prop.id)
        assert found["status"] == "pass", f"{prop.id}: {found['message']}"
