"""report.html: one self-contained file that needs no network, and no script but for its filters."""
from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from assay.report import failure, invariances, overview, speed, views
from assay.report.jsonl import Report
from assay.report.status import LOOKS, ORDER, plural, short
from assay.run.events import Json

# A whole audit has to stay small: beyond these the page says how many it leaves to report.jsonl.
FAILURES_IN_FULL, FAILURES_LISTED, GAPS, NAMES = 60, 500, 200, 6


@dataclass(frozen=True)
class Gap:
    """Something that was not shown, for the implementations that share it."""

    status: str
    reason: str
    properties: str
    implementations: str


def render(report: Report, bench: speed.Speed | None = None) -> str:
    """The page as text; speed beside it where implementations were timed."""
    results = overview.results_of(report)
    wrong = overview.failures(report)
    groups = _alike(wrong)
    ordered = [one for group in groups for one in group]
    anchors = {one["id"]: f"f{n}" for n, one in enumerate(ordered[:FAILURES_LISTED])}
    listed = [one for group in groups[FAILURES_IN_FULL:] for one in group]
    gaps = _gaps(report, results)
    page = environment().get_template("report.html.j2")
    return page.render(
        report=report, header=report.header, end=report.summary, totals=overview.totals(report),
        title=overview.verdict_sentence(report), tone=_tone(report), statuses=views.statuses(results), anchors=anchors,
        failures=groups[:FAILURES_IN_FULL], listed=[one for one in listed if one["id"] in anchors],
        unlisted=len(wrong) - len(anchors), gaps=gaps[:GAPS], more_gaps=max(0, len(gaps) - GAPS),
        left_out=_left_out(report), matrix=overview.matrix(report, results),
        grid=invariances.grid(report, results), kinds=views.kinds(report, results, anchors),
        statement_texts=report.plan["statements"], bench=bench,
        looks=LOOKS, order=ORDER,
    )


def _alike(wrong: Sequence[Json]) -> list[list[Json]]:
    """Failures of one property, implementation and status together: the first is told in full, the others in short."""
    groups: dict[tuple[str, ...], list[Json]] = defaultdict(list)
    for one in wrong:
        groups[one["property"], one["implementation"], one["status"]].append(one)
    return list(groups.values())


def environment() -> Environment:
    """Autoescape on for everything; the page's own style and script are the only trusted text."""
    found = Environment(
        loader=PackageLoader("assay.report", "templates"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )
    found.filters |= {"short": short, "show": failure.show, "slug": views.slug, "pairs": _settings}
    found.globals |= {
        "plural": plural, "numbers": failure.numbers, "smallest_input": failure.smallest_input, "place": failure.place,
        "said": failure.said, "happened": failure.happened, "arguments": _arguments,
        "style": _asset("report.css"), "script": _asset("report.js"), "safe_url": _safe_url, "looks": LOOKS,
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


def _settings(values: Any) -> str:
    """A declaration's value as short text."""
    if isinstance(values, Mapping):
        return ", ".join(f"{name} = {_settings(value)}" for name, value in values.items())
    return ", ".join(_settings(value) for value in values) if isinstance(values, list) else str(values)


def _tone(report: Report) -> str:
    return {"conformant": "good", "non-conformant": "bad"}.get(report.summary["verdict"], "warn")


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
