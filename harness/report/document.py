"""The document that runs: every statement in order, with its formula, its properties and how they fared in a report, as a site."""
from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markdown_it import MarkdownIt
from markupsafe import Markup

from assay.report import html, overview, views
from assay.report.formulas import mathml
from assay.report.jsonl import Report
from assay.report.status import ORDER, plural, worst
from assay.run.events import DECIDED, Json

NOT_ASKED, WAITING = "not asked", "waiting"
# How a statement fared, for counting: what its status amounts to.
OUTCOMES = ("shown", "wrong", "open", NOT_ASKED, WAITING)
PAGE, REPORT_PAGE, FINDINGS = "index.html", "report.html", "findings"


@dataclass(frozen=True)
class Held:
    """A property that holds a statement, and the planted faults that it has to tell."""

    id: str
    sentence: str
    kills: int


@dataclass(frozen=True)
class Entry:
    """One statement, erratum or further claim of the catalogue."""

    id: str
    text: str
    formula: str  # LaTeX, or nothing
    held_as: str
    source: str
    properties: Sequence[Held]
    note: str = ""  # of an erratum: what the notes say
    shown: str = ""  # of an erratum that no property can hold: where it is shown


@dataclass(frozen=True)
class Chapter:
    """A section of the catalogue."""

    title: str
    entries: Sequence[Entry]


@dataclass(frozen=True)
class Fared:
    """One property as it fared."""

    held: Held
    status: str  # or `not asked`
    anchor: str
    coverage: str


@dataclass(frozen=True)
class Told:
    """A statement with everything that the page says of it."""

    entry: Entry
    status: str
    outcome: str
    formula: Markup
    coverage: str
    properties: list[Fared]


def chosen(report: Report, implementation: str | None) -> str:
    """The implementation that the page speaks of: the one that is named, or the one with the most kinds."""
    names = overview.implementations(report)
    if implementation is not None or not names:
        return implementation or ""
    kinds = {name: len({one["kind"] for one in report.header["implementations"] if one["name"] == name}) for name in names}
    return max(names, key=lambda name: kinds[name])


def site(report: Report, implementation: str, chapters: Sequence[Chapter], findings: Mapping[str, str]) -> dict[str, str]:
    """File name -> text: the walk, the report itself, and a page for each finding."""
    pages = {f"{FINDINGS}/{name}.html": finding(name, text) for name, text in findings.items()}
    titles = [(title(text) or name, f"{FINDINGS}/{name}.html") for name, text in findings.items()]
    return {PAGE: walk(report, implementation, chapters, titles), REPORT_PAGE: html.render(report), **pages}


def walk(report: Report, implementation: str, chapters: Sequence[Chapter], findings: Sequence[tuple[str, str]] = ()) -> str:
    """The page of all statements."""
    by_property: dict[str, list[Json]] = {}
    for one in overview.results_of(report):
        if one["implementation"] == implementation:
            by_property.setdefault(one["property"], []).append(one)
    left = {entry["property"]: entry.get("status", "not-claimed") for entry in report.plan["left_out"]
            if entry["implementation"] == implementation}
    told = [(chapter.title, views.slug(chapter.title), [_told(entry, by_property, left) for entry in chapter.entries])
            for chapter in chapters]
    counts = Counter(one.outcome for _, _, entries in told for one in entries)
    return _page("document.html.j2", report=report, header=report.header, implementation=implementation, chapters=told,
                 counts=counts, outcomes=OUTCOMES, tallies=[Counter(one.outcome for one in entries) for _, _, entries in told],
                 total=sum(counts.values()), findings=findings, report_page=REPORT_PAGE, verdict=overview.verdict_sentence(report))


def _told(entry: Entry, by_property: Mapping[str, Sequence[Json]], left: Mapping[str, str]) -> Told:
    fared = [_fared(one, by_property.get(one.id, ()), left) for one in entry.properties]
    cases = [case for one in entry.properties for case in by_property.get(one.id, ())]
    asked = [one.status for one in fared if one.status != NOT_ASKED]
    status = worst(asked) if asked else NOT_ASKED if entry.properties or entry.shown else WAITING
    return Told(entry, status, _outcome(status), mathml(entry.formula) if entry.formula else Markup(""),
                _coverage(entry, fared, cases), fared)


def _fared(one: Held, cases: Sequence[Json], left: Mapping[str, str]) -> Fared:
    status = worst(case["status"] for case in cases) if cases else left.get(one.id, NOT_ASKED)
    right, every = _examples(cases)
    return Fared(one, status, f"{REPORT_PAGE}#p-{views.slug(one.id)}" if cases else "",
                 f"{right:,} of {every:,} examples right" if every else "")


def _examples(cases: Sequence[Json]) -> tuple[int, int]:
    return sum(case["examples"]["right"] for case in cases), sum(sum(case["examples"].values()) for case in cases)


def _outcome(status: str) -> str:
    if status in (NOT_ASKED, WAITING):
        return status
    if status in overview.BROKEN or status == "blocked":
        return "wrong"
    return "shown" if status in ("pass", "suspect") else NOT_ASKED if status == "not-claimed" else "open"


def _coverage(entry: Entry, fared: Sequence[Fared], cases: Sequence[Json]) -> str:
    """In words: properties decided, examples right, and planted faults that the properties have to tell."""
    if not entry.properties:
        return entry.shown and f"shown in {entry.shown}"
    decided = sum(one.status in DECIDED for one in fared)
    right, every = _examples(cases)
    faults = sum(one.held.kills for one in fared)
    parts = [f"{decided} of {plural(len(fared), 'property')} decided", f"{right:,} of {every:,} examples right" if every else "",
             f"{plural(faults, 'planted fault')} to tell" if faults else ""]
    return " · ".join(part for part in parts if part)


# ------------------------------------------------------------------------------------------------ findings
def title(text: str) -> str:
    """The first heading of a Markdown page, without its marks."""
    first = next((line for line in text.splitlines() if line.startswith("# ")), "")
    return first.removeprefix("# ").replace("`", "").strip()


def finding(name: str, text: str) -> str:
    """A finding as a page; markup in it is text."""
    body = Markup(MarkdownIt("commonmark", {"html": False}).render(text))
    return _page("finding.html.j2", title=title(text) or name, body=body)


def _page(template: str, **values: object) -> str:
    return html.environment().get_template(template).render(**values, order=ORDER)
