"""The catalogue of statements: every claim of the source notes by its fixed id, and the errata of the notes."""
from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from assay.errors import UsageError

SOURCES = ("S0", "S1", "S2", "S3", "S4")
BEYOND = "beyond the notes"  # the source of statements that the notes do not make
KINDS: Mapping[str, str] = {
    "exact": "bit for bit, or whole numbers",
    "bound": "holds within a derived rounding bound",
    "relation": "two runs of the implementation are compared with each other, without an oracle",
    "gradient": "of gradients, within their derived bounds",
    "statistical": "a test with a stated rate of false alarms",
    "resource": "operations, bytes or parameters counted, never a clock",
}


@dataclass(frozen=True)
class Statement:
    """One claim. kinds: how it can be held against an implementation (`KINDS`). source: which notes make it.

    formula: LaTeX, where the claim is or has one.
    """

    id: str
    text: str
    kinds: tuple[str, ...]
    source: str
    section: str
    formula: str = ""

    def to_json(self) -> dict[str, Any]:
        return {"id": self.id, "text": self.text, "kinds": list(self.kinds), "source": self.source,
                "section": self.section, "formula": self.formula}


@dataclass(frozen=True)
class Erratum:
    """A place where the notes are wrong or disagree: what they say, and the reading that is held normative.

    shown: where it is shown though no property of a kind can hold it, or why it is not; empty where properties hold it.
    """

    id: str
    note: str
    reading: str
    shown: str = ""

    def to_json(self) -> dict[str, Any]:
        return {"id": self.id, "note": self.note, "reading": self.reading, "shown": self.shown}


@cache
def _catalogue() -> tuple[Mapping[str, Statement], Mapping[str, Erratum], Mapping[str, Statement]]:
    data = json.loads(resources.files("assay").joinpath("statements.json").read_text(encoding="utf-8"))
    return (_statements(data["statements"]), {one["id"]: Erratum(**one) for one in data["errata"]},
            _statements([{"source": BEYOND, **one} for one in data["further"]]))


def _statements(rows: Sequence[Mapping[str, str]]) -> Mapping[str, Statement]:
    return {one["id"]: Statement(one["id"], one["text"], tuple(part.strip() for part in one["kind"].split("/")), one["source"],
                                 one["section"], one.get("formula", "")) for one in rows}


def all() -> tuple[Statement, ...]:
    """Every statement, in the order of the catalogue."""
    return tuple(_catalogue()[0].values())


def errata() -> tuple[Erratum, ...]:
    """Every erratum, in order."""
    return tuple(_catalogue()[1].values())


def further() -> tuple[Statement, ...]:
    """What is held beyond the notes, about kinds that they do not have; none of `all()`."""
    return tuple(_catalogue()[2].values())


def find(id: str) -> Statement | Erratum | None:
    """The statement or erratum of that id, if there is one; capitals do not matter."""
    known, wrong, beyond = _catalogue()
    return known.get(id.upper()) or wrong.get(id.upper()) or beyond.get(id.upper())


def get(id: str) -> Statement | Erratum:
    """The statement or erratum of that id; an unknown one is a UsageError that names its neighbours."""
    found = find(id)
    if found is None:
        near = difflib.get_close_matches(id.upper(), [*_catalogue()[0], *_catalogue()[1]], n=3)
        hint = f"did you mean {', '.join(near)}?" if near else "`assay list statements` shows all"
        raise UsageError(f"statement={id!r} must be an id of the catalogue; {hint}")
    return found
