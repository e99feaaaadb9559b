"""Events: header, plan, result and footer of a run, as the plain dicts that `report.jsonl` holds one a line.

Everything that leaves this module is strict JSON: text that came from an implementation is cleaned and cut (lengths
below), and numbers that JSON has no word for are the strings "NaN", "Infinity" and "-Infinity".
"""
from __future__ import annotations

import datetime
import hashlib
import json
import math
import os
import platform
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from typing import Any, Literal, NotRequired, TypedDict

SCHEMA = 1  # raised when a reader of the old schema would misread the new one; additions do not raise it

STATUSES = (
    "fail", "crash", "timeout", "out-of-memory", "unexpected-pass", "harness-error", "blocked", "suspect",
    "inconclusive", "not-exercised", "not-supported", "not-claimed", "waived", "pass",
)  # worst first
RED = frozenset({"fail", "crash", "timeout", "out-of-memory", "unexpected-pass"})
DECIDED = RED | {"pass", "suspect", "waived", "blocked"}
# Nothing was asked of the implementation here, so nothing is missing either.
NEUTRAL = frozenset({"not-claimed", "not-exercised"})
# A stale waiver or a file that dies at its import belongs to no planned case, yet is told.
OUTSIDE_PLAN = RED | {"harness-error"}
EXAMPLES = ("right", "wrong", "undecided", "not_supported")
SPREAD = 10  # places in the distribution of a case's errors over their bounds: 0, below 1e-4, and half decades up to 1
DISTRIBUTIONS = ("families", "sizes")
VERDICTS = ("conformant", "non-conformant", "inconclusive")

NAME_LENGTH, MESSAGE_LENGTH, NOTE_LENGTH, TAIL_LENGTH, ARGUMENT_LENGTH = 100, 2_000, 500, 4_000, 4_000
FORMULA_LENGTH = 1_000
TIMES = frozenset({"started", "finished", "seconds"})

_ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[PX^_].*?(?:\x1b\\|$)|[@-Z\\-_])", re.DOTALL)
# C0 (but tab and newline) and C1 controls, direction overrides, line separators, surrogates, non-characters.
_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff\ufffe\uffff]")

Number = float | int | Literal["NaN", "Infinity", "-Infinity"]
Json = dict[str, Any]


class Examples(TypedDict):
    """How the examples of one case ended."""

    right: int
    wrong: int
    undecided: int
    not_supported: int


class Counterexample(TypedDict, total=False):
    """The smallest failing input that was found, and what it did."""

    dims: dict[str, int]
    flags: dict[str, Any]
    seed: int
    family: str
    layout: str
    arguments: dict[str, str]  # name -> short text of a tensor or option
    when: str  # which configurations fail
    where: str  # the place of the wrong elements in the example found first
    consistent_with: list[str]  # what else the implementation may have computed
    faults: list[str]  # ids of planted faults that give the same results
    check: str  # text of the comparison that failed
    got: Any
    expected: Any
    bound: Any
    index: list[int]
    worst: Number  # error over bound


class Values(TypedDict, total=False):
    """What was measured over all examples of a case."""

    error_over_bound: Number  # maximum
    error: Number  # maximum
    bound: Number  # maximum
    headroom: Number  # bound over error, where it was smallest
    forms: dict[str, int]  # form -> examples in which it set the bar
    spread: list[int]  # right examples by error over bound, at the places of `place_of`
    families: dict[str, list[Number]]  # value family -> right examples, median and worst error over bound
    sizes: dict[str, list[Number]]  # range of the largest dim -> the same


class LeftOut(TypedDict):
    """A property that was not planned for an implementation, and why."""

    property: str
    implementation: str
    reason: str
    status: NotRequired[str]  # not-claimed unless said otherwise
    device: NotRequired[str]
    dtype: NotRequired[str]


class PropertyInfo(TypedDict, total=False):
    """What is fixed about a property, told once in the plan instead of in every result."""

    sentence: str
    statements: list[str]
    kind: str
    rests_on: list[str]
    tolerance: str  # where the tolerance comes from
    source: str
    invariance: str  # the column of the grid of invariances that it fills


