"""The kinds beyond the contract's table: each is complete, and stands apart from the notes' statements."""
from __future__ import annotations

import pytest

from assay import registry, statements
from assay.contract.kinds import FURTHER
from assay.run import catalogue
from assay.run.judge import Settings
from assay.run.judging import Bench
from assay.run.plan import Selection, make_plan


@pytest.mark.parametrize("kind", sorted(FURTHER))
def test_it_names_planted_faults_that_exist(kind: str) -> None:
    known = {made.id for made in registry.faults(kind)}
    named = {fault for prop in registry.properties(kind) for fault in prop.kills}
    assert named <= known
    assert registry.benigns(kind)


@pytest.mark.parametrize("kind", sorted(FURTHER))
def test_the_reference_and_the_right_ways_pass_the_formula(kind: str) -> None:
    reference = next(made for made in registry.declarations(kind) if made.name == "reference")
    shown = {"sigmoid_router": "weights_are_the_formula", "image_classifier": "images_do_not_touch_each_other"}.get(
        kind, "output_is_the_formula")
    for made in (reference, *(one.declaration for one in registry.benigns(kind))):
        plan = make_plan([made], registry.properties(kind), Selection(only=(f"{kind}/{shown}",), dtypes=("float32", "float16")))
        assert plan.cases
        bench = Bench([{"isolated": False, "declared": [made]}], Settings(profile="quick"), None)
        for case in plan.cases:
            found = bench.run(case)
            assert found["status"] == "pass", found["message"]


def test_statements_beyond_the_notes_are_held_and_not_counted_among_them() -> None:
    held = catalogue.held_by()
    assert statements.further() and not set(statements.further()) & set(statements.all())
    for one in statements.further():
        assert one.id.startswith("X-") and one.source == statements.BEYOND and held[one.id], one.id
        assert statements.find(one.id.lower()) is one
