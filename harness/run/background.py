"""What a report's plan tells once, for whoever reads it without assay: statements, formulas, and the kinds with their sources."""
from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from typing import Any

from assay import registry, statements
from assay.contract.kinds import KINDS


def texts(ids: Iterable[str]) -> dict[str, str]:
    """Statement or erratum id -> what it says."""
    found = {id: statements.find(id) for id in sorted(set(ids))}
    return {id: one.text if isinstance(one, statements.Statement) else one.reading for id, one in found.items() if one}


def formulas(ids: Iterable[str]) -> dict[str, str]:
    """Statement id -> LaTeX, where it has a formula."""
    found = {id: statements.find(id) for id in sorted(set(ids))}
    return {id: one.formula for id, one in found.items() if isinstance(one, statements.Statement) and one.formula}


def kinds(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Kind -> its call, what it does, where the formula is from, and the ways to evaluate it that set the bound."""
    return {name: {"summary": KINDS[name].summary, "call": KINDS[name].call(), "source": source(name),
                   "forms": [form.name for form in registry.forms(name)]} for name in sorted(set(names))}


def source(kind: str) -> str:
    """The source that the kind's reference names."""
    text = inspect.getdoc(getattr(registry.reference(kind), kind, None)) or ""
    found = re.search(r"^Source:\s*(.+?)(?=\n\s*\n|\n>>>|\n[A-Z]\w+:|\Z)", text, re.MULTILINE | re.DOTALL)
    return " ".join(found[1].split()) if found else ""
