"""Two reports compared: regressions, fixes and weakened claims, told apart from changes of the plan and the machine."""
from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from assay.errors import UsageError
from assay.report.jsonl import Report
from assay.report.markdown import escape, table
from assay.report.status import mark, plural
from assay.run.events import RED, Json

BROKEN = RED | {"blocked", "harness-error"}
SOUND = frozenset({"pass", "suspect"})
CATEGORIES: Mapping[str, str] = {
    "regressions": "wrong now, and not before",
    "weakened": "less is shown than before: fewer decided examples, looser arithmetic, narrower claims, new waivers",
    "fixes": "wrong before, right now",
    "changed": "another status, neither better nor worse",
    "plan": "cases, seed, profile or version differ",
    "environment": "the machine differs",
}
# Tighter first: a step to the right widens the bound.
LOOSER: Mapping[str, tuple[Any, ...]] = {
    "internal": ("float64", "float32", "input"), "accumulate": ("float64", "float32", "input"),
    "angles": ("float64", "float32", "input"), "tables": ("float32", "input"), "tf32": (False, True),
    "exp": ("accurate", "fast"), "erf": ("accurate", "fast"), "tanh": ("accurate", "fast"),
}
SHOWN = 50  # a category in text and Markdown; the rest is counted
Key = tuple[str, str, str, str]


@dataclass(frozen=True)
class Change:
    """One difference: what it is about, and from what to what."""

    subject: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.subject}: {self.before or 'none'} → {self.after or 'none'}"


@dataclass
class Difference:
    """All differences by category."""

    changes: dict[str, list[Change]] = field(default_factory=lambda: {name: [] for name in CATEGORIES})
    unchanged: int = 0

    def add(self, category: str, subject: str, before: object, after: object) -> None:
        """Record one difference."""
        self.changes[category].append(Change(subject, str(before), str(after)))

    def fails_on(self, categories: Collection[str]) -> bool:
        """Whether anything of these categories (`any`: of all) was found; UsageError for an unknown one."""
        unknown = set(categories) - set(CATEGORIES) - {"any"}
        if unknown:
            raise UsageError(f"fail-on={min(unknown)} must be one of {', '.join(CATEGORIES)} or any")
        return any(self.changes[name] for name in (CATEGORIES if "any" in categories else categories))

    def text(self) -> str:
        """For the terminal."""
        lines = [self.headline()]
        for name, found in self.changes.items():
            if found:
                lines += ["", f"{name} ({len(found)}): {CATEGORIES[name]}"]
                lines += [f"  {change}" for change in found[:SHOWN]]
                lines += [f"  … {len(found) - SHOWN} more"] if len(found) > SHOWN else []
        return "\n".join(lines)

    def markdown(self) -> str:
        """For a pull request."""
        lines = [f"# {self.headline()}", ""]
        for name, found in self.changes.items():
            if found:
                rows = [(change.subject, change.before, change.after) for change in found[:SHOWN]]
                lines += [f"## {name.capitalize()} ({len(found)})", "", f"{escape(CATEGORIES[name])}.", ""]
                lines += [*table(("What", "Before", "After"), rows), ""]
                lines += [f"{len(found) - SHOWN} more.", ""] if len(found) > SHOWN else []
        return "\n".join(lines)

    def headline(self) -> str:
        """Counts of each category in one line."""
        words = {"regressions": "regression", "fixes": "fix"}
        told = [
            f"{len(found)} {words.get(name, name) if len(found) == 1 else name}"
            for name, found in self.changes.items() if found
        ]
        return f"{', '.join(told) or 'No difference'}; {plural(self.unchanged, 'case')} as before"


def diff(old: Report, new: Report, renames: Mapping[str, str] | None = None) -> Difference:
    """What changed from old to new. `renames`: old name -> new name, of properties and implementations."""
    found, names = Difference(), renames or {}
    before, after = _cases(old, names), _cases(new, {})
    left_out = {(entry["property"], entry["implementation"]): entry["reason"] for entry in new.plan["left_out"]}
    for key in sorted(before.keys() | after.keys()):
        subject = _subject(key)
        if key not in before:
            found.add("plan", subject, "", mark(after[key]["status"]) if after[key] else "planned")
        elif key not in after:
            reason = left_out.get(key[:2])
            found.add("plan" if reason is None else "weakened", subject, _status(before[key]), reason or "")
        else:
            _compare(found, subject, before[key], after[key])
    _compare_claims(found, old, new, names)
    _compare_runs(found, old, new)
    return found


