"""`assay plan`: what would run, what would not, and why."""
from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from assay.errors import UsageError
from assay.report.status import plural
from assay.run import events
from assay.run.session import Request, Session, plan_event

WIDTH = 110


def plan_of(request: Request) -> events.Plan:
    """The plan that a check with these options would have."""
    with Session(request) as session:
        targets = session.resolve()
        for target in targets:
            if target.died is not None:
                raise UsageError(f"target={target.name} cannot be imported: {target.died}")
        return plan_event(*session.plan(targets))


def plan_text(plan: Mapping[str, Any]) -> str:
    """Properties with the dtypes of each implementation, then what is left out, by reason."""
    rows: dict[tuple[str, str], list[str]] = {}
    for name, implementation, device, dtype in plan["rows"]:
        rows.setdefault((name, implementation), []).append(f"{device} {dtype}")
    lines = [f"{plural(len(plan['cases']), 'case')} would run"]
    lines += [f"  {name} · {who}: {', '.join(places)}" for (name, who), places in rows.items()]
    reasons: dict[tuple[str, str], list[str]] = {}
    for one in plan["left_out"]:
        what = one["property"].partition("/")[2] + (f" ({one['dtype']})" if "dtype" in one else "")
        reasons.setdefault((one["implementation"], one["reason"]), []).append(what)
    if reasons:
        lines += ["", f"{len(plan['left_out'])} would not"]
    for (who, reason), names in reasons.items():
        lines += textwrap.wrap(f"{who}: {reason}: {', '.join(names)}", WIDTH, initial_indent="  ", subsequent_indent="    ")
    return "\n".join(lines)
