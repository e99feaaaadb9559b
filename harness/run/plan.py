"""The plan: which cases there are, made once before anything runs; it is the denominator of every verdict."""
from __future__ import annotations

import builtins
import difflib
import heapq
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

from assay.cases import Cases
from assay.contract import limits
from assay.contract.declaration import Declaration
from assay.contract.kinds import KINDS
from assay.errors import UsageError
from assay.properties import Property


@dataclass(frozen=True)
class CaseSpec:
    """One case: property × implementation × device × dtype."""

    property: str
    kind: str
    implementation: str
    device: str
    dtype: str

    @builtins.property  # the field of that name hides it here
    def id(self) -> str:
        return f"{self.property}[{self.implementation}-{self.device}-{self.dtype}]"

    @builtins.property  # the field of that name hides it here
    def row(self) -> tuple[str, str, str, str]:
        return (self.property, self.implementation, self.device, self.dtype)


@dataclass(frozen=True)
class Selection:
    """What the command line narrows a plan to."""

    only: tuple[str, ...] = ()  # statement, property, property name or case ids
    devices: tuple[str, ...] = ("cpu",)
    dtypes: tuple[str, ...] = ()  # empty: those declared
    held: frozenset[tuple[str, str]] = frozenset()  # kind and name of implementations for the profile deep, or when named
    deep: bool = True  # whether properties for the profile deep are planned; those that `only` names always are


@dataclass(frozen=True)
class CasePlan:
    """Planned cases in the order they run (foundations first), and what was left out, each with its reason."""

    cases: tuple[CaseSpec, ...]
    left_out: tuple[Mapping[str, str], ...]
    properties: Mapping[str, Property] = field(default_factory=dict)


def make_plan(declarations: Sequence[Declaration], properties: Sequence[Property], selection: Selection,
              absent: Sequence[tuple[str, str, str]] = ()) -> CasePlan:
    """All applicable cases of these implementations. absent: kind, name and reason of those that should be here and are not."""
    chosen = _only(properties, selection.only)
    depth = _depths(properties)
    ordered = sorted(chosen, key=lambda prop: depth[prop.id])  # stable: order of registration within one depth
    cases: list[CaseSpec] = []
    left_out: list[Mapping[str, str]] = []
    for prop in ordered:
        found: list[CaseSpec] = []
        for declaration in declarations:
            if declaration.kind != prop.kind:
                continue
            reason = why_not(prop, declaration)
            if reason:
                left_out.append({"property": prop.id, "implementation": declaration.name, "reason": reason})
                continue
            if (declaration.kind, declaration.name) in selection.held or (prop.deep and not selection.deep and not selection.only):
                left_out.append({"property": prop.id, "implementation": declaration.name, "status": "not-exercised",
                                 "reason": "takes long: planned by the profile deep, or where it is named"})
                continue
            found += _cases(prop, declaration, selection, left_out)
        cases += _alike(found)
        left_out += ({"property": prop.id, "implementation": name, "status": "not-supported", "reason": reason}
                     for kind, name, reason in absent if kind == prop.kind)
    wanted = [case for case in cases if _case_chosen(case, selection.only)]
    return CasePlan(tuple(wanted), tuple(left_out), {prop.id: prop for prop in properties})


def _alike(cases: Sequence[CaseSpec]) -> list[CaseSpec]:
    """Implementations next to each other that are given the same examples: a judge evaluates the formula on these once."""
    turns = {key: turn for turn, key in enumerate(dict.fromkeys((case.device, case.dtype) for case in cases))}
    return sorted(cases, key=lambda case: turns[case.device, case.dtype])


def why_not(prop: Property, declaration: Declaration) -> str:
    """Why a property is not held against an implementation; empty when it is."""
    for need in prop.needs:
        needed, _, value = need.partition("=")
        if not declaration.claims(needed):
            return f"does not claim {needed}"
        if value and not declaration.allows(needed, value):
            return f"declares limits that exclude {need}"
    if prop.gradient and not declaration.claims("gradients"):
        return "does not claim gradients"
    if not prop.holds_for(declaration.conventions):
        named = ", ".join(f"{name}={declaration.conventions.get(name)}" for name in prop.conventions)
        return f"declares another convention: {named}"
    for name, rule in prop.given.items():
        values = rule if isinstance(rule, tuple) else (rule,)
        if name in declaration.fixed and not callable(rule) and declaration.fixed[name] not in values:
            return f"has {name}={declaration.fixed[name]} alone"
        own = not limits.lists_words(declaration.limits.get(name))  # then a word is no value of the argument, nothing to limit
        outside = not any((own and isinstance(value, str)) or declaration.allows(name, value) for value in values)
        if name in declaration.limits and not callable(rule) and outside:
            return f"declares limits that exclude {name}={'/'.join(str(value) for value in values)}"
        if isinstance(prop.cases, Cases) and not callable(rule) and not prop.cases.reaches(name, values, declaration):
            return f"its signature lacks {name}, which would be {'/'.join(str(value) for value in values)}"
    if isinstance(prop.cases, Cases) and not prop.cases.possible(declaration, prop.given):
        return "no example of it was found within the claims and limits"
    return ""


