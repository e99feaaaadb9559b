"""An audit as a report like any other: what was planned for each type, and how each case ended."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from assay import registry
from assay.report.jsonl import Report
from assay.run import background, events
from assay.run.audit import Row
from assay.run.plan import details

BUILDING = "audit/can_be_built"


def as_report(rows: Sequence[Row], *, command: str, seed: int, seconds: float) -> Report:
    """Header, plan, results and footer of all types; what could not be built is left out of the plan, and says why."""
    cases = {case.id: case.row for row in rows for case in row.cases}
    kinds = {case.kind for row in rows for case in row.cases}
    shown = [prop for kind in sorted(kinds) for prop in registry.properties(kind)]
    named = [id for prop in shown for id in prop.statements]
    left: list[dict[str, Any]] = [dict(one) for row in rows for one in row.left]
    left += [{"property": BUILDING, "implementation": row.type, "reason": row.reason, "status": "not-supported"}
             for row in rows if not row.built]
    plan = events.plan(cases, left, properties=details(shown), statements=background.texts(named),
                       formulas=background.formulas(named), kinds=background.kinds(kinds))
    header = events.header(command=command, seed=seed, profile="quick", environment=events.environment(),
                           implementations=[row.declaration for row in rows if row.declaration])
    results = [one for row in rows for one in row.results]
    return Report(dict(header), dict(plan), results, dict(events.footer(results, plan, seconds=seconds)))
