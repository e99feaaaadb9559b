"""What is decided by numbers for which no bound is proven: only where the formula itself is clear of the limits."""
from __future__ import annotations

import pytest

from assay.ledger import open_ledger
from assay.spec.own_rounding import within


@pytest.mark.parametrize(("found", "exact", "rounded", "outcome"), [
    (0.9, 0.9, 0.9 + 1e-7, "right"), (0.4, 0.9, 0.9 + 1e-7, "wrong"), (float("nan"), 0.9, 0.9 + 1e-7, "wrong"),
    (0.4, 0.5, 0.5 + 1e-7, "undecided"),  # the formula lies at the limit
    (0.4, 0.9, 0.7, "undecided"),  # its own rounding might lead across
    (0.4, 0.3, 0.3 + 1e-8, "undecided"),  # it lies on the other side: the statement does not hold for this example
    (0.4, 0.9, float("nan"), "undecided"), (0.4, 0.0, 0.0, "undecided")])
def test_it_is_decided_where_the_formula_is_clear(found: float, exact: float, rounded: float, outcome: str) -> None:
    with open_ledger() as ledger:
        within("share", 0.5, 2.0, {"share": found}, exact={"share": exact}, rounded={"share": rounded}, text="off", expected="1")
    assert ledger.outcome() == outcome
