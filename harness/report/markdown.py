"""summary.md: the verdict, what failed and what was not shown, for a pull request or a job summary."""
from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from assay.report import failure, invariances, overview
from assay.report.jsonl import Report
from assay.report.status import ORDER, mark, plural, worst
from assay.run.events import Json

FAILURES, GAPS, IMPLEMENTATIONS = 20, 50, 200  # what is beyond is counted and left to report.jsonl
_SPECIAL = re.compile(r"([\\`*_{}\[\]()#!|~$])")


def escape(text: object) -> str:
    """Text as Markdown that shows it as it is: on one line, no markup, no HTML, no mention."""
    flat = " ".join(str(text).split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _SPECIAL.sub(r"\\\1", flat).replace("@", "&#64;").replace("://", ":&#47;&#47;")


def fence(text: str) -> str:
    """A code block that the text cannot close."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    ticks = "`" * max(3, longest + 1)
    return f"{ticks}text\n{text}\n{ticks}"


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """A Markdown table, cells escaped."""
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return [*lines, *(f"| {' | '.join(escape(cell) for cell in row)} |" for row in rows)]


def render(report: Report) -> str:
    """The summary as text."""
    found, header = overview.totals(report), report.header
    results = overview.results_of(report)
    lines = [
        f"# {escape(overview.verdict_sentence(report))}", "",
        f"{plural(found.planned, 'planned case')}, {found.decided:,} decided, {found.red:,} went wrong; "
        f"{found.left_out:,} left out of the plan. {plural(found.examples['right'], 'example')} right, "
        f"{found.examples['wrong']:,} wrong, {found.examples['undecided']:,} undecided, "
        f"{found.examples['not_supported']:,} not supported.", "",
        f"{escape(header['command'])} · seed {header['seed']} · assay {escape(header['assay'])} · "
        f"{escape(header['started'])}", "",
        *_failures(report), *_gaps(report, results), *_implementations(results),
        *_invariances(report, results), *_environment(report),
    ]
    return "\n".join(lines)


def _failures(report: Report) -> list[str]:
    wrong = overview.failures(report)
    if not wrong:
        return ["## Failures", "", "No counterexample was found.", ""]
    lines = ["## Failures", ""]
    for one in wrong[:FAILURES]:
        lines += [fence(failure.failure_text(one)), ""]
    left = len(wrong) - FAILURES
    return [*lines, f"{plural(left, 'further failure')} in report.jsonl.", ""] if left > 0 else lines


def _gaps(report: Report, results: Sequence[Json]) -> list[str]:
    gaps = overview.not_shown(report, results)
    if not gaps:
        return ["## Not shown", "", "Everything that this run knows was asked and decided.", ""]
    rows = [(mark(one.status), one.implementation, ", ".join(one.properties), one.reason) for one in gaps[:GAPS]]
    left = len(gaps) - GAPS
    more = [f"{left:,} more in report.jsonl.", ""] if left > 0 else []
    return ["## Not shown", "", *table(("Status", "Implementation", "Properties", "Why"), rows), "", *more]


def _implementations(results: Sequence[Json]) -> list[str]:
    """One line an implementation: its worst status, and counts."""
    groups: dict[tuple[str, str], list[str]] = {}
    for one in results:
        groups.setdefault((one["kind"], one["implementation"]), []).append(one["status"])
    rows = [
        (kind, name, mark(worst(found)), ", ".join(f"{found.count(one)} {one}" for one in ORDER if one in found))
        for (kind, name), found in list(groups.items())[:IMPLEMENTATIONS]
    ]
    return ["## Implementations", "", *table(("Kind", "Implementation", "Worst", "Cases"), rows), ""]


def _invariances(report: Report, results: Sequence[Json]) -> list[str]:
    """One line an implementation, one column for each circumstance that must not matter."""
    found = invariances.grid(report, results)
    if not found.rows:
        return []
    rows = [
        (kind, name, *(mark(cells[column].status) if column in cells else "" for column in found.columns))
        for (kind, name), cells in list(found.rows.items())[:IMPLEMENTATIONS]
    ]
    return ["## Invariances", "", *table(("Kind", "Implementation", *map(escape, found.columns)), rows), ""]


def _environment(report: Report) -> list[str]:
    rows = list(report.header["environment"].items())
    return ["## Environment", "", *table(("What", "Value"), rows), ""]
