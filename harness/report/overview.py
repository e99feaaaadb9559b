"""What a report says, summed up once for every writer: verdict, denominators, matrix, and what was not shown."""
from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from assay.report.jsonl import Report
from assay.report.status import ORDER, plural, worst
from assay.run import events
from assay.run.events import DECIDED, RED, Json

BROKEN = RED | {"harness-error"}
# Statuses of planned cases that say nothing for or against the implementation.
OPEN = ("inconclusive", "not-exercised", "not-supported", "not-claimed", "not-run")


@dataclass(frozen=True)
class Totals:
    """The denominators of a run."""

    planned: int
    finished: int
    decided: int
    red: int
    left_out: int
    examples: Json
    implementations: int
    properties: int


@dataclass(frozen=True)
class Cell:
    """One implementation under one statement: the worst status, and how many of its cases were decided."""

    status: str
    decided: int
    planned: int
    first: str = ""  # id of the case that gave the status


@dataclass(frozen=True)
class NotShown:
    """Cases or properties of one implementation that prove nothing, for one reason."""

    status: str
    implementation: str
    reason: str
    properties: tuple[str, ...]
    cases: int


def totals(report: Report) -> Totals:
    """Planned, finished, decided and red cases, and examples by outcome."""
    planned, rows = set(report.plan["cases"]), report.plan["rows"]
    examples = {key: sum(one["examples"][key] for one in report.results) for key in events.EXAMPLES}
    return Totals(
        planned=len(planned), finished=sum(one["id"] in planned for one in report.results),
        decided=sum(one["status"] in DECIDED and one["id"] in planned for one in report.results),
        red=sum(one["status"] in RED for one in report.results), left_out=len(report.plan["left_out"]),
        examples=examples,
        implementations=len({(row[0].partition("/")[0], row[1]) for row in rows}),
        properties=len({row[0] for row in rows}),
    )


def implementations(report: Report) -> list[str]:
    """Names in the order of the header, then whatever else appears."""
    named = [one["name"] for one in report.header["implementations"]]
    rows = [row[1] for row in report.plan["rows"]]
    left = [entry["implementation"] for entry in report.plan["left_out"]]
    return list(dict.fromkeys([*named, *rows, *left]))


def verdict_sentence(report: Report) -> str:
    """The verdict with its denominators, one sentence."""
    found, end = totals(report), report.summary
    begin = "" if report.footer and not end["interrupted"] else "Interrupted. So far: "
    verdict = end["verdict"][0].upper() + end["verdict"][1:]
    if end["verdict"] == "non-conformant":
        who = {(one["kind"], one["implementation"]) for one in report.results if one["status"] in RED}
        what = f"{found.red:,} of {plural(found.planned, 'planned case')} went wrong"
        where = f", in {len(who):,} of {plural(found.implementations, 'implementation')}"
        return f"{begin}{verdict}: {what}{where if found.implementations > 1 else ''}."
    if end["verdict"] == "inconclusive":
        more = f" (and {plural(len(end['reasons']) - 1, 'more reason')})" if len(end["reasons"]) > 1 else ""
        return f"{begin}{verdict}: {(end['reasons'] or ['the run did not end'])[0]}{more}."
    right = plural(found.examples["right"], "example")
    cases = f"{found.decided:,} of {plural(found.planned, 'planned case')} decided"
    return f"{begin}{verdict}: {cases}, {right} right, no counterexample found."


def failures(report: Report) -> list[Json]:
    """Results that went wrong, causes before what they block, worst first, else as planned."""
    wrong = [one for one in report.results if one["status"] in BROKEN or one["status"] == "blocked"]
    return sorted(wrong, key=lambda one: ORDER.index(one["status"]))


def results_of(report: Report) -> list[Json]:
    """All results, and for each planned case without one a stand-in of status `not-run`."""
    missing, info = set(report.missing), report.plan["properties"]
    stand_ins = []
    for case, (name, implementation, device, dtype) in zip(report.plan["cases"], report.plan["rows"], strict=True):
        if case in missing:
            one: Json = dict(events.result(
                id=case, property=name, implementation=implementation, device=device, dtype=dtype,
                status="inconclusive",
                statements=info.get(name, {}).get("statements", []), sentence=info.get(name, {}).get("sentence", ""),
            ))
            stand_ins.append(one | {"status": "not-run"})
    return [*report.results, *stand_ins]


def matrix(report: Report, results: Sequence[Json]) -> dict[str, tuple[list[str], dict[str, dict[str, Cell]]]]:
    """kind -> (statement ids, implementation -> statement -> cell)."""
    gathered: dict[str, dict[str, dict[str, list[tuple[str, str]]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(list)))
    for one in results:
        for statement in one["statements"] or ["–"]:
            gathered[one["kind"]][one["implementation"]][statement].append((one["status"], one["id"]))
    # Left out in one dtype or device alone is told under "not shown"; the cell speaks of what was planned.
    for entry in report.plan["left_out"]:
        info = report.plan["properties"].get(entry["property"], {})
        kind = entry["property"].partition("/")[0]
        for statement in info.get("statements", []):
            gathered[kind][entry["implementation"]][statement].append((entry.get("status", "not-claimed"), ""))
    return {
        kind: (sorted({s for row in rows.values() for s in row}, key=statement_order),
               {name: {s: cell(found) for s, found in row.items()} for name, row in rows.items()})
        for kind, rows in sorted(gathered.items())
    }


def cell(found: Iterable[tuple[str, str]]) -> Cell:
    """The cell of these statuses, each with its case; what was left out has no case, and counts where nothing was planned."""
    pairs = list(found)
    planned = [status for status, case in pairs if case]
    status = worst(planned) if planned else worst(status for status, _ in pairs)
    first = next((case for one, case in pairs if one == status), "")
    return Cell(status, sum(one in DECIDED for one in planned), len(planned), first)


def statement_order(statement: str) -> tuple[str, int, str]:
    """ATT-2 before ATT-10."""
    prefix, _, tail = statement.partition("-")
    digits = "".join(character for character in tail if character.isdigit())
    return prefix, int(digits[:9] or 0), tail


def not_shown(report: Report, results: Sequence[Json]) -> list[NotShown]:
    """What proves nothing: open results and what the plan left out, one entry per status, implementation and reason."""
    groups: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for one in results:
        if one["status"] in OPEN:
            groups[one["status"], one["implementation"], one["message"] or _why_open(one)].append(one["property"])
    for entry in report.plan["left_out"]:
        key = entry.get("status", "not-claimed"), entry["implementation"], _scoped(entry)
        groups[key].append(entry["property"])
    found = [
        NotShown(status, implementation, reason, tuple(dict.fromkeys(names)), len(names))
        for (status, implementation, reason), names in groups.items()
    ]
    return sorted(found, key=lambda one: (ORDER.index(one.status), one.implementation))


def _why_open(one: Json) -> str:
    counts = one["examples"]
    if one["status"] == "inconclusive":
        return f"{counts['undecided']} of {sum(counts.values())} examples undecided in {one['dtype']}"
    if one["status"] == "not-supported":
        return f"{counts['not_supported']} of {sum(counts.values())} examples not implemented in {one['dtype']}"
    return "planned, not run" if one["status"] == "not-run" else "did not run"


def _scoped(entry: Json) -> str:
    where = " ".join(entry[key] for key in ("device", "dtype") if entry.get(key))
    return f"{entry['reason']} ({where})" if where else str(entry["reason"])
