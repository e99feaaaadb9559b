"""The grid of invariances: for each implementation, what must not matter, and whether it did."""
from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from assay.report.jsonl import Report
from assay.report.overview import Cell, cell
from assay.run.events import Json

# The columns in the order in which a reader asks; a name that a report has besides comes after them.
COLUMNS = ("strides", "batch split", "permutation", "grad / no grad", "repeat", "order of calls", "copy, .to()", "eager / compiled")


@dataclass(frozen=True)
class Grid:
    """Columns, and for each kind and implementation its cells by column; a column that says nothing of a kind is missing."""

    columns: tuple[str, ...]
    rows: dict[tuple[str, str], dict[str, Cell]]


def grid(report: Report, results: Sequence[Json]) -> Grid:
    """What the properties that name an invariance say of each implementation. Left out counts where nothing was planned."""
    named = {id: info["invariance"] for id, info in report.plan["properties"].items() if info.get("invariance")}
    found: dict[tuple[str, str], dict[str, list[tuple[str, str]]]] = defaultdict(lambda: defaultdict(list))
    for one in results:
        if one["property"] in named:
            found[one["kind"], one["implementation"]][named[one["property"]]].append((one["status"], one["id"]))
    for entry in report.plan["left_out"]:
        if entry["property"] in named:
            who = entry["property"].partition("/")[0], entry["implementation"]
            found[who][named[entry["property"]]].append((entry.get("status", "not-claimed"), ""))
    rows = {who: {column: cell(pairs) for column, pairs in found[who].items()} for who in sorted(found)}
    columns = {column for cells in rows.values() for column in cells}
    return Grid((*(c for c in COLUMNS if c in columns), *sorted(columns.difference(COLUMNS))), rows)
