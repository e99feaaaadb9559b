"""The doctor sees a weak property, a live fault and an unsound bound; listings and explanations say what there is."""
from __future__ import annotations

import json

import pytest
from rich.console import Console

from assay import registry
from assay.errors import UsageError
from assay.run import catalogue, doctor
from assay.run.diagnosis import Attempt, DoctorReport


def test_planted_ids_are_unique_over_faults_and_benign_ways() -> None:
    ids = [one.id for one in (*registry.faults(), *registry.benigns())]
    assert len(ids) == len(set(ids))


def test_every_fault_that_a_property_names_is_planted() -> None:
    planted = {fault.id for fault in registry.faults()}
    assert not {(prop.id, id) for prop in registry.properties() for id in prop.kills if id not in planted}


def test_a_named_fault_is_told_and_a_right_way_passes() -> None:
    report = doctor.run(["softmax"], only=("rows_sum_to_one", "not_normalised", "zeros", "fused"), dtypes=("float32",),
                        workers=1)
    assert report.killed_by == {"softmax/not_normalised": ["softmax/rows_sum_to_one"],
                                "softmax/zeros": ["softmax/rows_sum_to_one"]}
    assert [one.status for one in report.benign_attempts] == ["pass"]
    assert report.exit_code == 0 and not report.harness_errors


def test_a_fault_that_a_property_cannot_see_stays_alive() -> None:
    """Sums to one along the right axis, every row: which entries are large is none of this property's business."""
    report = doctor.run(["softmax"], only=("rows_sum_to_one", "uniform"), benign=False, dtypes=("float32",))
    assert report.alive == ["softmax/uniform"] and report.exit_code == 1
    assert report.idle == ["softmax/rows_sum_to_one"]


def test_first_kill_gives_a_small_counterexample() -> None:
    (prop,) = (one for one in registry.properties("softmax") if one.id == "softmax/rows_sum_to_one")
    attempt = doctor.first_kill(prop)
    assert attempt is not None and attempt.planted == prop.kills[0]
    assert attempt.counterexample["dims"]["C"] <= 4


def test_findings_name_what_is_wrong() -> None:
    report = DoctorReport(
        properties=("k/p",), faults=("k/f",), benigns=("k/b",), unknown=[("k/p", "k/gone")],
        attempts=[Attempt("k/p", "k/f", False, "pass", named=True, statuses=("pass", "pass"))],
        benign_attempts=[Attempt("k/p", "k/b", True, "fail", dtype="float32", message="off")])
    lines = "\n".join(report.findings())
    for expected in ("missed: k/p", "alive: nothing tells k/f", "idle: k/p", "unknown: k/p names k/gone", "unsound: "):
        assert expected in lines
    assert report.exit_code == 1 and json.loads(json.dumps(report.to_json()))["alive"] == ["k/f"]
    console = Console(width=100)
    with console.capture() as shown:
        console.print(report)
    assert "0 of 1 faults told" in shown.get()


@pytest.mark.parametrize("what", ["statements", "properties", "kinds", "implementations"])
def test_listings_have_rows_text_and_json(what: str) -> None:
    found = catalogue.listing(what)
    assert found.rows and len(list(found.lines())) == len(found.rows)
    assert json.loads(json.dumps(found.to_json()))[what] == found.rows


def test_statements_are_listed_with_their_properties_and_what_waits() -> None:
    found = catalogue.listing("statements")
    assert len(found.rows) == 172
    rows = {row["id"]: row["properties"] for row in found.rows}
    assert "softmax/rows_sum_to_one" in rows["SM-1"]
    assert all(id in found.footer for id, held in rows.items() if not held)


@pytest.mark.parametrize(("id", "says"), [
    ("SM-1", "softmax/rows_sum_to_one"), ("e3", "rowsum"), ("softmax", "softmax(x, *, dim=-1)"),
    ("rows_sum_to_one", "def rows_sum_to_one"), ("softmax/rows_sum_to_one", "shifted by the row maximum")])
def test_explanations(id: str, says: str) -> None:
    found = catalogue.explain(id, example=False)
    assert says in "\n".join(found.lines())
    json.dumps(found.to_json())


def test_an_explained_property_shows_a_failure() -> None:
    assert "softmax/not_normalised" in "\n".join(catalogue.explain("softmax/rows_sum_to_one").lines())


def test_an_unknown_id_names_its_neighbours() -> None:
    with pytest.raises(UsageError, match="rows_sum_to_one"):
        catalogue.explain("softmax/rows_sum_to_on")
