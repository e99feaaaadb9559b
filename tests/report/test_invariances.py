"""The grid of invariances: one row an implementation, one column a circumstance, the worst status of its types."""
from __future__ import annotations

from assay.report import html, invariances, markdown
from assay.report.jsonl import Report, parse
from assay.run import events

PROPERTIES = {
    "softmax/layout": {"sentence": "Layout does not matter.", "statements": ["CONDUCT"], "invariance": "strides"},
    "softmax/copies": {"sentence": "Copies are the same.", "statements": ["CONDUCT"], "invariance": "copy, .to()"},
    "softmax/own": {"sentence": "Something else.", "statements": ["CONDUCT"], "invariance": "<b>weather</b>"},
    "softmax/sum": {"sentence": "Rows sum to 1.", "statements": ["SM-1"]},
}


def result(name: str, dtype: str, status: str) -> events.Json:
    return dict(events.result(id=f"{name}[mine-cpu-{dtype}]", property=name, implementation="mine", device="cpu", dtype=dtype,
                              status=status, statements=["CONDUCT"]))


def report() -> Report:
    found = [result("softmax/layout", "float32", "pass"), result("softmax/layout", "bfloat16", "fail"),
             result("softmax/own", "float32", "pass"), result("softmax/sum", "float32", "pass")]
    rows = {one["id"]: (one["property"], "mine", "cpu", one["dtype"]) for one in found}
    left = [{"property": "softmax/copies", "implementation": "mine", "reason": "no", "status": "not-exercised"},
            {"property": "softmax/layout", "implementation": "mine", "reason": "float16 only", "dtype": "float16"}]
    declared = {"kind": "softmax", "name": "mine", "version": "", "lacks": [], "url": ""}
    header = events.header(command="assay check", seed=0, profile="quick", implementations=[declared], environment={},
                           started="then")
    plan = dict(events.plan(rows, left, properties=PROPERTIES))
    lines = [header, plan, *found, events.footer(found, plan)]
    return parse("".join(events.dumps(line) + "\n" for line in lines).encode())


def test_a_cell_is_the_worst_of_its_types_and_what_was_left_out_counts_where_nothing_was_planned() -> None:
    found = invariances.grid(report(), report().results)
    assert found.columns == ("strides", "copy, .to()", "<b>weather</b>")
    cells = found.rows["softmax", "mine"]
    assert {column: cell.status for column, cell in cells.items()} == {
        "strides": "fail", "copy, .to()": "not-exercised", "<b>weather</b>": "pass"}
    assert cells["strides"].first == "softmax/layout[mine-cpu-bfloat16]"


def test_the_grid_stands_in_the_page_and_in_the_summary() -> None:
    page, summary = html.render(report()), markdown.render(report())
    assert 'id="invariances"' in page and 'href="#invariances"' in page
    assert "<b>weather</b>" not in page and "<b>weather</b>" not in summary
    assert "| softmax | mine | ✗ fail | ◌ not-exercised | ✓ pass |" in summary


def test_a_report_without_invariances_has_no_grid() -> None:
    bare = report()
    for info in bare.plan["properties"].values():
        info.pop("invariance", None)
    assert 'id="invariances"' not in html.render(bare) and "## Invariances" not in markdown.render(bare)
