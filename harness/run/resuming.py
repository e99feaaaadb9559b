"""Taking up an interrupted run: which of its results stand."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from assay.errors import UsageError
from assay.properties import Property
from assay.report.jsonl import Report
from assay.run import events
from assay.run.verdicts import foundations

# What has to agree for the old results to speak of the run that is asked for.
SAME: dict[str, Callable[[Mapping[str, Any], Mapping[str, Any]], Any]] = {
    "seed": lambda header, plan: header["seed"],
    "profile": lambda header, plan: header["profile"],
    "assay version": lambda header, plan: header["assay"],
    "plan": lambda header, plan: plan["whole"],
    "shard": lambda header, plan: (header["shard"], sorted(plan["cases"])),
    "declaration": lambda header, plan: sorted(map(events.dumps, header["implementations"])),
    "source file": lambda header, plan: header["environment"].get("sources"),
}


def keep(report: Report, header: Mapping[str, Any], plan: Mapping[str, Any],
         properties: Mapping[str, Property]) -> list[dict[str, Any]]:
    """Results of the interrupted run that stand. UsageError where it was another run.

    Run again: faults of the harness, and failures whose foundations were not known yet (they may be blocked).
    """
    for what, value in SAME.items():
        if value(report.header, report.plan) != value(header, plan):
            raise UsageError(f"resume: {what} differs from the run in {report.path}; leave --resume out to start anew")
    planned = set(plan["cases"])
    done = {one["id"] for one in report.results if one["status"] != "harness-error"}

    def stands(one: Mapping[str, Any]) -> bool:
        open_below = one["status"] == "fail" and any(
            id in planned and id not in done for id in foundations(one, properties))
        return one["id"] in planned and one["id"] in done and one["status"] != "waived" and not open_below

    return [dict(one) for one in report.results if stands(one)]
