"""Shards of one plan joined into one report; anything mixed is refused."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from assay.errors import UsageError
from assay.report.jsonl import Report
from assay.run import events
from assay.run.events import Json

# What has to agree for results to speak of the same thing; processors and threads may differ between machines.
SAME: dict[str, Callable[[Report], Any]] = {
    "plan": lambda report: report.plan["whole"],
    "seed": lambda report: report.header["seed"],
    "profile": lambda report: report.header["profile"],
    "assay version": lambda report: report.header["assay"],
    "torch version": lambda report: report.header["environment"].get("torch"),
    "implementations": lambda report: sorted(map(events.dumps, report.header["implementations"])),
    "number of shards": lambda report: (report.header["shard"] or {}).get("count"),
}


def merge(reports: Sequence[Report]) -> Report:
    """One report out of all shards of a plan. UsageError for mixed plans, a shard given twice or a missing one."""
    if not reports:
        raise UsageError("reports= must name at least one report, got none")
    for what, value in SAME.items():
        for other in reports[1:]:
            if value(other) != value(reports[0]):
                raise UsageError(f"{_name(other)}: {what} differs from {_name(reports[0])}; give shards of one plan")
    _check_cases(reports)
    plan = _plan(reports)
    # What belongs to no planned case, such as a stale waiver, may be told by every shard.
    results = list({one["id"]: one for report in reports for one in report.results}.values())
    shards = [report.header["shard"] for report in reports]
    header = reports[0].header | {
        "shard": None, "merged": [shard for shard in shards if shard], "environment": _environment(reports),
        "started": min(report.header["started"] for report in reports),
    }
    cut = any(report.footer is None or report.footer["interrupted"] for report in reports)
    seconds = sum(report.footer["seconds"] for report in reports if report.footer)
    return Report(header, plan, results, dict(events.footer(results, plan, seconds=seconds, interrupted=cut)))


def _name(report: Report) -> str:
    return str(report.path or f"shard {report.header['shard']}")


def _check_cases(reports: Sequence[Report]) -> None:
    seen: dict[str, Report] = {}
    for report in reports:
        for case in report.plan["cases"]:
            if case in seen:
                raise UsageError(f"{_name(report)}: {case} is in {_name(seen[case])} too; give each shard once")
            seen[case] = report
    whole = reports[0].plan["whole"]
    planned = [case for report in reports for case in report.plan["cases"]]
    if events.fingerprint(planned) != whole:
        given = sorted(report.header["shard"]["index"] for report in reports if report.header["shard"])
        shards = f"shards {given}" if given else f"{len(reports)} reports"
        raise UsageError(f"{shards} hold {len(planned)} of {whole['count']} planned cases; give all shards of the plan")


def _plan(reports: Sequence[Report]) -> Json:
    """The whole plan again; what every shard left out is named once."""
    left = {events.dumps(entry): entry for report in reports for entry in report.plan["left_out"]}
    merged: Json = dict(reports[0].plan)
    for key in ("properties", "statements", "formulas", "kinds"):
        told = {name: value for report in reports for name, value in report.plan.get(key, {}).items()}
        merged |= {key: told} if told or key in merged else {}
    for key in ("cases", "rows"):
        merged[key] = [item for report in reports for item in report.plan[key]]
    return merged | {"left_out": list(left.values())}


def _environment(reports: Sequence[Report]) -> Json:
    """Values that all shards share, and each of those that differ."""
    found: Json = {}
    for key in dict.fromkeys(key for report in reports for key in report.header["environment"]):
        values = list({events.dumps({"": v}): v for v in (r.header["environment"].get(key) for r in reports)}.values())
        found[key] = values[0] if len(values) == 1 else values
    return found
