"""The catalogue of statements as the chapters of the document that runs."""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from assay import registry, statements
from assay.errors import UsageError
from assay.report.document import Chapter, Entry, Held

MAX_BYTES = 2**20  # of one finding


def chapters() -> list[Chapter]:
    """Every statement in order, then what goes beyond the notes, then their errata."""
    held = _held()
    found: dict[str, list[Entry]] = {}
    for one in (*statements.all(), *statements.further()):
        title = one.section if one.source != statements.BEYOND else f"Beyond the notes: {one.section}"
        kinds = "; ".join(f"{kind}: {statements.KINDS[kind]}" for kind in one.kinds)
        entry = Entry(one.id, one.text, one.formula, kinds, one.source, held.get(one.id, ()))
        found.setdefault(title, []).append(entry)
    errata = [Entry(one.id, one.reading, "", "", "", held.get(one.id, ()), one.note, one.shown) for one in statements.errata()]
    return [*(Chapter(title, entries) for title, entries in found.items()), Chapter("Errata of the notes", errata)]


def _held() -> dict[str, Sequence[Held]]:
    found: dict[str, list[Held]] = {}
    for prop in registry.properties():
        for id in prop.statements:
            found.setdefault(id, []).append(Held(prop.id, prop.sentence, len(prop.kills)))
    return {id: tuple(properties) for id, properties in found.items()}


def findings(folder: Path) -> dict[str, str]:
    """Name -> Markdown of each page in the folder."""
    if not folder.is_dir():
        raise UsageError(f"findings={folder} must be a folder of Markdown pages")
    return {place.stem: _text(place) for place in _pages(folder)}


def _pages(folder: Path) -> Iterable[Path]:
    found = sorted(folder.glob("*.md"))
    if not found:
        raise UsageError(f"findings={folder} must hold Markdown pages (*.md), got none")
    return found


def _text(place: Path) -> str:
    try:
        if place.stat().st_size > MAX_BYTES:
            raise UsageError(f"{place}: more than {MAX_BYTES // 2**20} MiB, not a finding")
        return place.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{place}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{place}: must be UTF-8 text") from None