class KindInfo(TypedDict, total=False):
    """What is fixed about a kind, told once in the plan."""

    summary: str
    call: str
    source: str
    forms: list[str]  # the ways to evaluate the formula, over which the bound is the widest


class Shard(TypedDict):
    """Which part of the plan this run is: 1-based index, count."""

    index: int
    count: int


class Header(TypedDict):
    """First line: who ran what, where, with which seed."""

    type: Literal["header"]
    schema: int
    assay: str
    command: str
    seed: int
    profile: str
    environment: Json
    started: str
    implementations: list[Json]
    shard: Shard | None


class Plan(TypedDict):
    """Second line: the denominator."""

    type: Literal["plan"]
    cases: list[str]
    rows: list[list[str]]  # for each case: property, implementation, device, dtype
    left_out: list[LeftOut]
    properties: dict[str, PropertyInfo]
    statements: dict[str, str]  # id -> text
    formulas: NotRequired[dict[str, str]]  # id of a statement -> LaTeX
    kinds: NotRequired[dict[str, KindInfo]]
    whole: Json  # count and sha256 of the plan of which `cases` is a shard


class Result(TypedDict):
    """How one planned case ended."""

    type: Literal["result"]
    id: str
    property: str
    statements: list[str]
    kind: str
    implementation: str
    device: str
    dtype: str
    status: str
    examples: Examples
    message: str
    sentence: str
    seconds: float
    counterexample: Counterexample | None
    error_over_bound: Number | None
    reproduce: str
    values: Values
    suspect: Json | None
    notes: list[str]
    rests_on: list[str]
    blocked_by: list[str]
    stderr_tail: str


class Footer(TypedDict):
    """Last line: the verdict. A file without it is an interrupted run."""

    type: Literal["footer"]
    verdict: str
    exit_code: int
    counts: dict[str, int]  # results per status
    left_out: dict[str, int]  # left out of the plan, per status
    planned: int
    finished: int
    interrupted: bool
    reasons: list[str]
    seconds: float


Event = Header | Plan | Result | Footer


def clean(value: object, length: int = MESSAGE_LENGTH) -> str:
    """Text without escape sequences and control characters, cut at `length` with a note of how much is left."""
    text = value if isinstance(value, str) else str(value)
    text = _CONTROLS.sub("", _ESCAPES.sub("", text[: 20 * length + 1_000]))
    return text if len(text) <= length else f"{text[:length]}… ({len(text) - length:,} more characters)"


def strict(value: Any, length: int = MESSAGE_LENGTH) -> Any:
    """The value as strict JSON: sets sorted, ranges as text, non-finite numbers as strings, all text cleaned."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else _word(value)
    if isinstance(value, Mapping):
        return {clean(k, 2 * NAME_LENGTH): strict(v, length) for k, v in value.items()}
    if isinstance(value, set | frozenset):
        return sorted((strict(item, length) for item in value), key=lambda item: (str(type(item)), item))
    if isinstance(value, range):
        return f"{value.start} to {value.stop - 1}" + (f" in steps of {value.step}" if value.step != 1 else "")
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [strict(item, length) for item in value]
    return clean(value, length)


def _word(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def number(value: Any) -> float | None:
    """The float that a report's number or its word stands for; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, str) and value not in {"NaN", "Infinity", "-Infinity"}:
        return None
    return float(value)


def place_of(ratio: float) -> int:
    """Where an error over its bound, at most 1, stands in a distribution."""
    if not ratio > 0:
        return 0
    return 1 + min(max(0, 1 + math.floor(2 * (math.log10(ratio) + 4))), SPREAD - 2)


