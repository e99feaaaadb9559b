"""Some cases of a report run again, as `assay verify` does: does the same come out?"""
from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from assay.report.jsonl import Report
from assay.run import events
from assay.run.plan import Selection
from assay.run.replay import target_of
from assay.run.session import Request, Session

ALIKE = {"blocked": "fail", "waived": "fail", "unexpected-pass": "pass"}  # what a status is without its neighbours and waivers


@dataclass(frozen=True)
class Compared:
    """One case as it was reported and as it is now."""

    id: str
    then: str
    now: str

    @property
    def same(self) -> bool:
        return ALIKE.get(self.then, self.then) == ALIKE.get(self.now, self.now)


def sample(report: Report, count: int) -> list[dict[str, Any]]:
    """Planned results in an order by hash of their ids, those that went wrong and those that did not in turns."""
    planned = set(report.plan["cases"])
    able = sorted((one for one in report.results if one["id"] in planned and one["status"] not in ("harness-error", "timeout")),
                  key=lambda one: hashlib.sha256(one["id"].encode()).digest())
    red = [one for one in able if one["status"] in events.RED]
    rest = [one for one in able if one["status"] not in events.RED]
    turns = [one for pair in zip(red, rest, strict=False) for one in pair]
    shorter = min(len(red), len(rest))
    return [*turns, *red[shorter:], *rest[shorter:]][:count]


def again(report: Report, chosen: Sequence[Mapping[str, Any]], request: Request) -> Iterator[Compared]:
    """Run the cases again with the seed and profile of the report. UsageError where an implementation is not to be had."""
    settings = replace(request.settings, seed=report.header["seed"], profile=report.header["profile"])
    for (target, kind), wanted in _targets(report, chosen).items():
        selection = Selection(tuple(one["id"] for one in wanted), tuple(dict.fromkeys(one["device"] for one in wanted)))
        asked = replace(request, targets=(target,), kind=kind, settings=settings, selection=selection)
        with Session(asked) as session:
            now = {event["id"]: event["status"] for event in session.events() if event["type"] == "result"}
        yield from (Compared(one["id"], one["status"], now.get(one["id"], "not planned")) for one in wanted)


def _targets(report: Report, chosen: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], list[Mapping[str, Any]]]:
    """The cases by what to load for them."""
    found: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for one in chosen:
        found.setdefault((target_of(report, one), one["kind"]), []).append(one)
    return found


def changed_sources(report: Report) -> list[str]:
    """Files of implementations that are no longer what they were, or are not there."""
    then = report.header["environment"].get("sources") or {}
    origins = [str(made.get("origin", "")) for made in report.header["implementations"]]
    places = {origin.partition(".py:")[0].removesuffix(".py") + ".py" for origin in origins if ".py" in origin}
    changed = []
    for place in sorted(places):
        digest = then.get(Path(place).name) if isinstance(then, Mapping) else None
        if digest and (not Path(place).is_file() or hashlib.sha256(Path(place).read_bytes()).hexdigest()[:16] != digest):
            changed.append(place)
    return changed
