"""Checks of single declared values: each returns the value in its one form, or raises a UsageError of one line."""
from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from assay.contract.kinds import quoted, unknown
from assay.errors import UsageError

DTYPES = ("float32", "bfloat16", "float16", "float64")
LONGEST_NAME = 100
LONGEST_TEXT = 300


def name(value: object) -> str:
    """A name: 1 to 100 printable characters; markup is text, escape codes and newlines are refused."""
    if isinstance(value, str) and 1 <= len(value) <= LONGEST_NAME and value.isprintable() and value.strip():
        return str(value)
    raise UsageError(f"name={quoted(value)} must be 1 to {LONGEST_NAME} printable characters; choose a plain name")


def text(what: str, value: object) -> str:
    """A short printable text, or none."""
    if isinstance(value, str) and len(value) <= LONGEST_TEXT and value.isprintable():
        return str(value)
    raise UsageError(f"{what}={quoted(value)} must be a string of at most {LONGEST_TEXT} printable characters")


def url(value: object) -> str:
    """A web address, or none; other schemes could run as script in the report."""
    found = text("url", value)
    if found and not re.match(r"https?://", found):
        raise UsageError(f"url={quoted(found)} must start with https:// or http://")
    return found


def flag(what: str, value: object) -> bool:
    """True or False and nothing that merely looks like it."""
    if isinstance(value, bool):
        return value
    raise UsageError(f"{what}={quoted(value)} must be True or False")


def mapping(what: str, value: object) -> Mapping[Any, Any]:
    """A mapping; None is an empty one."""
    if value is None:
        return {}
    if isinstance(value, Mapping):
        return value
    raise UsageError(f"{what}={quoted(value)} must be a mapping, as in {what}={{...}}")


def optional_callable(what: str, value: object) -> Callable[..., Any] | None:
    """A callable or None."""
    if value is None or callable(value):
        return value
    raise UsageError(f"{what}={quoted(value)} must be callable")


def items(what: str, value: object) -> list[Any]:
    """The items of a collection; a bare string (or torch dtype or device) is one item."""
    if isinstance(value, str) or str(type(value)) in ("<class 'torch.dtype'>", "<class 'torch.device'>"):
        return [value]
    if isinstance(value, Iterable) and not isinstance(value, (bytes, Mapping)):
        return list(value)
    raise UsageError(f"{what}={quoted(value)} must be a collection of names, as in {what}=(...)")


def members(what: str, value: object, known: Iterable[str]) -> frozenset[str]:
    """Names out of a closed list."""
    listed = tuple(known)
    for item in (found := items(what, value)):
        if not isinstance(item, str) or item not in listed:
            raise UsageError(unknown(what, item, listed))
    return frozenset(found)


def dtypes(value: object) -> tuple[str, ...]:
    """Names of floating types, from strings or torch dtypes; compared by name, so torch need not be loaded."""
    found = []
    for item in items("dtypes", value):
        plain = item if isinstance(item, str) or str(type(item)) == "<class 'torch.dtype'>" else None
        short = str(plain).removeprefix("torch.")
        if short not in DTYPES:
            raise UsageError(unknown("dtypes", short if plain is not None else item, DTYPES))
        found.append(short)
    if not found:
        raise UsageError("dtypes=() must name at least one type, as in dtypes=('float32',)")
    return tuple(dict.fromkeys(found))


def devices(value: object) -> tuple[str, ...] | None:
    """Names of devices such as cpu and cuda:0; None leaves the choice to the run."""
    if value is None:
        return None
    found = []
    for item in items("devices", value):
        known = isinstance(item, str) or str(type(item)) == "<class 'torch.device'>"
        if not known or not re.fullmatch(r"[a-z]+(:\d{1,3})?", str(item)):
            raise UsageError(f"devices={quoted(item)} must be the name of a device, as in devices=('cpu', 'cuda')")
        found.append(str(item))
    if not found:
        raise UsageError("devices=() must name at least one device; leave it out to try what there is")
    return tuple(dict.fromkeys(found))
