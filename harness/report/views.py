"""What the page shows of each kind and property: statements, formulas, sources, cases worst first, and where their errors lie."""
from __future__ import annotations

import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from assay.report import distributions
from assay.report.charts import histogram, ratio_bar, strips
from assay.report.formulas import mathml
from assay.report.jsonl import Report
from assay.report.status import ORDER, plural, short, worst
from assay.run.events import Json

# A whole audit has to stay small: beyond these the page says how many it leaves to report.jsonl.
ROWS_PER_PROPERTY = 30


@dataclass(frozen=True)
class Stated:
    """A statement under a property."""

    id: str
    text: str
    formula: Markup


@dataclass(frozen=True)
class Row:
    """One case in the table of its property."""

    who: str
    where: str
    status: str
    examples: tuple[int, int, int, int]
    bar: Markup
    ratio: str
    form: str
    anchor: str


@dataclass(frozen=True)
class PropertyView:
    """One property with its cases, worst first."""

    slug: str
    anchor: str
    sentence: str
    statements: list[Stated]
    tolerance: str
    source: str
    rests_on: list[tuple[str, str]]
    status: str
    counts: list[tuple[str, int]]
    rows: list[Row]
    more: str
    figure: Markup


@dataclass(frozen=True)
class KindView:
    """One kind: what is fixed about it, a chart for each type, and its properties."""

    info: Json
    charts: list[tuple[str, str, Markup]]
    properties: list[PropertyView]


def slug(text: str) -> str:
    """The text as a part of an anchor."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "unnamed"


def statuses(results: Sequence[Json]) -> list[tuple[str, int]]:
    """Statuses that occur and how often, worst first."""
    found = Counter(one["status"] for one in results)
    return [(status, found[status]) for status in ORDER if found[status]]


def kinds(report: Report, results: Sequence[Json], anchors: Mapping[str, str]) -> dict[str, KindView]:
    """kind -> what the page shows of it."""
    cases: dict[str, list[Json]] = defaultdict(list)
    by_kind: dict[str, list[Json]] = defaultdict(list)
    for one in results:
        cases[one["property"]].append(one)
        by_kind[one["property"].partition("/")[0]].append(one)
    views: dict[str, list[PropertyView]] = defaultdict(list)
    for name in dict.fromkeys([*report.plan["properties"], *cases]):
        if cases[name]:
            views[name.partition("/")[0]].append(_property(report, name, cases[name], anchors))
    told = report.plan.get("kinds", {})
    return {kind: KindView(told.get(kind, {}), _charts(kind, by_kind[kind]), views[kind]) for kind in sorted(views)}


def _charts(kind: str, cases: Sequence[Json]) -> list[tuple[str, str, Markup]]:
    """For each dtype its name, a sentence and a histogram of error over bound."""
    found: dict[str, list[Json]] = defaultdict(list)
    for one in cases:
        if distributions.ratio(one) is not None:
            found[one["dtype"]].append(one)
    charts = []
    for dtype, measured in found.items():
        examples = distributions.counts(measured)
        what = "example" if sum(examples[:-1]) else "case"
        shown = examples if what == "example" else distributions.worst_counts(measured)
        charts.append((dtype, _spread(measured, sum(shown), what), histogram(shown, f"{kind} in {dtype}", what)))
    return charts


def _spread(cases: Sequence[Json], shown: int, what: str) -> str:
    ratios = [value for value in map(distributions.ratio, cases) if value is not None]
    inside = [value for value in ratios if value <= 1]
    if not inside:
        return f"{plural(len(ratios), 'case')}, none inside its bound"
    used = f"right cases used {statistics.median(inside):.1%} of their bound (median), {max(inside):.1%} at most"
    counted = f"{plural(shown, 'example')} with an error, " if what == "example" else ""
    return f"{counted}{plural(len(ratios), 'case')}; {used}"


def _property(report: Report, name: str, cases: Sequence[Json], anchors: Mapping[str, str]) -> PropertyView:
    info = report.plan["properties"].get(name, {})
    ordered = sorted(cases, key=lambda one: (ORDER.index(one["status"]), -_sortable(one)))
    more = ", ".join(f"{count:,} {status}" for status, count in statuses(ordered[ROWS_PER_PROPERTY:]))
    groups = distributions.groups(cases)
    return PropertyView(
        name, f"p-{slug(name)}", info.get("sentence") or cases[0]["sentence"], stated(report, cases[0]["statements"]),
        info.get("tolerance", ""), info.get("source", ""),
        [(other, f"p-{slug(other)}") for other in info.get("rests_on", cases[0]["rests_on"])],
        worst(one["status"] for one in cases), statuses(cases), [_row(one, anchors) for one in ordered[:ROWS_PER_PROPERTY]], more,
        strips(groups, name) if groups else Markup(""),
    )


def stated(report: Report, ids: Sequence[str]) -> list[Stated]:
    """Statements with their texts and formulas."""
    texts, formulas = report.plan["statements"], report.plan.get("formulas", {})
    return [Stated(id, texts.get(id, ""), mathml(formulas[id]) if formulas.get(id) else Markup("")) for id in ids]


def _sortable(one: Json) -> float:
    value = distributions.ratio(one)
    return -1.0 if value is None or value != value else value


def _row(one: Json, anchors: Mapping[str, str]) -> Row:
    counts, value = one["examples"], distributions.ratio(one)
    forms = one["values"].get("forms", {})
    return Row(
        one["implementation"], f"{one['device']} {one['dtype']}".strip(), one["status"],
        (counts["right"], counts["wrong"], counts["undecided"], counts["not_supported"]), ratio_bar(value), _ratio_text(value),
        max(forms, key=forms.__getitem__) if forms else "", anchors.get(one["id"], ""),
    )


def _ratio_text(value: float | None) -> str:
    if value is None:
        return ""
    if not value <= 1:
        return f"{short(value)} ×"
    return "exact" if value == 0 else f"{value:.2g}"
