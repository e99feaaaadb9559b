"""Where errors lie between 0 and their bound: recorded by the judge, shown as histograms and strips."""
from __future__ import annotations

import pytest

from assay.cases import Configuration
from assay.report import charts, distributions, html
from assay.run import events
from assay.run.distribution import Distribution, size

from . import sample


@pytest.mark.parametrize(("ratio", "place"), [
    (0.0, 0), (1e-9, 1), (9.9e-5, 1), (1.01e-4, 2), (4e-4, 3), (1.01e-3, 4), (0.05, 7), (0.2, 8), (0.5, 9), (1.0, 9),
    (float("nan"), 0)])
def test_places(ratio: float, place: int) -> None:
    assert events.place_of(ratio) == place


def test_an_examples_size_is_its_largest_dim() -> None:
    sizes = {n: size(Configuration("softmax", {"B": 1, "C": n})) for n in (1, 2, 8, 9, 128, 129)}
    assert sizes == {1: "1", 2: "2–8", 8: "2–8", 9: "9–32", 128: "33–128", 129: "over 128"}


def test_nothing_is_told_where_all_is_exact() -> None:
    found = Distribution()
    found.add(0.0, Configuration("softmax", {"C": 2}))
    assert found.to_json() == {}


def test_examples_are_counted_by_place_family_and_size() -> None:
    found = Distribution()
    for ratio, dim, family in ((0.0, 2, "integers"), (0.2, 4, "integers"), (0.05, 64, "normal"), (float("inf"), 2, "normal")):
        found.add(ratio, Configuration("softmax", {"C": dim}, family=family))
    told = found.to_json()
    assert told["spread"] == [1, 0, 0, 0, 0, 0, 0, 1, 1, 0]
    assert told["families"] == {"integers": [2, 0.1, 0.2], "normal": [1, 0.05, 0.05]}
    assert told["sizes"] == {"2–8": [2, 0.1, 0.2], "33–128": [1, 0.05, 0.05]}


def measured() -> list[events.Json]:
    values = {"error_over_bound": 0.5, "spread": [2, 0, 0, 0, 0, 0, 0, 1, 1, 1], "families": {"normal": [5, 0.1, 0.5]},
              "sizes": {"over 128": [2, 0.0, 0.0], "2–8": [3, 0.1, 0.5]}}
    return [one | {"values": values} for one in sample.report(healthy=True).results if one["property"] == "softmax/formula"]


def test_groups_are_in_order_and_name_their_headroom() -> None:
    cases = measured()
    headings = dict(distributions.groups(cases))
    assert [one.name for one in headings["by largest dim"]] == ["2–8", "over 128"]
    assert {one.name for one in headings["by type"]} == {"float32", "bfloat16", "float16"}
    picture = charts.strips(list(headings.items()), "softmax/formula")
    assert "normal 2 ×" in picture and "over 128 exact" in picture and 'role="img"' in picture
    assert distributions.counts(cases)[0] == 2 * len(cases)


def test_hostile_names_and_sizes_stay_text() -> None:
    report = sample.report()
    for one in report.results:
        one["values"] = {"spread": [1] * 10, "families": {"<b>x": [1, 0.0, 1e-300]},
                         "sizes": {"over <i>": [1, 2.0, 5.0], "": [1, 0, 0]}}
    page = html.render(report)
    assert "<b>x" not in page and "<i>" not in page and "svg class=\"strips\"" in page
