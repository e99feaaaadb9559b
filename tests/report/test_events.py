"""Verdicts and exit codes as the contract has them; strict, deterministic JSON."""
from __future__ import annotations

import json
import math
from typing import Any

import pytest

from assay.run import events

from . import sample

ROWS = {f"k/p{n}[a-{dtype}]": (f"k/p{n}", "a", "cpu", dtype) for n in (1, 2) for dtype in ("float32", "float16")}


def run(*statuses: str | None) -> tuple[str, int]:
    """Verdict and exit code of a plan of four cases: two properties in two dtypes."""
    results: list[dict[str, Any]] = [
        {"id": case, "status": status} for case, status in zip(ROWS, statuses, strict=True) if status]
    return events.verdict_of(results, events.plan(ROWS))


@pytest.mark.parametrize("status", sorted(events.RED))
def test_anything_red_is_non_conformant(status: str) -> None:
    assert run("pass", "pass", "pass", status) == ("non-conformant", 1)


@pytest.mark.parametrize("status", ["suspect", "waived", "blocked", "not-exercised", "not-supported", "not-claimed"])
def test_statuses_that_change_nothing(status: str) -> None:
    assert run("pass", "pass", "pass", status) == ("conformant", 0)


def test_a_fault_of_the_harness_outranks_all() -> None:
    assert run("fail", "harness-error", "pass", "pass") == ("inconclusive", 4)


def test_red_outranks_undecided() -> None:
    assert run("fail", "inconclusive", "inconclusive", "inconclusive") == ("non-conformant", 1)


def test_undecided_in_one_of_its_dtypes_is_conformant_and_in_all_is_not() -> None:
    assert run("pass", "inconclusive", "pass", "pass") == ("conformant", 0)
    assert run("inconclusive", "inconclusive", "pass", "pass") == ("inconclusive", 3)
    assert run("inconclusive", "not-supported", "pass", "pass") == ("inconclusive", 3)


def test_not_implemented_in_every_dtype_changes_nothing_while_half_is_decided() -> None:
    """A layer that wires two placements of four says so by raising: what is asked of the others is no doubt about it."""
    assert run("not-supported", "not-supported", "pass", "pass") == ("conformant", 0)
    assert run("not-supported", "not-supported", "not-supported", "pass") == ("inconclusive", 3)
    assert run(*["not-supported"] * 4) == ("inconclusive", 3)


def test_fewer_than_half_decided_is_inconclusive() -> None:
    rows = {f"k/p[a-{n}]": ("k/p", "a", "cpu", str(n)) for n in range(5)}
    results = [{"id": case, "status": "pass" if n < 2 else "inconclusive"} for n, case in enumerate(rows)]
    assert events.verdict_of(results, events.plan(rows)) == ("inconclusive", 3)
    results[2]["status"] = "pass"
    assert events.verdict_of(results, events.plan(rows)) == ("conformant", 0)


def test_half_is_counted_for_each_kind_of_one_name() -> None:
    rows = {f"{kind}/p[reference-{n}]": (f"{kind}/p", "reference", "cpu", str(n)) for kind in "ab" for n in range(3)}
    results = [{"id": case, "status": "pass" if n < 4 else "inconclusive"} for n, case in enumerate(rows)]
    assert events.verdict_of(results, events.plan(rows)) == ("inconclusive", 3)


def test_nothing_applicable_is_inconclusive() -> None:
    assert events.verdict_of([], events.plan({})) == ("inconclusive", 3)
    assert run(*["not-exercised"] * 4) == ("inconclusive", 3)


def test_an_unfinished_run_is_never_conformant() -> None:
    assert run("pass", "pass", "pass", None) == ("inconclusive", 3)
    assert run("pass", "fail", None, None) == ("non-conformant", 1)


def test_a_result_outside_the_plan_counts() -> None:
    results = [{"id": "waiver/3", "status": "unexpected-pass"}]
    assert events.verdict_of(results, events.plan(ROWS)) == ("non-conformant", 1)


def test_numbers_that_json_lacks_become_words() -> None:
    assert events.strict({"a": math.nan, "b": [math.inf, -math.inf]}) == {"a": "NaN", "b": ["Infinity", "-Infinity"]}
    assert events.strict({"D": {128, 64}, "T": range(1, 9)}) == {"D": [64, 128], "T": "1 to 8"}
    assert math.isnan(events.number("NaN") or 0.0) and events.number("Infinity") == math.inf
    assert events.number("7") is None


def test_text_is_cleaned_and_cut() -> None:
    assert events.clean("\x1b[31mred\x1b[0m\x00\u202e\ud800 \x1b]0;title\x07end\r\n") == "red end\n"
    assert events.clean("x" * 30, 10) == "xxxxxxxxxx… (20 more characters)"
    assert len(events.clean("x" * 10_000_000)) < 2_100


def test_events_are_strict_sorted_json() -> None:
    report = sample.report()
    for event in report.events():
        line = events.dumps(event)
        assert list(json.loads(line)) == sorted(event)
        assert "\n" not in line


def test_canonical_drops_times_and_order_alone() -> None:
    one, other = list(sample.report().events()), list(sample.report().events())
    other[2:-1] = [event | {"seconds": 9.0} for event in reversed(other[2:-1])]
    other[0] = other[0] | {"started": "later"}
    assert one != other
    assert events.canonical(one) == events.canonical(other)
    assert events.canonical(one) != events.canonical([*one[:-2], one[-2] | {"status": "fail"}, one[-1]])


def test_unknown_status_is_refused() -> None:
    with pytest.raises(ValueError, match="status="):
        events.result(id="a", property="k/p", implementation="a", device="cpu", dtype="", status="ok", statements=())
