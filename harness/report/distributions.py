"""Error over bound of many cases: as counts for a histogram, and as strips by type, value family and size."""
from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from assay.report.charts import Strip
from assay.run import events
from assay.run.events import SPREAD, Json

GROUPS = {"families": "by value family", "sizes": "by largest dim"}


def ratio(one: Json) -> float | None:
    """The largest error over bound of a case."""
    found = events.number(one["values"].get("error_over_bound"))
    return events.number(one["error_over_bound"]) if found is None else found


def counts(cases: Sequence[Json]) -> list[int]:
    """Examples at each place of a distribution, those provably wrong at the end."""
    found = [0] * (SPREAD + 1)
    for one in cases:
        for place, count in enumerate(one["values"].get("spread", ())):
            found[place] += count
        found[SPREAD] += one["examples"]["wrong"]
    return found


def worst_counts(cases: Sequence[Json]) -> list[int]:
    """Cases by their largest error: what there is of reports that hold no distributions."""
    found = [0] * (SPREAD + 1)
    for value in (ratio(one) for one in cases):
        if value is not None:
            found[events.place_of(value) if value <= 1 else SPREAD] += 1
    return found


def groups(cases: Sequence[Json]) -> list[tuple[str, list[Strip]]]:
    """Headings with their strips; nothing where no case holds a distribution."""
    told = [one for one in cases if "spread" in one["values"]]
    if not told:
        return []
    by_type: dict[str, list[list[float]]] = defaultdict(list)
    for one in told:
        families = one["values"].get("families", {}).values()
        by_type[one["dtype"]] += list(families)
    found = [("by type", _strips(by_type, list))]
    for key, heading in GROUPS.items():
        rows: dict[str, list[list[float]]] = defaultdict(list)
        for one in told:
            for name, row in one["values"].get(key, {}).items():
                rows[name].append(row)
        found.append((heading, _strips(rows, _by_size if key == "sizes" else sorted)))
    return [(heading, strips) for heading, strips in found if strips]


def _strips(rows: Mapping[str, list[list[float]]], order: Callable[[Mapping[str, list[list[float]]]], list[str]]) -> list[Strip]:
    """One strip a name; the median is that of the cases' medians."""
    return [Strip(name, round(sum(n for n, _, _ in rows[name])), statistics.median(m for _, m, _ in rows[name]),
                  max(worst for _, _, worst in rows[name])) for name in order(rows) if rows[name]]


def _by_size(rows: Mapping[str, list[list[float]]]) -> list[str]:
    def first(name: str) -> tuple[int, str]:
        digits = name.removeprefix("over ").partition("–")[0]
        return (int(digits[:9]) + name.startswith("over ") if digits.isdecimal() else 0, name)

    return sorted(rows, key=first)
