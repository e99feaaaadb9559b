"""report.html: one self-contained file that needs no network, and no script but for its filters."""
from __future__ import annotations

import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from assay.report import failure, invariances, overview
from assay.report.charts import histogram, ratio_bar
from assay.report.jsonl import Report
from assay.report.status import LOOKS, ORDER, plural, short, worst
from assay.run import events
from assay.run.events import Json

# A whole audit has to stay small: beyond these the page says how many it leaves to report.jsonl.
ROWS_PER_PROPERTY, FAILURES_IN_FULL, FAILURES_LISTED, GAPS, NAMES = 30, 60, 500, 200, 6


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
    statements: list[tuple[str, str]]
    tolerance: str
    source: str
    rests_on: list[tuple[str, str]]
    status: str
    counts: list[tuple[str, int]]
    rows: list[Row]
    more: str


@dataclass(frozen=True)
class Gap:
    """Something that was not shown, for the implementations that share it."""

    status: str
    reason: str
    properties: str
    implementations: str


def render(report: Report) -> str:
    """The page as text."""
    results = overview.results_of(report)
    wrong = overview.failures(report)
    groups = _alike(wrong)
    ordered = [one for group in groups for one in group]
    anchors = {one["id"]: f"f{n}" for n, one in enumerate(ordered[:FAILURES_LISTED])}
    listed = [one for group in groups[FAILURES_IN_FULL:] for one in group]
    gaps = _gaps(report, results)
    page = _environment().get_template("report.html.j2")
    return page.render(
        report=report, header=report.header, end=report.summary, totals=overview.totals(report),
        title=overview.verdict_sentence(report), tone=_tone(report), statuses=_statuses(results), anchors=anchors,
        failures=groups[:FAILURES_IN_FULL], listed=[one for one in listed if one["id"] in anchors],
        unlisted=len(wrong) - len(anchors), gaps=gaps[:GAPS], more_gaps=max(0, len(gaps) - GAPS),
        left_out=_left_out(report), matrix=overview.matrix(report, results),
        grid=invariances.grid(report, results), charts=_charts(results),
        kinds=_properties(report, results, anchors), statement_texts=report.plan["statements"],
        looks=LOOKS, order=ORDER,
    )


def _alike(wrong: Sequence[Json]) -> list[list[Json]]:
    """Failures of one property, implementation and status together: the first is told in full, the others in short."""
    groups: dict[tuple[str, ...], list[Json]] = defaultdict(list)
    for one in wrong:
        groups[one["property"], one["implementation"], one["status"]].append(one)
    return list(groups.values())


