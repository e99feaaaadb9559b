"""Decisions: what they decide, what they refuse to decide, and that nothing hangs on an assert."""
from __future__ import annotations

import math

import pytest
import torch

from assay.errors import HarnessError
from assay.ledger import Ledger, at_most, differs, equal, fact, identical, member, open_ledger, statistic
from assay.numbers.bound import Bounded


def measured(values: list[float], bar: float) -> Bounded:
    value = torch.tensor(values, dtype=torch.float64)
    return Bounded(value, torch.full_like(value, bar))


def test_values_within_their_bars_are_right_and_outside_wrong() -> None:
    with open_ledger() as ledger:
        assert equal(measured([1.0, 2.0], 0.1), torch.tensor([1.05, 2.0]))
        assert not equal(measured([1.0, 2.0], 0.1), torch.tensor([1.2, 2.0]))
    assert [d.outcome for d in ledger.decisions] == ["right", "wrong"]
    failure = ledger.decisions[1].failure
    assert failure is not None and failure.index == (0,) and failure.wrong_elements == 1
    assert ledger.decisions[1].error_over_bound == pytest.approx(2.0)


def test_operators_record_without_assert() -> None:
    with open_ledger() as ledger:
        measured([1.0], 0.0) == 2  # noqa: B015 - recording without an assert is the point
    assert ledger.outcome() == "wrong"


def test_nan_fails_unless_the_formula_says_nan() -> None:
    with open_ledger() as ledger:
        assert not equal(measured([math.nan], 1.0), torch.tensor([1.0]))
        assert equal(measured([math.nan, 1.0], 0.0), torch.tensor([math.nan, 1.0]))
    assert ledger.decisions[0].error_over_bound == math.inf


@pytest.mark.parametrize("expected", [[0.05, -0.05], [5.0, 5.05]])
def test_what_zeros_or_the_mean_would_pass_is_undecided(expected: list[float]) -> None:
    with open_ledger() as ledger:
        equal(measured(expected, 0.1), torch.tensor(expected))
    assert ledger.outcome() == "undecided"


def test_a_relation_is_decided_only_where_the_bar_is_narrower_than_the_signal() -> None:
    with open_ledger() as ledger:
        equal(measured([1.0], 0.1), measured([1.05], 0.1))
        equal(measured([1.0], 0.3), measured([1.05], 0.3))
    assert [d.outcome for d in ledger.decisions] == ["right", "undecided"]


def test_identical_needs_a_witness() -> None:
    one = torch.tensor([1.0, -0.0])
    with open_ledger() as ledger:
        identical(one, torch.tensor([1.0, 0.0]), witness=False)
        identical(one, torch.tensor([1.0, 0.0]), witness=True)
        identical(one, torch.tensor([1.0, 1e-30]), witness=True)
    assert [d.outcome for d in ledger.decisions] == ["undecided", "right", "wrong"]


def test_differs_is_wrong_only_when_equality_is_proven() -> None:
    with open_ledger() as ledger:
        differs(measured([1.0], 0.1), measured([2.0], 0.1))
        differs(measured([1.0], 5.0), measured([1.0], 5.0))
        differs(measured([1.0], 0.0), measured([1.0], 0.0))
    assert [d.outcome for d in ledger.decisions] == ["right", "undecided", "wrong"]


def test_at_most_respects_bars() -> None:
    with open_ledger() as ledger:
        at_most(measured([1.0], 0.1), torch.tensor([0.95]))
        at_most(measured([1.0], 0.01), torch.tensor([0.95]))
        at_most(measured([math.nan], 0.01), torch.tensor([0.95]))
    assert [d.outcome for d in ledger.decisions] == ["right", "wrong", "wrong"]


def test_margin_sets_accept_exactly_the_reachable_outcomes() -> None:
    with open_ledger() as ledger:
        member([1, 2], [1], [1, 2, 3], text="chosen")
        member([2, 3], [1], [1, 2, 3], text="chosen")
        member([1, 4], [1], [1, 2, 3], text="chosen")
    assert [d.outcome for d in ledger.decisions] == ["right", "wrong", "wrong"]


def test_a_statistic_fails_below_its_limit() -> None:
    with open_ledger() as ledger:
        statistic(1e-3, 1e-9, text="rate")
        statistic(1e-12, 1e-9, text="rate")
        statistic(math.nan, 1e-9, text="rate")
    assert [d.outcome for d in ledger.decisions] == ["right", "wrong", "wrong"]


def test_a_property_that_decides_nothing_is_a_fault_of_the_harness() -> None:
    with pytest.raises(HarnessError, match="recorded no decision"):
        Ledger().outcome()


def test_comparing_outside_a_property_is_refused() -> None:
    with pytest.raises(HarnessError):
        fact(True, "nothing")


def test_out_of_range_is_undecided_for_everyone() -> None:
    with open_ledger() as ledger:
        ledger.out_of_range = "too large"
        equal(measured([1.0], 0.0), torch.tensor([2.0]))
    assert ledger.outcome() == "undecided"


def test_empty_tensors_decide_nothing() -> None:
    with open_ledger() as ledger:
        equal(Bounded(torch.zeros(0, 3, dtype=torch.float64), torch.zeros(0, 3, dtype=torch.float64)), torch.zeros(0, 3))
        identical(torch.zeros(0), torch.zeros(0))
    assert ledger.outcome() == "undecided"
