"""What there is: the listings behind `assay list` and the explanations behind `assay explain`, as data and as text."""
from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from assay import registry, statements
from assay.contract.conventions import CONVENTIONS
from assay.contract.kinds import KINDS
from assay.errors import UsageError
from assay.numbers.arithmetic import CHOICES, Arithmetic
from assay.properties import Property


@dataclass(frozen=True)
class Listing:
    """Rows of one sort: `rows` as JSON, itself as a rich table, `lines` as plain text."""

    what: str
    columns: tuple[str, ...]
    rows: list[dict[str, Any]]
    footer: str = ""

    def to_json(self) -> dict[str, Any]:
        return {self.what: self.rows}

    def lines(self) -> Iterator[str]:
        """One line a row, tab-separated: for pipes."""
        for row in self.rows:
            yield "\t".join(_shown(row[column]) for column in self.columns)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = Table(*self.columns, box=None, pad_edge=False, header_style="bold")
        for row in self.rows:
            table.add_row(*(Text(_shown(row[column])) for column in self.columns))
        yield table
        if self.footer:
            yield Text(self.footer, style="dim")


@dataclass(frozen=True)
class Explanation:
    """One thing explained: titled paragraphs, and the same as JSON."""

    id: str
    parts: Mapping[str, str]  # title -> text; a text may have several lines
    data: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return self.data

    def lines(self) -> Iterator[str]:
        """Plain text: a title, then its lines indented."""
        yield self.id
        for title, text in self.parts.items():
            if text:
                yield ""
                yield title
                yield from (f"  {line}".rstrip() for line in text.splitlines())

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(self.id, style="bold")
        for title, text in self.parts.items():
            if text:
                yield Text(f"\n{title}", style="bold cyan")
                for line in text.splitlines():
                    yield Text(f"  {line}", overflow="fold")


def _shown(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


# ------------------------------------------------------------------------------------------------ lists
def listing(what: str, kind: str | None = None) -> Listing:
    """`statements`, `properties`, `kinds` or `implementations`; of one kind where one is given."""
    if what not in _LISTS:
        raise UsageError(f"list={what!r} must be one of {', '.join(_LISTS)}")
    if kind is not None and kind not in KINDS:
        raise UsageError(f"kind={kind!r} must be a kind; `assay list kinds` shows all")
    return _LISTS[what](kind)


def held_by() -> dict[str, list[str]]:
    """Statement or erratum id -> ids of the properties that hold it, in order; those that none holds map to nothing."""
    written = [one.id for group in (statements.all(), statements.errata(), statements.further()) for one in group]
    found: dict[str, list[str]] = {id: [] for id in written}
    for prop in registry.properties():
        for id in prop.statements:
            if id in found:
                found[id].append(prop.id)
    return found


def _statements(kind: str | None) -> Listing:
    held = held_by()
    rows = [{**one.to_json(), "properties": held[one.id]} for one in statements.all()]
    if kind is not None:
        rows = [row for row in rows if any(id.startswith(f"{kind}/") for id in row["properties"])]
    waiting = [row["id"] for row in rows if not row["properties"]]
    footer = f"{len(rows) - len(waiting)} of {len(rows)} statements are held by a property"
    return Listing("statements", ("id", "text", "kinds", "source", "properties"), rows,
                   footer + (f"; still waiting: {', '.join(waiting)}" if waiting else ""))


def _properties(kind: str | None) -> Listing:
    rows = [{"id": prop.id, "statements": list(prop.statements), "sentence": prop.sentence, "kind": prop.kind,
             "needs": list(prop.needs), "rests_on": list(prop.rests_on), "kills": list(prop.kills)}
            for prop in registry.properties(kind)]
    return Listing("properties", ("id", "statements", "sentence"), rows, f"{len(rows)} properties")


def _kinds(kind: str | None) -> Listing:
    rows = []
    for one in (KINDS[name] for name in KINDS if kind in (None, name)):
        rows.append({"kind": one.name, "call": one.call(), "summary": one.summary, "outputs": list(one.outputs),
                     "properties": len(registry.properties(one.name)), "faults": len(registry.faults(one.name)),
                     "implementations": len(registry.declarations(one.name))})
    return Listing("kinds", ("kind", "call", "summary", "properties", "faults", "implementations"), rows,
                   f"{len(rows)} kinds")


def _implementations(kind: str | None) -> Listing:
    rows = [{"kind": made.kind, "name": made.name, "dtypes": list(made.dtypes), "lacks": sorted(made.lacks),
             "version": made.version, "url": made.url, "origin": made.origin} for made in registry.declarations(kind)]
    left_out = "; ".join(f"{module}: {reason}" for module, reason in registry.unavailable())
    return Listing("implementations", ("kind", "name", "dtypes", "lacks", "version", "origin"), rows,
                   f"{len(rows)} implementations" + (f"; not available here: {left_out}" if left_out else ""))


_LISTS: Mapping[str, Callable[[str | None], Listing]] = {
    "statements": _statements, "properties": _properties, "kinds": _kinds, "implementations": _implementations,
}


# ------------------------------------------------------------------------------------------------ explanations
def explain(id: str, *, example: bool = True) -> Explanation:
    """A statement, erratum, property (by id or by a name that only one has) or kind. example: run a planted fault."""
    stated = statements.find(id)
    if isinstance(stated, statements.Statement):
        return _explain_statement(stated, example)
    if stated is not None:
        return _explain_erratum(stated)
    if id in KINDS:
        return _explain_kind(id)
    return _explain_property(_property(id), example)


def _property(id: str) -> Property:
    known = registry.properties()
    found = [prop for prop in known if id in (prop.id, prop.id.partition("/")[2])]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"id={id!r} must name one property, got {len(found)}; say {' or '.join(p.id for p in found)}")
    names = [*(prop.id for prop in known), *KINDS, *(one.id for one in statements.all())]
    near = difflib.get_close_matches(id, names, n=3)
    hint = f"did you mean {', '.join(near)}?" if near else "`assay list statements|properties|kinds` shows all"
    raise UsageError(f"id={id!r} must be a statement, erratum, property or kind; {hint}")


