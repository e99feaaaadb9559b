"""`assay list`, `assay plan`, `assay explain`: what there is, what would run, and why."""
from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from assay import registry, statements
from assay.contract.kinds import KINDS, kind, kinds, unknown
from assay.errors import UsageError
from assay.properties import Property
from assay.report.status import plural
from assay.run import events
from assay.run.session import Request, Session, plan_event

WIDTH = 110
Row = dict[str, Any]


# ------------------------------------------------------------------------------------------------ list
def listed(what: str, only: str | None) -> list[Row]:
    """Everything of one sort, for one kind or all."""
    if only is not None:
        kind(only)
    return LISTS[what](only)


def _statements(only: str | None) -> list[Row]:
    held: dict[str, list[str]] = {}
    for prop in registry.properties(only):
        for id in prop.statements:
            held.setdefault(id, []).append(prop.id)
    known = {one.id: one.text for one in statements.all()}
    return [{"id": id, "text": known.get(id, ""), "properties": held.get(id, [])}
            for id in dict.fromkeys([*known, *held]) if id in held or only is None]


def _properties(only: str | None) -> list[Row]:
    return [{"id": prop.id, "text": prop.sentence, "statements": list(prop.statements)} for prop in registry.properties(only)]


def _kinds(only: str | None) -> list[Row]:
    counts = Counter(prop.kind for prop in registry.properties())
    return [{"id": name, "text": f"{KINDS[name].call()}  {KINDS[name].summary}", "properties": counts[name]}
            for name in kinds() if only in (None, name)]


def _implementations(only: str | None) -> list[Row]:
    found: list[Row] = [{"id": made.name, "kind": made.kind, "text": f"{made.kind}  {', '.join(made.dtypes)}",
                         "origin": made.origin} for made in registry.declarations(only)]
    missing = [{"id": name.rpartition(".")[2], "kind": "", "text": f"not available here: {reason}", "origin": name}
               for name, reason in registry.unavailable()] if only is None else []
    return found + missing


LISTS: Mapping[str, Callable[[str | None], list[Row]]] = {
    "statements": _statements, "properties": _properties, "kinds": _kinds, "implementations": _implementations,
}


def as_table(rows: Sequence[Row]) -> str:
    """Id and text in two columns."""
    width = min(56, max((len(row["id"]) for row in rows), default=0))
    return "\n".join(f"{row['id']:<{width}}  {row['text']}".rstrip() for row in rows)


# ------------------------------------------------------------------------------------------------ plan
def plan_of(request: Request) -> events.Plan:
    """What a check with these options would run."""
    with Session(request) as session:
        targets = session.resolve()
        died = next((target for target in targets if target.died is not None), None)
        if died is not None:
            raise UsageError(f"target={died.name} cannot be imported: {died.died}")
        planned, mine = session.plan(targets)
        return plan_event(planned, mine)


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
        lines += ["", f"{plural(len(plan['left_out']), 'property')} would not:"]
    for (who, reason), names in reasons.items():
        lines += textwrap.wrap(f"{who}: {reason}: {', '.join(names)}", WIDTH, initial_indent="  ", subsequent_indent="    ")
    return "\n".join(lines)


# ------------------------------------------------------------------------------------------------ explain
def explained(id: str) -> str:
    """What an id stands for: a property (or case of it), a statement, a kind, or a planted fault."""
    name = id.partition("[")[0]
    properties = {prop.id: prop for prop in registry.properties()}
    hits = [prop for prop in properties.values() if name in (prop.id, prop.id.partition("/")[2])]
    if hits:
        return "\n\n".join(_property(prop, properties) for prop in hits)
    held = [prop for prop in properties.values() if name.upper() in prop.statements]
    statement = statements.find(name)
    if held or statement is not None:
        head = [f"{statement.id}: {getattr(statement, 'text', '') or getattr(statement, 'reading', '')}"] if statement else [name]
        return "\n".join([*_wrapped(head), "held by:" if held else "held by no property",
                          *(f"  {prop.id}: {prop.sentence}" for prop in held)])
    if name in KINDS:
        return _kind(name)
    planted = {made.id: made for made in (*registry.faults(), *registry.benigns())}
    if name in planted:
        made = planted[name]
        killers = [prop.id for prop in properties.values() if name in prop.kills]
        return "\n".join([f"{made.id}: {made.summary}", f"  told by: {', '.join(killers) or 'no property names it'}"])
    known = [*properties, *(one.id for one in statements.all()), *KINDS, *planted]
    raise UsageError(_near(id, known))


def _near(id: str, known: Sequence[str]) -> str:
    """An unknown id, with what may have been meant; the list of all would be too long."""
    text = unknown("id", id, known).partition(" (id is one of")[0]
    return f"{text}; `assay list properties` and `assay list statements` show what there is"


def _property(prop: Property, properties: Mapping[str, Property]) -> str:
    lines = [f"{prop.id}  [{', '.join(prop.statements)}]", f"  {prop.sentence}"]
    lines += [f"  {line}" for line in prop.details.splitlines()]
    for label, names in (("rests on", prop.rests_on), ("needs", prop.needs), ("only in", prop.dtypes or ())):
        lines += [f"  {label}: {', '.join(names)}"] if names else []
    if prop.conventions:
        lines.append("  only where: " + ", ".join(f"{name}={value}" for name, value in prop.conventions.items()))
    lines.append("  what fails it:")
    about = {made.id: made.summary for made in registry.faults(prop.kind)}
    lines += [f"    {fault}: {about.get(fault, 'not planted')}" for fault in prop.kills]
    above = [other.id for other in properties.values() if prop.id in other.rests_on]
    lines += _wrapped([f"  rests on it: {', '.join(above)}"]) if above else []
    code = prop.function.__code__
    return "\n".join([*lines, f"  written in: {code.co_filename}:{code.co_firstlineno}"])


def _kind(name: str) -> str:
    made = kind(name)
    properties = registry.properties(name)
    return "\n".join([
        f"{name}{made.call()}", f"  {made.summary}", f"  features: {', '.join(sorted(made.features))}",
        f"  conventions: {', '.join(made.conventions)}", f"  implementations: {', '.join(registry.implementations(name))}",
        f"  {plural(len(properties), 'property')}:", *(f"    {prop.id}: {prop.sentence}" for prop in properties)])


def _wrapped(lines: Sequence[str]) -> list[str]:
    return [part for line in lines for part in textwrap.wrap(line, WIDTH, subsequent_indent="    ")]