def _cases(prop: Property, declaration: Declaration, selection: Selection,
           left_out: list[Mapping[str, str]]) -> Iterable[CaseSpec]:
    devices = declaration.devices if declaration.devices is not None else selection.devices
    if not set(devices).intersection(selection.devices):
        left_out.append({"property": prop.id, "implementation": declaration.name, "status": "not-supported",
                         "reason": f"runs on {', '.join(devices)}, not on {', '.join(selection.devices)}"})
    for device in (d for d in selection.devices if d in devices):
        dtypes = [dtype for dtype in declaration.dtypes if not selection.dtypes or dtype in selection.dtypes]
        for dtype in dtypes[:1] if KINDS[prop.kind].factory else dtypes:  # an object has types of its own
            if prop.dtypes is not None and dtype not in prop.dtypes:
                left_out.append({"property": prop.id, "implementation": declaration.name, "device": device, "dtype": dtype,
                                 "reason": f"speaks of {', '.join(prop.dtypes)} only"})
                continue
            yield CaseSpec(prop.id, prop.kind, declaration.name, device, dtype)


def _only(properties: Sequence[Property], only: Sequence[str]) -> list[Property]:
    """The properties that `--only` names by statement, property or case; all when it names none."""
    if not only:
        return list(properties)
    known = {prop.id: {prop.id, prop.id.partition("/")[2], *prop.statements} for prop in properties}
    found = []
    for wanted in only:
        name = wanted.partition("[")[0]
        hits = [prop for prop in properties if name in known[prop.id]]
        if not hits:
            names = sorted({name for names in known.values() for name in names})
            near = difflib.get_close_matches(name, names, n=3)
            hint = f"did you mean {', '.join(near)}? " if near else ""
            raise UsageError(f"only={wanted!r} must name a statement, property or case; {hint}`assay list properties` lists them")
        found += [prop for prop in hits if prop not in found]
    return found


def _case_chosen(case: CaseSpec, only: Sequence[str]) -> bool:
    """Whether `--only` leaves this case in, where it names single cases."""
    named = [wanted for wanted in only if "[" in wanted and wanted.startswith(case.property)]
    return not named or case.id in named


def _depths(properties: Sequence[Property]) -> dict[str, int]:
    """How many foundations lie below each property."""
    below: dict[str, tuple[str, ...]] = {prop.id: prop.rests_on for prop in properties}
    depth: dict[str, int] = {}

    def measure(id: str, seen: frozenset[str]) -> int:
        if id in seen:
            raise UsageError(f"property={id} rests on itself; take one of rests_on={sorted(seen)} out")
        if id not in depth:
            depth[id] = 1 + max((measure(other, seen | {id}) for other in below.get(id, ())), default=-1)
        return depth[id]

    for prop in properties:
        measure(prop.id, frozenset())
    return depth


@cache
def recorded_costs() -> Mapping[str, float]:
    """Seconds of one case of each property on the references, as `bench/costs.py` wrote them down: only their ratios matter."""
    found: dict[str, float] = json.loads(resources.files("assay.run").joinpath("costs.json").read_text("utf-8"))
    return found


def cost_of(case: CaseSpec, costs: Mapping[str, float]) -> float:
    """What a case costs; one of an unknown property as much as the mean of those known."""
    return costs.get(case.property) or sum(costs.values()) / len(costs)


def shard_of(cases: Sequence[CaseSpec], index: int, count: int, costs: Mapping[str, float]) -> list[CaseSpec]:
    """The cases of one shard (1-based): dealt out by falling cost, each to the shard that has least to do."""
    loads = [(0.0, place) for place in range(1, count + 1)]
    known = {case: cost_of(case, costs) for case in cases}
    mine = set()
    for case in sorted(cases, key=lambda case: (-known[case], case.id)):
        load, lightest = loads[0]
        heapq.heapreplace(loads, (load + known[case], lightest))
        if lightest == index:
            mine.add(case)
    return [case for case in cases if case in mine]


def details(properties: Iterable[Property]) -> dict[str, dict[str, Any]]:
    """What the report's plan tells once about each property."""
    return {prop.id: {"sentence": prop.sentence, "statements": list(prop.statements), "kind": prop.kind,
                      "rests_on": list(prop.rests_on), "tolerance": _tolerance(prop),
                      **({"invariance": prop.invariance} if prop.invariance else {})} for prop in properties}


def _tolerance(prop: Property) -> str:
    if prop.statistical is not None:
        return f"a statistical test; share of false alarms {prop.statistical:g}"
    return "derived: rounding of every operation of the formula in the declared arithmetic, the widest of its forms"