def _explain_statement(stated: statements.Statement, example: bool) -> Explanation:
    held = [prop for prop in registry.properties() if stated.id in prop.statements]
    first = held[0] if held else None
    counter = _example(first) if example and first else None
    sorts = "; ".join(f"{kind}: {statements.KINDS[kind]}" for kind in stated.kinds)
    parts = {
        "statement": stated.text, "where it comes from": f"{stated.source} · {stated.section}", "how it is held": sorts,
        "properties": "\n".join(f"{prop.id}: {prop.sentence}" for prop in held) or "none yet: it still waits",
        "tolerance": _tolerance(first) if first else "", "how a failure reads": _told(counter),
    }
    data = {**stated.to_json(), "properties": [prop.id for prop in held], "example": counter}
    return Explanation(stated.id, parts, data)


def _explain_erratum(wrong: statements.Erratum) -> Explanation:
    held = held_by()[wrong.id]
    parts = {"the notes say": wrong.note, "held normative": wrong.reading, "properties": "\n".join(held), "shown": wrong.shown}
    return Explanation(wrong.id, parts, {**wrong.to_json(), "properties": held})


def _explain_kind(name: str) -> Explanation:
    kind = KINDS[name]
    formula = inspect.getdoc(getattr(registry.reference(name), name, None)) or kind.summary
    agreed = "\n".join(f"{name}: {CONVENTIONS[name].summary} ({' · '.join(CONVENTIONS[name].values)})"
                       for name in kind.conventions)
    parts = {
        "call": f"{name}{kind.call()}", "formula": formula, "outputs": ", ".join(kind.outputs),
        "features": ", ".join(sorted(kind.features)), "conventions": agreed, "tolerance": _forms(name),
        "properties": "\n".join(f"{prop.id}: {prop.sentence}" for prop in registry.properties(name)),
        "implementations": ", ".join(registry.implementations(name)),
    }
    return Explanation(name, parts, {"kind": name, **parts})


