"""Shards joined into what one run would have said; two reports compared."""
from __future__ import annotations

from typing import Any

import pytest

from assay.errors import UsageError
from assay.report import jsonl
from assay.report.diff import diff
from assay.report.jsonl import Report
from assay.report.merge import merge
from assay.run import events

from . import sample


def shards(count: int = 3) -> list[Report]:
    """The sample cut into shards."""
    whole = sample.report()
    table = list(sample.rows().items())
    found = []
    for index in range(count):
        rows = dict(table[index::count])
        plan = dict(events.plan(
            rows, whole.plan["left_out"], properties=whole.plan["properties"], statements=whole.plan["statements"],
            whole=whole.plan["cases"]))
        results = [one for one in whole.results if one["id"] in rows]
        header = dict(sample.header(shard=(index + 1, count)))
        found.append(Report(header, plan, results, dict(events.footer(results, plan, seconds=1.0))))
    return found


def parsed(report: Report) -> Report:
    """Through the file format and back."""
    return jsonl.parse("".join(events.dumps(event) + "\n" for event in report.events()).encode())


def test_merged_shards_are_the_whole() -> None:
    merged, whole = parsed(merge([parsed(one) for one in shards()])), sample.report()
    assert sorted(merged.plan["cases"]) == sorted(whole.plan["cases"])
    assert merged.plan["whole"] == whole.plan["whole"] and merged.plan["left_out"] == whole.plan["left_out"]
    assert merged.footer is not None and whole.footer is not None
    assert merged.footer["counts"] == whole.footer["counts"] and not merged.footer["interrupted"]
    assert events.canonical(merged.results) == events.canonical(whole.results)


def test_merged_interrupted_shard_is_interrupted() -> None:
    parts = shards()
    parts[1] = Report(parts[1].header, parts[1].plan, parts[1].results[:3], None)
    merged = merge(parts)
    assert merged.footer is not None and merged.footer["interrupted"]


@pytest.mark.parametrize(("key", "value", "message"), [
    ("seed", 8, "seed differs"), ("profile", "deep", "profile differs"), ("assay", "9.9", "assay version differs"),
    ("environment", {"torch": "1.0"}, "torch version differs"), ("implementations", [], "implementations differs"),
    ("shard", {"index": 2, "count": 4}, "number of shards differs"),
])
def test_mixed_plans_are_refused(key: str, value: Any, message: str) -> None:
    parts = shards()
    parts[1].header[key] = value
    with pytest.raises(UsageError, match=message):
        merge(parts)


def test_shards_twice_or_missing_or_none_are_refused() -> None:
    parts = shards()
    with pytest.raises(UsageError, match="give each shard once"):
        merge([parts[0], parts[0], parts[1]])
    with pytest.raises(UsageError, match=r"shards \[1, 2\] hold 58 of 87"):
        merge(parts[:2])
    with pytest.raises(UsageError, match="at least one"):
        merge([])


def test_equal_reports_do_not_differ() -> None:
    found = diff(sample.report(), sample.report())
    assert found.unchanged == 87 and not found.fails_on(["any"]) and found.text().startswith("No difference")


def test_regressions_fixes_and_weakened() -> None:
    healthy, broken = sample.report(healthy=True), sample.report()
    found = diff(healthy, broken)
    assert len(found.changes["regressions"]) == 8 and len(found.changes["weakened"]) == 5
    assert len(diff(broken, healthy).changes["fixes"]) == 8
    assert found.fails_on(["regressions"]) and not found.fails_on(["fixes", "plan", "environment"])
    with pytest.raises(UsageError, match="fail-on=nonsense must be one of"):
        found.fails_on(["nonsense"])
    assert "## Regressions (8)" in found.markdown() and "✓ pass → ✗ fail" in found.text()


def test_fewer_examples_and_looser_claims_weaken() -> None:
    old, new = sample.report(healthy=True), sample.report(healthy=True)
    new.results[0]["examples"]["right"] -= 1
    new.header["implementations"][0]["arithmetic"]["accumulate"] = "input"
    new.header["implementations"][1]["lacks"] = ["gradients"]
    new.header["implementations"][2]["conventions"]["causal_alignment"] = "top_left"
    found = diff(old, new)
    assert len(found.changes["weakened"]) == 3 and len(found.changes["changed"]) == 1
    assert not found.changes["regressions"]
    assert len(diff(new, old).changes["weakened"]) == 0


def test_plan_and_machine_are_told_apart() -> None:
    old, new = sample.report(healthy=True), sample.report(healthy=True, seed=8)
    new.header["environment"]["cpu"] = "another"
    new.plan["cases"].pop()
    new.plan["rows"].pop()
    new.results.pop()
    found = diff(old, new)
    assert [change.subject for change in found.changes["environment"]] == ["cpu"]
    subjects = {change.subject for change in found.changes["plan"]}
    assert "seed" in subjects and any(subject.startswith("attention/no_change") for subject in subjects)


def test_left_out_now_is_weakened() -> None:
    old, new = sample.report(healthy=True), sample.report(healthy=True)
    name, who, *_ = new.plan["rows"].pop()
    new.plan["cases"].pop()
    new.results.pop()
    new.plan["left_out"].append({"property": name, "implementation": who, "reason": "lacks it"})
    assert [change.after for change in diff(old, new).changes["weakened"]] == ["lacks it"]


def test_renames_align_cases() -> None:
    names = {"softmax": ["reference"], "attention": ["sdpa", "theirs"]}
    new = sample.report(healthy=True, names=names)
    old = sample.report(healthy=True, names=names | {"attention": ["sdpa", "mine"]})
    assert diff(old, new).changes["plan"]
    renamed = diff(old, new, renames={"mine": "theirs"})
    assert not renamed.changes["plan"] and not renamed.changes["regressions"]