def _environment() -> Environment:
    """Autoescape on for everything; the page's own style and script are the only trusted text."""
    found = Environment(
        loader=PackageLoader("assay.report", "templates"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )
    found.filters |= {"short": short, "show": failure.show, "slug": _slug, "pairs": _settings}
    found.globals |= {
        "plural": plural, "numbers": failure.numbers, "smallest_input": failure.smallest_input, "place": failure.place,
        "said": failure.said, "arguments": _arguments,
        "style": _asset("report.css"), "script": _asset("report.js"), "safe_url": _safe_url,
    }
    return found


def _asset(name: str) -> Markup:
    return Markup(resources.files("assay.report").joinpath(f"templates/{name}").read_text(encoding="utf-8"))


def _arguments(found: Mapping[str, Any]) -> str:
    """All arguments of a counterexample, one below the other."""
    lines = []
    for name, text in found.get("arguments", {}).items():
        lines.append(f"{name} = " + text.replace("\n", "\n" + " " * (len(name) + 3)))
    return "\n".join(lines)


def _safe_url(url: object) -> str:
    """The address if it is plain http(s), else nothing: an implementation may have named any scheme."""
    return url if isinstance(url, str) and re.fullmatch(r"https?://[^\s<>\"']+", url) else ""


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "unnamed"


def _settings(values: Any) -> str:
    """A declaration's value as short text."""
    if isinstance(values, Mapping):
        return ", ".join(f"{name} = {_settings(value)}" for name, value in values.items())
    return ", ".join(_settings(value) for value in values) if isinstance(values, list) else str(values)


def _tone(report: Report) -> str:
    return {"conformant": "good", "non-conformant": "bad"}.get(report.summary["verdict"], "warn")


def _statuses(results: Sequence[Json]) -> list[tuple[str, int]]:
    """Statuses that occur and how often, worst first."""
    found = Counter(one["status"] for one in results)
    return [(status, found[status]) for status in ORDER if found[status]]


def _left_out(report: Report) -> int:
    return len(report.plan["left_out"])


def _gaps(report: Report, results: Sequence[Json]) -> list[Gap]:
    """What was not shown; implementations with the same gap share a line."""
    groups: dict[tuple[str, str, tuple[str, ...]], list[overview.NotShown]] = defaultdict(list)
    for one in overview.not_shown(report, results):
        groups[one.status, one.reason, one.properties].append(one)
    return [
        Gap(status, reason, _names(properties), _names([one.implementation for one in group]))
        for (status, reason, properties), group in groups.items()
    ]


def _names(names: Sequence[str]) -> str:
    kept, left = ", ".join(names[:NAMES]), len(names) - NAMES
    return f"{kept} and {left} more" if left > 0 else kept


def _charts(results: Sequence[Json]) -> dict[str, list[tuple[str, str, Markup]]]:
    """kind -> for each dtype: its name, a sentence and a histogram of error over bound."""
    ratios: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for one in results:
        ratio = _ratio(one)
        if ratio is not None:
            ratios[one["kind"]][one["dtype"]].append(ratio)
    return {
        kind: [(dtype, _spread(found), histogram(found, f"{kind} in {dtype}")) for dtype, found in by_dtype.items()]
        for kind, by_dtype in sorted(ratios.items())
    }


def _spread(ratios: Sequence[float]) -> str:
    inside = [ratio for ratio in ratios if ratio <= 1]
    if not inside:
        return f"{plural(len(ratios), 'case')}, none inside its bound"
    used = f"right cases used {statistics.median(inside):.0%} of their bound (median), {max(inside):.0%} at most"
    return f"{plural(len(ratios), 'case')}; {used}"


def _ratio(one: Mapping[str, Any]) -> float | None:
    found = events.number(one["values"].get("error_over_bound"))
    return events.number(one["error_over_bound"]) if found is None else found


def _properties(report: Report, results: Sequence[Json], anchors: Mapping[str, str]) -> dict[str, list[PropertyView]]:
    """kind -> its properties, each with its cases."""
    cases: dict[str, list[Json]] = defaultdict(list)
    for one in results:
        cases[one["property"]].append(one)
    found: dict[str, list[PropertyView]] = defaultdict(list)
    for slug in dict.fromkeys([*report.plan["properties"], *cases]):
        if cases[slug]:
            found[slug.partition("/")[0]].append(_property(report, slug, cases[slug], anchors))
    return dict(sorted(found.items()))


def _property(report: Report, slug: str, cases: Sequence[Json], anchors: Mapping[str, str]) -> PropertyView:
    info = report.plan["properties"].get(slug, {})
    texts = report.plan["statements"]
    ordered = sorted(cases, key=lambda one: (ORDER.index(one["status"]), -_sortable(one)))
    shown = ordered[:ROWS_PER_PROPERTY]
    rest = _statuses(ordered[ROWS_PER_PROPERTY:])
    more = ", ".join(f"{count:,} {status}" for status, count in rest)
    return PropertyView(
        slug, f"p-{_slug(slug)}", info.get("sentence") or cases[0]["sentence"],
        [(one, texts.get(one, "")) for one in cases[0]["statements"]],
        info.get("tolerance", ""), info.get("source", ""),
        [(name, f"p-{_slug(name)}") for name in info.get("rests_on", cases[0]["rests_on"])],
        worst(one["status"] for one in cases), _statuses(cases), [_row(one, anchors) for one in shown], more,
    )


def _sortable(one: Json) -> float:
    ratio = _ratio(one)
    return -1.0 if ratio is None or ratio != ratio else ratio


def _row(one: Json, anchors: Mapping[str, str]) -> Row:
    counts, ratio = one["examples"], _ratio(one)
    forms = one["values"].get("forms", {})
    text = "" if ratio is None else f"{short(ratio)} ×" if not ratio <= 1 else f"{ratio:.2f}"
    return Row(
        one["implementation"], f"{one['device']} {one['dtype']}".strip(), one["status"],
        (counts["right"], counts["wrong"], counts["undecided"], counts["not_supported"]), ratio_bar(ratio), text,
        max(forms, key=forms.__getitem__) if forms else "", anchors.get(one["id"], ""),
    )
