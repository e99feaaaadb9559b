"""What a failure says beyond its numbers: what it is consistent with, when it appears, where."""
from __future__ import annotations

from typing import Any

import pytest
import torch

from assay import registry
from assay.cases import Configuration
from assay.contract.declaration import declare
from assay.ledger import place
from assay.reference.attention import attention as whole
from assay.run.hosts import LocalHost
from assay.run.judge import Judge, Settings
from assay.run.plan import CaseSpec
from assay.run.predicates import conditions, predicate

PROPERTIES = {prop.id: prop for prop in registry.properties()}


def judged(property_id: str, declaration: Any, **settings: Any) -> dict[str, Any]:
    prop = PROPERTIES[property_id]
    case = CaseSpec(prop.id, prop.kind, declaration.name, "cpu", "float32")
    return Judge(Settings(profile="quick", **settings)).judge(case, prop, declaration, LocalHost([declaration]))


def planted(id: str) -> Any:
    return next(fault.declaration for fault in registry.own_faults(id.partition("/")[0]) if fault.id == id)


# ------------------------------------------------------------------------------------------------ consistent with
def test_another_convention_is_named_with_the_way_to_declare_it() -> None:
    found = judged("attention/output_is_the_formula", planted("attention/causal_top_left"))
    assert "Consistent with: causal alignment top_left (if that is meant, declare conventions=" in found["message"]
    assert "attention/causal_top_left" in found["counterexample"]["faults"]


@pytest.mark.parametrize(("prop", "fault"), [
    ("attention/output_is_the_formula", "attention/no_scale"),
    ("rms_norm/output_is_the_formula", "rms_norm/epsilon_beside_the_root"),
    ("layer_norm/output_is_the_formula", "layer_norm/unbiased_variance"),
    ("softmax/output_is_the_formula", "softmax/dim_ignored"),
])
def test_a_known_fault_is_named(prop: str, fault: str) -> None:
    found = judged(prop, planted(fault))
    assert found["status"] == "fail" and fault in found["counterexample"]["faults"], found["message"]


def test_an_own_default_of_what_the_call_left_out_is_told() -> None:
    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = True) -> torch.Tensor:
        return whole(q, k, v, causal=causal)
    found = judged("attention/output_is_the_formula", declare("attention", attention, name="causal"))
    assert "Left out, causal is True by this signature, and False by the contract." in found["message"]
    assert found["counterexample"]["consistent_with"].count("causal=True") == 1
    other = judged("attention/output_is_the_formula", planted("attention/no_scale"))
    assert "by this signature" not in other["message"]


def test_what_fits_where_it_fails_alone_is_told_as_that() -> None:
    def softmax(x: torch.Tensor, *, dim: int = -1) -> torch.Tensor:
        rows = x.movedim(dim, -1)
        flat = torch.softmax(rows.reshape(-1, rows.shape[-1]), 0)
        return flat.reshape(rows.shape).movedim(-1, dim)
    found = judged("softmax/output_is_the_formula", declare("softmax", softmax, name="rows"))
    assert "where it fails; elsewhere not" in found["message"] and "faults" not in found["counterexample"]


def test_what_is_like_nothing_known_is_consistent_with_nothing() -> None:
    def softmax(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, -1) * (1 + 0.01 * torch.sin(x))
    found = judged("softmax/output_is_the_formula", declare("softmax", softmax, name="wavy"))
    assert found["status"] == "fail" and "Consistent" not in found["message"]
    assert "consistent_with" not in found["counterexample"]


def test_the_same_failure_is_told_alike_and_without_shrinking_not_at_all() -> None:
    first, second = (judged("rms_norm/output_is_the_formula", planted("rms_norm/centred")) for _ in range(2))
    assert first["message"] == second["message"]
    quick = judged("attention/output_is_the_formula", planted("attention/no_scale"), shrink_tries=0)
    assert quick["status"] == "fail" and "Consistent" not in quick["message"]


def test_where_the_formula_fails_on_the_same_example_nothing_else_is_told_of_conduct() -> None:
    found = judged("attention/memory_layout_does_not_matter", planted("attention/no_scale"))
    assert "The same example fails attention/output_is_the_formula too" in found["message"]
    assert "Consistent" not in found["message"] and "faults" not in found["counterexample"]
    laid = judged("attention/memory_layout_does_not_matter", next(
        fault.declaration for fault in registry.faults() if fault.id == "attention/conduct_strides_ignored"))
    assert laid["status"] == "fail" and "look there first" not in laid["message"]


# ------------------------------------------------------------------------------------------------ when
def seen(*rows: tuple[dict[str, int], dict[str, Any], bool]) -> list[tuple[Configuration, bool]]:
    return [(Configuration("attention", dims, flags), fails) for dims, flags, fails in rows]


def grid(fails: Any) -> list[tuple[Configuration, bool]]:
    return seen(*(({"Tq": q, "Tk": k}, {"causal": c, "window": None}, fails(q, k, c))
                  for q in (1, 2, 3, 4) for k in (1, 2, 3, 5) for c in (False, True)))


def test_a_predicate_is_found_that_separates_everything_tried() -> None:
    assert predicate(grid(lambda q, k, c: c and q < k)).startswith("fails exactly when causal=True and Tq < Tk (")
    assert predicate(grid(lambda q, k, c: q >= 3)).startswith("fails exactly when Tq ≥ 3 (")


def test_it_is_only_when_where_no_few_words_separate() -> None:
    text = predicate(grid(lambda q, k, c: c and (q * k) % 3 == 1))
    assert text.startswith("fails only when causal=True (")


def test_nothing_is_said_of_a_side_that_was_not_probed() -> None:
    rows = grid(lambda q, k, c: c and q < k)
    one_sided = [(one, fails) for one, fails in rows if fails or not one.flags["causal"]]
    assert all(atom.names != ("Tq", "Tk") for atom in conditions(one_sided)[1])
    assert predicate([row for row in rows if row[1]][:3]) == ""
    assert "fails on all" in predicate(grid(lambda q, k, c: True))


# ------------------------------------------------------------------------------------------------ where
def test_places_are_said_in_words() -> None:
    def rows(*which: int, size: int = 130) -> str:
        wrong = torch.zeros(2, 3, size, 4, dtype=torch.bool)
        wrong[:, :, list(which)] = True
        return place(wrong)
    assert rows(63, 127) == "the last row of each 64"
    assert rows(*range(1, 130, 2)) == "odd rows"
    assert rows(*range(113, 130)) == "rows from 113 on"
    assert rows(5, 6, 7) == "rows 5 to 7"
    assert rows(2, 10, 18, size=20) == "row 2 of each 8"
    assert rows(3, 17) == ""
    assert place(torch.ones(2, 4, 4).triu(1).bool()) == "only above the diagonal"


def test_places_by_value_where_none_is_by_index() -> None:
    values = torch.tensor([[1.0, -2.0, 3.0], [-1.0, 2.0, -4.0]])
    assert place(values < 0, values) == "exactly where the expected value is negative"
    assert place(values.abs() >= 2, values) == "columns from 1 on"
    assert place(values.abs() < 1.5, values) == "only the first column"
    mixed = torch.tensor([[1.0, -2.0, 3.0], [-4.0, 2.0, -1.0]])
    assert place(mixed.abs() > 2.5, mixed) == "exactly where the expected value is 3 or more in size"
