"""The table of an audit: one line a model type, what fails in words, what could not be built and why, what is not claimed."""
from __future__ import annotations

from collections.abc import Sequence

from assay.report.markdown import escape, table
from assay.report.status import plural
from assay.run.events import Json

VERDICTS = ("non-conformant", "inconclusive", "conformant", "not built")
Notes = Sequence[tuple[str, str, str]]


def headline(rows: Sequence[Json]) -> str:
    """How many types, how many of them built, and what came of these."""
    built = [row for row in rows if row["built"]]
    counts = ", ".join(f"{sum(row['verdict'] == verdict for row in built)} {verdict}" for verdict in VERDICTS[:3])
    return f"{plural(len(rows), 'model type')}, {len(built)} built: {counts}"


def render(library: str, version: str, command: str, rows: Sequence[Json], notes: Notes) -> str:
    """The report as Markdown; rows as in the .jsonl beside it."""
    ordered = sorted(rows, key=lambda row: (VERDICTS.index(row["verdict"]), row["type"]))
    spent = sum(row["seconds"] for row in rows)
    lines = [f"# Audit of {library} {version}", "", f"{headline(rows)}.", "",
             f"`{escape(command)}` · {spent / max(1, len(rows)):.1f} s a type on average, by the clock. Each type is built "
             "offline from a tiny configuration with weights from a seed, and tried in a process of its own.", ""]
    lines += table(("type", "built", "verdict", "failing properties", "seconds"),
                   [(row["type"], "yes" if row["built"] else "no", row["verdict"], ", ".join(row["failing"]) or row["reason"],
                     f"{row['seconds']:.1f}") for row in ordered])
    for row in ordered:
        if row["failing"] or (row["built"] and row["reason"]):
            lines += ["", f"## {escape(row['type'])}", ""]
            lines += [f"* {escape(message)}" for name, message in sorted(row["messages"].items())
                      if name.partition("/")[2] in row["failing"]] or [escape(row["reason"])]
    missing = [(row["type"], row["reason"]) for row in ordered if not row["built"]]
    lines += ["", "## Not built", "", *table(("type", "reason"), missing)]
    lines += ["", "## Undecided and not supported", "", *table(("property", "types"), _gaps(ordered))]
    lines += ["", "## Not claimed, and why", "", *table(("types", "what", "evidence"), notes)]
    return "\n".join(lines) + "\n"


def _gaps(rows: Sequence[Json]) -> list[tuple[str, str]]:
    """For each status short of a verdict and property, the types."""
    found: dict[str, list[str]] = {}
    for row in rows:
        for name, status in row["statuses"].items():
            if status != "pass" and name.partition("/")[2] not in row["failing"]:
                found.setdefault(f"{status}: {name.partition('/')[2]}", []).append(row["type"])
    return [(name, ", ".join(types)) for name, types in sorted(found.items())]
