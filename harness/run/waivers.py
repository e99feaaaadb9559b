"""Waivers: known failures, each pinned to a stored counterexample, with a reason and an end.

A waiver's counterexample is run before anything else. Where it still fails in the way that was waived, the case counts as
`waived`; a waiver that is stale in any way is an `unexpected-pass` of its own, which makes the run red.
"""
from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from assay.contract.declaration import Declaration
from assay.errors import UsageError
from assay.report import shape
from assay.run import events
from assay.run.plan import CasePlan, CaseSpec
from assay.run.pool import Job

FILE_NAME = "waivers.json"
MAX_BYTES = 16 * 2**20
DAYS = 90  # what a proposed waiver is given
PINNED = ("kind", "dims", "flags", "family", "layout", "seed", "values")  # what rebuilds an example


@dataclass(frozen=True)
class Waiver:
    """One entry of the file. Scope: a case id, or property and implementation with devices and dtypes (none: all)."""

    counterexample: Mapping[str, Any]
    status: str
    reason: str
    expires: datetime.date
    id: str = ""
    property: str = ""
    implementation: str = ""
    devices: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    check: str = ""
    link: str = ""
    note: str = ""

    def scope(self) -> str:
        """What it covers, in words; its name in the report."""
        narrower = "-".join(",".join(part) for part in (self.devices, self.dtypes) if part)
        return self.id or f"{self.property}[{self.implementation}{'-' if narrower else ''}{narrower}]"

    def covers(self, case: CaseSpec) -> bool:
        """Whether the case is in its scope."""
        if self.id:
            return case.id == self.id
        return (case.property == self.property and case.implementation == self.implementation
                and (not self.devices or case.device in self.devices) and (not self.dtypes or case.dtype in self.dtypes))

    def matches(self, result: Mapping[str, Any]) -> bool:
        """Whether a result fails in the way that was waived."""
        return result["status"] == self.status and check_of(result) == self.check


def check_of(result: Mapping[str, Any]) -> str:
    """The comparison that failed; empty for a crash and its like."""
    return str((result["counterexample"] or {}).get("check", ""))