def _cases(report: Report, names: Mapping[str, str]) -> dict[Key, Json]:
    """Planned cases by what they are about, renamed; an empty dict for one without a result."""
    results = {one["id"]: one for one in report.results}
    found: dict[Key, Json] = {}
    for case, (name, implementation, device, dtype) in zip(report.plan["cases"], report.plan["rows"], strict=True):
        key = names.get(name, name), names.get(implementation, implementation), device, dtype
        found[key] = results.pop(case, {})
    for one in results.values():
        found[one["property"], one["implementation"], one["device"], one["dtype"]] = one
    return found


def _subject(key: Key) -> str:
    return " · ".join(part for part in key if part)


def _status(one: Json) -> str:
    return mark(one["status"]) if one else mark("not-run")


def _compare(found: Difference, subject: str, old: Json, new: Json) -> None:
    """One case that both reports planned."""
    before, after = old.get("status", "not-run"), new.get("status", "not-run")
    category = _category(before, after)
    if category:
        found.add(category, subject, mark(before), mark(after))
    elif old and new and _decided(new) < _decided(old):
        found.add("weakened", subject, f"{_decided(old)} examples decided", f"{_decided(new)} examples decided")
    else:
        found.unchanged += 1


def _category(before: str, after: str) -> str:
    """The category of a change of status; empty when it is none."""
    if before == after:
        return ""
    if after in BROKEN:
        return "changed" if before in BROKEN else "regressions"
    if after in SOUND:
        return "weakened" if (before, after) == ("pass", "suspect") else "fixes" if before in BROKEN else "changed"
    if after == "waived":
        return "weakened"
    return "weakened" if before in BROKEN | SOUND | {"waived"} else "changed"


def _decided(one: Json) -> int:
    return int(one["examples"]["right"] + one["examples"]["wrong"])


def _compare_claims(found: Difference, old: Report, new: Report, names: Mapping[str, str]) -> None:
    """Declarations of the implementations that both reports hold."""
    after = {(one["kind"], one["name"]): one for one in new.header["implementations"]}
    for one in old.header["implementations"]:
        name = names.get(one["name"], one["name"])
        other = after.get((one["kind"], name))
        if other is not None:
            for category, key, was, now in _claims(one, other):
                found.add(category, f"{one['kind']} · {name}: {key}", was, now)


def _claims(old: Json, new: Json) -> Iterator[tuple[str, str, object, object]]:
    """Category, what, before and after of each difference between two declarations of one implementation."""
    was, now = old.get("arithmetic") or {}, new.get("arithmetic") or {}
    for key in sorted({*was, *now}):
        if was.get(key) != now.get(key):
            order = LOOSER.get(key, ())
            known = was.get(key) in order and now.get(key) in order
            looser = known and order.index(now.get(key)) > order.index(was.get(key))
            yield "weakened" if looser else "changed", key, was.get(key, ""), now.get(key, "")
    for key, narrower in (("lacks", True), ("dtypes", False), ("offers", False)):
        before, after = set(old.get(key) or ()), set(new.get(key) or ())
        if before != after:
            lost = after - before if narrower else before - after
            yield "weakened" if lost else "changed", key, ", ".join(sorted(before)), ", ".join(sorted(after))
    for key in ("conventions", "limits", "grad", "version"):
        if old.get(key) != new.get(key):
            yield "changed", key, old.get(key, ""), new.get(key, "")


def _compare_runs(found: Difference, old: Report, new: Report) -> None:
    for key in ("assay", "profile", "seed"):
        if old.header[key] != new.header[key]:
            found.add("plan", key, old.header[key], new.header[key])
    before, after = old.header["environment"], new.header["environment"]
    for key in sorted({*before, *after}):
        if before.get(key) != after.get(key):
            found.add("environment", key, before.get(key, ""), after.get(key, ""))
