"""Limits: the sizes and argument values that an implementation takes."""
from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from assay.axes import LETTERS
from assay.contract.kinds import Kind, quoted, unknown
from assay.errors import UsageError

Limit = range | frozenset[Any]


def read(kind: Kind, declared: Mapping[Any, Any]) -> dict[str, Limit]:
    """Limits by letter or argument name of the kind, as ranges and frozen sets."""
    found: dict[str, Limit] = {}
    for name, values in declared.items():
        if not isinstance(name, str) or (name not in LETTERS and name not in kind.names):
            raise UsageError(unknown("limits", name, (*LETTERS, *kind.names)))
        found[name] = _limit(name, values)
    return found


def _limit(name: str, values: object) -> Limit:
    """One limit: a range or a collection of plain values, with at least one value."""
    if isinstance(values, range):
        limit: Limit = values
    elif isinstance(values, (set, frozenset, list, tuple)):
        limit = frozenset(_plain(name, value) for value in values)
    else:
        raise UsageError(f"limits[{name!r}]={quoted(values)} must be a set, a list or a range, as in {{64, 128}}")
    if not limit:
        raise UsageError(f"limits[{name!r}] must admit at least one value, got none")
    return limit


def _plain(name: str, value: object) -> Any:
    """A number, string, bool, None, or a tuple of these."""
    if isinstance(value, tuple) and all(not isinstance(v, tuple) for v in value):
        return tuple(_plain(name, v) for v in value)
    if value is None or isinstance(value, (bool, int, str)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise UsageError(f"limits[{name!r}] must hold numbers, strings, bools or None, got {quoted(value)}")


def admits(limit: Limit, value: Any) -> bool:
    """Whether the limit holds the value; a mapping (rotary scaling) is known by its type, a list as a tuple."""
    if isinstance(value, Mapping):
        return value.get("type") in limit
    return (tuple(value) if isinstance(value, list) else value) in limit


def lists_words(limit: Limit | None) -> bool:
    """Whether words are among its values: where none is, words are a case's own (`padding` of a mask)."""
    return limit is not None and any(isinstance(value, str) for value in limit)


def single(limit: Limit | None) -> Any:
    """The one value of a limit that has no other; None else."""
    return next(iter(limit)) if limit is not None and len(limit) == 1 else None


def encode(limit: Limit) -> dict[str, list[Any]]:
    """A limit as JSON."""
    if isinstance(limit, range):
        return {"range": [limit.start, limit.stop, limit.step]}
    return {"set": sorted((list(v) if isinstance(v, tuple) else v for v in limit), key=repr)}


def decode(data: Mapping[str, list[Any]]) -> Limit:
    """The inverse of `encode`."""
    if "range" in data:
        return range(*data["range"])
    return frozenset(tuple(v) if isinstance(v, list) else v for v in data["set"])
