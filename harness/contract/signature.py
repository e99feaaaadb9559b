"""Signatures: how an implementation takes the arguments of its kind."""
from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from inspect import Parameter
from typing import Any

from assay.contract.kinds import REQUIRED, Kind, quoted
from assay.errors import UsageError

_BY_POSITION = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_BY_NAME = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


@dataclass(frozen=True)
class Shape:
    """positional: arguments handed over by position, all others go by name. keywords: options that are taken. defaults: of
    these, where the signature has another than the contract, as text."""

    positional: tuple[str, ...]
    keywords: frozenset[str]
    defaults: Mapping[str, str] = field(default_factory=dict)


def shape_of(kind: Kind, function: Callable[..., Any]) -> Shape:
    """Match a signature with the call of the kind; a parameter that cannot be satisfied is a UsageError."""
    parameters = _parameters(function)
    if parameters is None:  # a builtin without a signature: its arguments by position, no option claimed
        return Shape(kind.arguments, frozenset())
    positional = _positional(kind, parameters)
    taken = _taken_by_position(parameters, len(positional))
    by_name = {name for name, p in parameters.items() if p.kind in _BY_NAME and name not in taken}
    keywords = frozenset(by_name.intersection(kind.options))
    given = set(kind.arguments) | keywords
    for name, parameter in parameters.items():
        variadic = parameter.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
        satisfied = name in taken or (name in given and name in by_name)
        if parameter.default is Parameter.empty and not variadic and not satisfied:
            raise UsageError(f"parameter {quoted(name)} must have a default, got none; "
                             f"{kind.name} is called as {kind.call()}")
    return Shape(positional, keywords, _own_defaults(kind, {name: parameters[name] for name in sorted(keywords)}))


def _own_defaults(kind: Kind, taken: Mapping[str, Parameter]) -> dict[str, str]:
    """What an option is when it is left out, where the contract has another value for that."""
    return {name: quoted(parameter.default) for name, parameter in taken.items()
            if parameter.default is not Parameter.empty and kind.options[name] is not REQUIRED
            and quoted(parameter.default) != quoted(kind.options[name])}


def _parameters(function: Callable[..., Any]) -> Mapping[str, Parameter] | None:
    """Parameters by name; those of `forward` for a module, whose own call takes anything; None without a signature."""
    forward = getattr(function, "forward", None)
    try:
        found = inspect.signature(function).parameters
        takes_anything = all(p.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD) for p in found.values())
        return inspect.signature(forward).parameters if takes_anything and callable(forward) else found
    except (ValueError, TypeError):
        return None


def _positional(kind: Kind, parameters: Mapping[str, Parameter]) -> tuple[str, ...]:
    """The shortest run of leading arguments that goes by position, as the signature does not take them all by name."""
    by_name = {name for name, p in parameters.items() if p.kind in _BY_NAME}
    anything = any(p.kind is Parameter.VAR_KEYWORD for p in parameters.values())
    spread = any(p.kind is Parameter.VAR_POSITIONAL for p in parameters.values())
    needed = [i + 1 for i, name in enumerate(kind.arguments)
              if name not in by_name and not (anything and not spread and name not in parameters)]
    count = max(needed, default=0)
    places = [p for p in parameters.values() if p.kind in _BY_POSITION]
    for i, name in enumerate(kind.arguments[:count]):
        if i >= len(places):
            if spread:
                continue
            raise UsageError(f"parameter {name!r} is missing from the signature; "
                             f"{kind.name} is called as {kind.call()}")
        other = places[i].name
        if other != name and other in kind.names:
            raise UsageError(f"parameter {name!r} is expected where the signature has {other!r}; "
                             f"{kind.name} is called as {kind.call()}")
    return kind.arguments[:count]


def _taken_by_position(parameters: Mapping[str, Parameter], count: int) -> frozenset[str]:
    return frozenset([p.name for p in parameters.values() if p.kind in _BY_POSITION][:count])