def read(path: Path) -> tuple[Waiver, ...]:
    """The waivers in a file. UsageError, one line, for whatever is not a valid one."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise UsageError(f"waivers={path} must be a file of waivers, got more than {MAX_BYTES // 2**20} MiB")
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise UsageError(f"waivers={path} cannot be read: {error.strerror}; `--write-waivers` proposes one") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"waivers={path} must be JSON, got {events.clean(str(error), 100)}") from None
    broken = shape.departure("waivers", data)
    if broken is not None:
        place, what = broken
        raise UsageError(f"waivers={path}: {place}: {_rule(what)}")
    return tuple(_waiver(one, f"waivers={path}: waivers/{number}") for number, one in enumerate(data["waivers"]))


def _rule(error: Any) -> str:
    """What is wrong, in one line."""
    words = {"oneOf": "must have either id, or property and implementation", "anyOf": "must have a link or a note",
             "pattern": "must be filled in" if error.instance == "" else f"must match {error.validator_value}"}
    return words.get(error.validator) or events.clean(error.message, 200).replace("\n", " ")


def _waiver(one: Mapping[str, Any], where: str) -> Waiver:
    try:
        expires = datetime.date.fromisoformat(one["expires"])
    except ValueError:
        raise UsageError(f"{where}: expires={one['expires']} must be a date such as 2030-01-31") from None
    lists = {name: tuple(one.get(name, ())) for name in ("devices", "dtypes")}
    return Waiver(**{**one, **lists, "expires": expires})


@dataclass
class Register:
    """The waivers of one run: which cases they cover here, what their counterexamples did, what is to be told."""

    waivers: Sequence[Waiver]
    declarations: Sequence[Declaration]
    mine: Sequence[CaseSpec]
    planned: CasePlan
    today: datetime.date = field(default_factory=lambda: datetime.datetime.now(datetime.UTC).date())
    _waived: dict[str, tuple[Waiver, dict[str, Any]]] = field(default_factory=dict)  # case -> waiver that stands, its failure
    _told: list[dict[str, Any]] = field(default_factory=list)
    _asked: dict[str, Waiver] = field(default_factory=dict)

    def jobs(self) -> list[Job]:
        """The stored counterexamples to run; what needs no run to be known as stale is noted at once."""
        jobs = []
        for waiver in self.waivers:
            covered = [case for case in self.mine if waiver.covers(case)]
            if waiver.expires < self.today:
                self._note(waiver, f"expired on {waiver.expires}")
            elif not covered and not self._elsewhere(waiver):
                self._note(waiver, "matches no planned case")
            else:
                jobs += [Job(case, waiver.counterexample) for case in covered if case.id not in self._asked]
                self._asked |= {case.id: waiver for case in covered}
        return jobs

    def take(self, replayed: Iterable[dict[str, Any]]) -> None:
        """What the counterexamples came to."""
        for result in replayed:
            waiver = self._asked[result["id"]]
            if waiver.matches(result):
                self._waived[result["id"]] = (waiver, result)
            elif result["status"] in events.RED:
                self._note(waiver, f"{result['id']} fails differently now: {result['status']} {check_of(result)}".rstrip())
            else:
                self._note(waiver, f"{result['id']} no longer fails on the stored counterexample: {result['message']}")

    def apply(self, result: dict[str, Any]) -> dict[str, Any]:
        """The result, waived where a waiver stands for it. Another failure of the same case is none that was waived."""
        waiver, failure = self._waived.get(result["id"], (None, None))
        if waiver is None or failure is None:
            return result
        if waiver.matches(result):
            failure = result
        elif result["status"] in events.RED or result["status"] == "harness-error":
            return result
        why = " ".join(part for part in (waiver.reason, waiver.link or waiver.note) if part)
        note = events.clean(f"waived until {waiver.expires}: {why}", events.NOTE_LENGTH)
        return {**failure, "examples": result["examples"], "seconds": result["seconds"], "status": "waived",
                "notes": [*failure["notes"], note]}

    def findings(self) -> Iterator[dict[str, Any]]:
        """One `unexpected-pass` for each waiver that is stale."""
        seen: dict[str, int] = {}
        for one in self._told:
            seen[one["id"]] = number = seen.get(one["id"], 0) + 1
            yield one if number == 1 else {**one, "id": f"{one['id']}#{number}"}

    def _elsewhere(self, waiver: Waiver) -> bool:
        """Whether it covers a case that this run leaves to another shard, or that was narrowed away by an option."""
        if any(waiver.covers(case) for case in self.planned.cases):
            return True
        kind, _, tail = (waiver.property or waiver.id).partition("/")
        prop = self.planned.properties.get(f"{kind}/{tail.partition('[')[0]}")
        if prop is None:
            return False
        left_out = {(one["property"], one["implementation"]) for one in self.planned.left_out if "dtype" not in one}
        return any(
            waiver.covers(CaseSpec(prop.id, kind, made.name, device, dtype))
            for made in self.declarations if made.kind == kind and (prop.id, made.name) not in left_out
            for device in (made.devices or waiver.devices or ("cpu", "cuda"))
            for dtype in made.dtypes if prop.dtypes is None or dtype in prop.dtypes)

    def _note(self, waiver: Waiver, what: str) -> None:
        whole = waiver.scope().partition("[")
        parts = whole[2].rstrip("]").rsplit("-", 2) if waiver.id else []
        name = waiver.implementation or (parts[0] if parts else "unknown")
        self._told.append(dict(events.result(
            id=f"waiver[{waiver.scope()}]", property="waiver/still_needed", implementation=name, statements=["WAIVER"],
            device=parts[1] if len(parts) == 3 else "cpu", dtype=parts[2] if len(parts) == 3 else "none",
            status="unexpected-pass", message=f"{waiver.scope()}: {what}; take the waiver out or renew it",
            sentence="Every waiver still stands for the failure that it was written for.")))


def example_of(result: Mapping[str, Any]) -> dict[str, Any]:
    """What rebuilds the failing example of a result."""
    found = result["counterexample"] or {}
    return {"kind": result["kind"], **{name: found[name] for name in PINNED[1:] if name in found}}


def propose(results: Iterable[Mapping[str, Any]], old: Sequence[Waiver] = (), today: datetime.date | None = None) -> str:
    """A file of waivers for the failures of a run, to be completed by hand: reason and link are left empty."""
    until = (today or datetime.datetime.now(datetime.UTC).date()) + datetime.timedelta(days=DAYS)
    made: list[dict[str, Any]] = [_kept(one) for one in old]
    for one in results:
        if one["status"] in events.RED and one["counterexample"] and one["property"] != "waiver/still_needed":
            made.append({"id": one["id"], "counterexample": example_of(one), "status": one["status"], "check": check_of(one),
                         "reason": "", "link": "", "expires": until.isoformat()})
    return json.dumps({"schema": 1, "waivers": made}, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _kept(waiver: Waiver) -> dict[str, Any]:
    """An entry as it stood in the file."""
    shown = {name: value for name, value in vars(waiver).items() if value not in ("", ())}
    return {**shown, "expires": waiver.expires.isoformat()} | {
        name: list(value) for name, value in (("devices", waiver.devices), ("dtypes", waiver.dtypes)) if value}