def dumps(event: Mapping[str, Any]) -> str:
    """One line of strict JSON with sorted keys."""
    return json.dumps(event, allow_nan=False, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def environment(**extra: Any) -> Json:
    """Python, torch, platform, processor and threads of this process; torch is named only if it is installed."""
    found = {
        "python": platform.python_version(), "platform": platform.platform(), "cpu": _processor(),
        "cpus": os.cpu_count() or 1, "torch": _installed("torch"), "numpy": _installed("numpy"),
        "hypothesis": _installed("hypothesis"),
    }
    if "torch" in sys.modules:
        found["threads"] = sys.modules["torch"].get_num_threads()
    return strict({**found, **extra})  # type: ignore[no-any-return]


def _installed(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
            return next(names, platform.machine())
    except OSError:
        return platform.processor() or platform.machine()


def header(
    *, command: str | Sequence[str], seed: int, profile: str, implementations: Iterable[Mapping[str, Any]],
    environment: Mapping[str, Any], shard: tuple[int, int] | None = None, started: str | None = None,
) -> Header:
    """The first event. `implementations`: declarations as JSON (claims, conventions, arithmetic, version, url)."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    words = command if isinstance(command, str) else " ".join(command)
    return {
        "type": "header", "schema": SCHEMA, "assay": _installed("assay"), "command": clean(words), "seed": seed,
        "profile": profile, "environment": strict(environment), "started": started or now,
        "implementations": [strict(one, NOTE_LENGTH) for one in implementations],
        "shard": None if shard is None else {"index": shard[0], "count": shard[1]},
    }


def fingerprint(cases: Iterable[str]) -> Json:
    """Count and hash of a plan's case ids, whatever their order."""
    ids = sorted(cases)
    return {"count": len(ids), "sha256": hashlib.sha256("\n".join(ids).encode("utf-8", "replace")).hexdigest()}


def plan(
    rows: Mapping[str, tuple[str, str, str, str]], left_out: Iterable[Mapping[str, str]] = (), *,
    properties: Mapping[str, Mapping[str, Any]] | None = None, statements: Mapping[str, str] | None = None,
    formulas: Mapping[str, str] | None = None, kinds: Mapping[str, Mapping[str, Any]] | None = None,
    whole: Iterable[str] | None = None,
) -> Plan:
    """The second event. `rows`: case id -> (property, implementation, device, dtype); `whole`: all ids, in a shard."""
    told: Plan = {
        "type": "plan", "cases": list(rows),
        "rows": [[clean(part, 2 * NAME_LENGTH) for part in row] for row in rows.values()],
        "left_out": [strict(entry, NOTE_LENGTH) for entry in left_out],
        "properties": strict(properties or {}), "statements": strict(statements or {}),
        "whole": fingerprint(rows if whole is None else whole),
    }
    if formulas:
        told["formulas"] = strict(formulas, FORMULA_LENGTH)
    if kinds:
        told["kinds"] = strict(kinds, NOTE_LENGTH)
    return told


def result(
    *, id: str, property: str, implementation: str, device: str, dtype: str, status: str, statements: Iterable[str],
    examples: Mapping[str, int] | None = None, message: str = "", sentence: str = "", seconds: float = 0.0,
    counterexample: Mapping[str, Any] | None = None, error_over_bound: float | None = None, reproduce: str = "",
    values: Mapping[str, Any] | None = None, suspect: Mapping[str, Any] | None = None, notes: Iterable[str] = (),
    rests_on: Iterable[str] = (), blocked_by: Iterable[str] = (), stderr_tail: str = "",
) -> Result:
    """How one case ended. `counterexample` keys as in `Counterexample`; `error_over_bound` defaults to its `worst`."""
    if status not in STATUSES:
        raise ValueError(f"status={status!r} must be one of {', '.join(STATUSES)}")
    given = dict(examples or {})
    found = None if counterexample is None else strict(counterexample, ARGUMENT_LENGTH)
    if error_over_bound is None and found is not None:
        error_over_bound = found.get("worst")
    return {
        "type": "result", "id": id, "property": clean(property, 2 * NAME_LENGTH), "statements": list(statements),
        "kind": property.partition("/")[0], "implementation": clean(implementation, NAME_LENGTH), "device": device,
        "dtype": dtype, "status": status, "examples": {key: given.get(key, 0) for key in EXAMPLES},  # type: ignore[typeddict-item]
        "message": clean(message), "sentence": clean(sentence, NOTE_LENGTH), "seconds": round(seconds, 3),
        "counterexample": found, "error_over_bound": strict(error_over_bound), "reproduce": clean(reproduce),
        "values": strict(values or {}), "suspect": None if suspect is None else strict(suspect, NOTE_LENGTH),
        "notes": [clean(note, NOTE_LENGTH) for note in notes],
        "rests_on": list(rests_on), "blocked_by": list(blocked_by),
        "stderr_tail": clean(stderr_tail[-TAIL_LENGTH:], TAIL_LENGTH),
    }


def footer(
    results: Sequence[Mapping[str, Any]], plan: Mapping[str, Any], *, seconds: float = 0.0, interrupted: bool = False,
) -> Footer:
    """The last event: verdict, exit code and counts, computed from results and plan."""
    verdict, code = verdict_of(results, plan)
    reasons = [] if code in (0, 1) else why_inconclusive(results, plan)
    left = Counter(entry.get("status", "not-claimed") for entry in plan["left_out"])
    finished = len({one["id"] for one in results} & set(plan["cases"]))
    return {
        "type": "footer", "verdict": verdict, "exit_code": code, "counts": counts_of(results),
        "left_out": dict(sorted(left.items())), "planned": len(plan["cases"]), "finished": finished,
        "interrupted": interrupted or finished < len(plan["cases"]),
        "reasons": reasons, "seconds": round(seconds, 3),
    }


def counts_of(results: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Results per status, every status named."""
    found = Counter(one["status"] for one in results)
    return {status: found[status] for status in sorted(STATUSES)}


def verdict_of(results: Sequence[Mapping[str, Any]], plan: Mapping[str, Any]) -> tuple[str, int]:
    """Verdict and exit code: a fault of the harness 4, else anything red 1, else anything in doubt 3, else 0."""
    statuses = {one["status"] for one in results}
    if "harness-error" in statuses:
        return "inconclusive", 4
    if statuses & RED:
        return "non-conformant", 1
    return ("inconclusive", 3) if why_inconclusive(results, plan) else ("conformant", 0)


def why_inconclusive(results: Sequence[Mapping[str, Any]], plan: Mapping[str, Any]) -> list[str]:
    """What keeps a run without anything red from being conformant, a sentence each; empty when nothing does.

    `not-exercised` and `not-claimed` results take their case out of the count: they change nothing. So does a property that
    was answered "not implemented" in every type (a layer that wires two of four placements), but for the half of its
    cases that an implementation must have decided: one that implements nothing has shown nothing.
    """
    status = {one["id"]: one["status"] for one in results}
    reasons = _faults(status)
    pairs = zip(plan["cases"], plan["rows"], strict=True)
    held = [(case, row) for case, row in pairs if status.get(case) not in NEUTRAL]
    if not held:
        return [*reasons, "nothing was applicable"]
    missing = [case for case, _ in held if case not in status]
    if missing:
        reasons.append(f"{len(missing)} of {len(plan['cases'])} planned cases did not run")
    by_property: dict[tuple[str, str, str], set[str]] = {}
    by_implementation: dict[tuple[str, str], list[bool]] = {}
    for case, (name, implementation, device, _) in held:
        found = status.get(case, "")
        by_property.setdefault((implementation, name, device), set()).add(found)
        by_implementation.setdefault((name.partition("/")[0], implementation), []).append(found in DECIDED)
    reasons += [
        f"{who}: {name} was decided in none of its dtypes on {device}"
        for (who, name, device), all_ in by_property.items() if not all_ & DECIDED and all_ != {"not-supported"}
    ]
    reasons += [
        f"{who} ({kind}): {sum(all_)} of {len(all_)} planned cases were decided, fewer than half"
        for (kind, who), all_ in by_implementation.items() if 2 * sum(all_) < len(all_)
    ]
    return reasons


def _faults(status: Mapping[str, str]) -> list[str]:
    faults = [case for case, found in status.items() if found == "harness-error"]
    more = f" and {len(faults) - 1} more" if len(faults) > 1 else ""
    return [f"assay itself failed in {faults[0]}{more}"] if faults else []


def canonical(events: Iterable[Mapping[str, Any]]) -> list[Json]:
    """The events without times, results in the order of their ids: equal for two runs of one plan and seed."""
    stripped = [_without_times(event) for event in events]
    order = ("header", "plan", "result", "footer")
    return sorted(stripped, key=lambda event: (order.index(event["type"]), event.get("id", "")))


def _without_times(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_times(item) for key, item in value.items() if key not in TIMES}
    return [_without_times(item) for item in value] if isinstance(value, list) else value
