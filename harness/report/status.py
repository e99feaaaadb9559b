"""How each status is shown: a glyph, a word and a meaning, so that none hangs on colour."""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from assay.run import events


class Look(NamedTuple):
    """Glyph, colour family (good, bad, warn, none) and what the status means."""

    glyph: str
    tone: str
    meaning: str


LOOKS: Mapping[str, Look] = {
    "pass": Look("✓", "good", "no counterexample among enough decided examples"),
    "fail": Look("✗", "bad", "at least one example is provably wrong"),
    "crash": Look("✸", "bad", "the process that ran the implementation died"),
    "timeout": Look("◷", "bad", "one call took longer than allowed"),
    "out-of-memory": Look("▣", "bad", "asked for more memory than allowed"),
    "unexpected-pass": Look("‼", "bad", "a waiver that is stale, unmatched or expired"),
    "harness-error": Look("⚙", "bad", "a fault of assay itself: nothing is known about this case"),
    "blocked": Look("↳", "warn", "failed, and so did a property that it rests on"),
    "suspect": Look("≈", "warn", "within the proven bound, yet markedly worse than evaluation at the same precision"),
    "inconclusive": Look("?", "warn", "the bound is too wide to tell right from wrong on these inputs"),
    "waived": Look("⚑", "warn", "a known failure, waived"),
    "not-exercised": Look("◌", "none", "claimed, but it did not run or could not be observed"),
    "not-supported": Look("⊘", "none", "answered 'not implemented' when called"),
    "not-claimed": Look("–", "none", "not claimed, so not asked"),
    "not-run": Look("…", "none", "planned, but the run was interrupted before it"),
}
ORDER = (*events.STATUSES[:9], "not-run", *events.STATUSES[9:])


def worst(statuses: Iterable[str]) -> str:
    """The status that stands for several: the one that a reader must know of first."""
    return min(statuses, key=ORDER.index, default="not-claimed")


def mark(status: str) -> str:
    """Glyph and word."""
    return f"{LOOKS[status].glyph} {status}"


def short(value: Any) -> str:
    """A number of a report in few characters; any other value as its text."""
    found = events.number(value)
    if found is None:
        return "–" if value is None else str(value)
    if found != found:
        return "NaN"
    if found in (float("inf"), float("-inf")):
        return "∞" if found > 0 else "-∞"
    if isinstance(value, int) or (found == int(found) and abs(found) < 1e6):
        return f"{int(found):,}" if abs(found) < 1e15 else f"{found:.3g}"
    if 1_000 <= abs(found) < 1e9:
        return f"{float(f'{found:.2g}'):,.0f}"
    return f"{found:.3g}"


def plural(count: int, noun: str) -> str:
    """Count and noun: `1 case`, `3 cases`, `2 properties`, `2 ways`."""
    many = noun[:-1] + "ies" if noun.endswith("y") and noun[-2] not in "aeiou" else noun + "s"
    return f"{count:,} {noun if count == 1 else many}"


def power(exponent: float | None) -> str:
    """How something grows with size; empty where that was not measured."""
    return "" if exponent is None else f"size^{exponent:.1f}"
