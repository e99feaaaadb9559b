"""Speed beside conformance: what `assay bench --report` timed, read back or refused, joined to the report's own statuses."""
from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.errors import UsageError
from assay.report import shape
from assay.report.jsonl import Report
from assay.report.status import power, short, worst
from assay.run import events

FILE_NAME, SCHEMA, MAX_BYTES = "bench.json", 1, 4 * 2**20


@dataclass(frozen=True)
class Row:
    """One implementation in a group, as text."""

    implementation: str
    status: str  # of all its cases of the kind in the report; empty where it has none
    right: str
    note: str
    ratio: str
    quartiles: str
    share: str
    memory: str
    work: str
    products: str


@dataclass(frozen=True)
class Speed:
    """Groups of rows under a heading."""

    command: str
    groups: list[tuple[str, list[Row]]]
    ended: list[str]


def dumps(report: Report, command: str, rows: Sequence[Mapping[str, Any]], ended: Sequence[str]) -> str:
    """The file that `read` reads."""
    told = {"schema": SCHEMA, "report": identity(report), "command": command, "rows": list(rows), "ended": list(ended)}
    return events.dumps(events.strict(told)) + "\n"


def read(folder: Path, report: Report) -> Speed | None:
    """What lies beside a report and was timed for it; nothing where nothing does, UsageError for what assay bench did not write."""
    data = beside(folder, report)
    return None if data is None else joined(parse(data, folder / FILE_NAME), report)


def beside(folder: Path, report: Report) -> bytes | None:
    """The file that `read` reads, as it lies there."""
    place = folder / FILE_NAME
    if not place.exists():
        return None
    try:
        if place.stat().st_size > MAX_BYTES:
            raise UsageError(f"{place}: more than {MAX_BYTES // 2**20} MiB, not written by assay bench")
        data = place.read_bytes()
    except OSError as error:
        raise UsageError(f"{place}: cannot be read: {error.strerror}; delete it, or run assay bench --report again") from None
    return data if parse(data, place)["report"] == identity(report) else None


def identity(report: Report) -> str:
    """Which run this is: after another check in the same folder, old timings are not shown beside it."""
    return f"{report.header['started']} {report.plan['whole']['sha256']}"


def parse(data: bytes, place: Path) -> Mapping[str, Any]:
    """The file's content, cleaned; UsageError where it is of another form."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        raise UsageError(f"{place} is not JSON; delete it, or run assay bench --report again") from None
    schema = found.get("schema") if isinstance(found, dict) else None
    if isinstance(schema, int) and schema > SCHEMA:
        raise UsageError(f"{place}: schema={schema} is newer than {SCHEMA}, which this assay reads; upgrade")
    broken = shape.departure("bench", found)
    if broken is not None:
        where, error = broken
        raise UsageError(f"{place}: {events.clean(where, 100)}: {events.clean(error.message, 200)}; run assay bench --report again")
    cleaned: Mapping[str, Any] = events.strict(found)
    return cleaned


def joined(found: Mapping[str, Any], report: Report) -> Speed:
    """The rows by what was timed, each with the worst status that the report has of its implementation."""
    statuses: dict[tuple[str, str], list[str]] = {}
    for one in report.results:
        statuses.setdefault((one["kind"], one["implementation"]), []).append(one["status"])
    groups: dict[str, list[Row]] = {}
    for row in found["rows"]:
        title = " · ".join(row[key] for key in ("kind", "workload", "mode", "dtype", "device"))
        groups.setdefault(title, []).append(_row(row, statuses.get((row["kind"], row["implementation"]), [])))
    return Speed(found["command"], list(groups.items()), list(found["ended"]))


def _row(row: Mapping[str, Any], statuses: Sequence[str]) -> Row:
    status, right = worst(statuses) if statuses else "", row["right"]
    if row["ratio"] is None:
        return Row(row["implementation"], status, right, row["note"] or "no reason given", "", "", "", "", "", "")
    share, products = row["share_of_floor"], row["multiply_adds"]
    return Row(
        row["implementation"], status, right, "", f"{row['ratio']:.2f}",
        f"{row['low']:.2f}–{row['high']:.2f}" if row["low"] is not None and row["high"] is not None else "",
        "" if share is None else f"{share:.0%}", power(row["memory_exponent"]), power(row.get("work_exponent")),
        short(products) if products else "")