def _explain_property(prop: Property, example: bool) -> Explanation:
    counter = _example(prop) if example else None
    held = [statements.find(id) for id in prop.statements]
    parts = {
        "what must hold": f"{prop.sentence}\n{prop.details}".strip(),
        "statements": "\n".join(f"{one.id}: {one.text}" for one in held if isinstance(one, statements.Statement)),
        "tolerance": _tolerance(prop), "needs": ", ".join(prop.needs), "drawn with": _given(prop.given),
        "rests on": "\n".join(prop.rests_on), "must tell": ", ".join(id.partition("/")[2] for id in prop.kills),
        "how a failure reads": _told(counter), "source": _source(prop),
    }
    data = {"id": prop.id, "kind": prop.kind, "sentence": prop.sentence, "details": prop.details,
            "statements": list(prop.statements), "kills": list(prop.kills), "rests_on": list(prop.rests_on),
            "needs": list(prop.needs), "tolerance": parts["tolerance"], "source": parts["source"], "example": counter}
    return Explanation(prop.id, parts, data)


def _source(prop: Property) -> str:
    return inspect.getsource(prop.function)


def _given(given: Mapping[str, Any]) -> str:
    """What the property fixes of its examples; predicates are named by their presence."""
    shown = {name: "restricted" if callable(rule) else _shown(rule) if isinstance(rule, Sequence) else str(rule)
             for name, rule in given.items()}
    return " · ".join(f"{name}: {rule}" for name, rule in shown.items())


def _tolerance(prop: Property) -> str:
    """Where the tolerance of a property comes from."""
    if prop.statistical is not None:
        return f"a statistical test; share of false alarms of one decision: {prop.statistical:g}"
    return _forms(prop.kind)


def _forms(kind: str) -> str:
    default = Arithmetic()
    chosen = ", ".join(f"{name}={getattr(default, name)}" for name in CHOICES)
    forms = "\n".join(f"- {form.name}{' (own backward)' if form.backward else ''}" for form in registry.forms(kind))
    return ("None is typed in. The formula runs in float64 beside a running bound of each operation's rounding;\n"
            f"the bar is the widest over the legitimate ways to evaluate it:\n{forms}\n"
            f"Arithmetic, where nothing else is declared: {chosen}.")


def _example(prop: Property) -> dict[str, Any] | None:
    """A failure of a planted fault, found now."""
    from assay.run import doctor  # forks judges: only when an example is asked for

    attempt = doctor.first_kill(prop)
    if attempt is None:
        return None
    summary = next((fault.summary for fault in registry.faults(prop.kind) if fault.id == attempt.planted), "")
    return {"planted": attempt.planted, "summary": summary, "dtype": attempt.dtype, "message": attempt.message,
            "counterexample": dict(attempt.counterexample)}


def _told(counter: Mapping[str, Any] | None) -> str:
    if counter is None:
        return ""
    return f"with the planted fault {counter['planted']} ({counter['summary']}):\n{counter['message']}"


# ------------------------------------------------------------------------------------------------ as a page
def markdown() -> str:
    """The page `docs/statements.md`: every statement with the properties that hold it, and the errata."""
    held, section = held_by(), ""
    waiting = sum(not held[one.id] for one in statements.all())
    lines = ["# The statements", "",
             "Every claim of the source notes by its fixed id, with the properties that hold it.",
             "Made by `python -m assay.run.catalogue`: edit `harness/statements.json`, not this page.", "",
             f"{len(statements.all()) - waiting} of {len(statements.all())} statements are held by a property.", ""]
    lines += [f"- **{kind}**: {meaning}" for kind, meaning in statements.KINDS.items()]
    for one in (*statements.all(), *statements.further()):
        if one.section != section:
            section = one.section
            title = section if one.source != statements.BEYOND else f"Beyond the notes: {section}"
            lines += ["", f"## {title}", "", _row("id", "statement", "kind", "source", "held by"), "|---" * 5 + "|"]
        names = ", ".join(f"`{id}`" for id in held[one.id]) or "waiting"
        lines.append(_row(one.id, one.text, " / ".join(one.kinds), one.source, names))
    lines += ["", "## Errata of the notes", "", _row("id", "the notes say", "normative", "held by"), "|---" * 4 + "|"]
    lines += [_row(one.id, one.note, one.reading, ", ".join(f"`{id}`" for id in held[one.id]) or one.shown) for one in
              statements.errata()]
    return "\n".join(lines) + "\n"


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    print(markdown(), end="")
