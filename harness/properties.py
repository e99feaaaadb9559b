"""Properties: what must hold, one short function each, with what it proves and how it can fail."""
from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from assay.errors import HarnessError

Body = TypeVar("Body", bound=Callable[..., Any])

CONDUCT = "CONDUCT"  # the statement id of properties about behaviour rather than numbers


@dataclass(frozen=True)
class Property:
    """One statement that is run. `sentence` is what the report shows, `details` why it holds.

    kills: ids of planted faults that must make it fail. rests_on: ids of properties whose failure explains its own.
    needs: features and keywords that the implementation must claim; `keyword=value` where its limits must admit that value.
    given: flags and dims fixed in its configurations.
    conventions: only for implementations with these values. dtypes: only these (None: those declared).
    statistical: share of false alarms of one decision (None: it does not draw).
    examples: how many to draw instead of the profile's number.
    invariance: the column that it fills in the grid of what must not matter ("strides", "batch split", …).
    deep: planned by the profile deep, or where it is named.
    """

    id: str
    kind: str
    function: Callable[..., Any]
    sentence: str
    details: str
    statements: tuple[str, ...]
    kills: tuple[str, ...]
    cases: Any
    rests_on: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    given: Mapping[str, Any] = field(default_factory=dict)
    gradient: bool = False
    conventions: Mapping[str, Any] = field(default_factory=dict)
    dtypes: tuple[str, ...] | None = None
    statistical: float | None = None
    examples: int | None = None
    invariance: str = ""
    deep: bool = False

    def holds_for(self, conventions: Mapping[str, Any]) -> bool:
        """Whether it speaks of an implementation with these conventions: each has its value, or one of several."""
        return all(conventions.get(name) in _several(value) for name, value in self.conventions.items())


_PROPERTIES: dict[str, Property] = {}
_IDS: dict[Callable[..., Any], str] = {}  # property function -> id, for rests_on


class Specification:
    """The properties of one kind: `spec = Specification("softmax", cases)`, then `@spec.holds("SM-1", kills=...)`."""

    def __init__(self, kind: str, cases: Any) -> None:
        self.kind = kind
        self.cases = cases

    def holds(
        self, *statements: str, kills: Iterable[str] = (), rests_on: Iterable[Callable[..., Any] | str] = (),
        needs: Iterable[str] = (), given: Mapping[str, Any] | None = None, gradient: bool = False,
        conventions: Mapping[str, Any] | None = None, dtypes: Iterable[str] | None = None,
        statistical: float | None = None, examples: int | None = None, invariance: str = "", deep: bool = False,
    ) -> Callable[[Body], Body]:
        """Register the function as a property of this kind; it comes back unchanged."""
        def register(function: Body) -> Body:
            id = f"{self.kind}/{function.__name__}"
            sentence, details = _docstring(id, function)
            add(Property(
                id, self.kind, function, sentence, details, _names(id, "statements", statements),
                tuple(self._fault(fault) for fault in _names(id, "kills", kills)), self.cases,
                rests_on=tuple(self._rest(id, other) for other in rests_on), needs=_plain(needs),
                given=dict(given or {}), gradient=gradient, conventions=dict(conventions or {}),
                dtypes=None if dtypes is None else _plain(dtypes), statistical=statistical, examples=examples,
                invariance=invariance, deep=deep))
            return function
        return register

    def _fault(self, fault: str) -> str:
        return fault if "/" in fault else f"{self.kind}/{fault}"

    def _rest(self, id: str, other: Callable[..., Any] | str) -> str:
        if isinstance(other, str):
            return other if "/" in other else f"{self.kind}/{other}"
        if other not in _IDS:
            shown = getattr(other, "__name__", other)
            raise HarnessError(f"property={id} rests_on={shown} must be a property; decorate it first")
        return _IDS[other]


def add(made: Property) -> None:
    """Register a property that was built by hand; conduct properties are added for many kinds this way."""
    if made.id in _PROPERTIES:
        raise HarnessError(f"property={made.id} is registered twice; rename one of the functions")
    _PROPERTIES[made.id] = made
    _IDS[made.function] = made.id


def registered(kind: str | None = None) -> list[Property]:
    """Properties registered so far, in order (`registry.properties` imports the specification first)."""
    return [made for made in _PROPERTIES.values() if kind is None or made.kind == kind]


def _docstring(id: str, function: Callable[..., Any]) -> tuple[str, str]:
    """First line and the rest of the docstring."""
    text = inspect.getdoc(function) if function.__doc__ else None
    if not text or not text.strip():
        raise HarnessError(f"property={id} must have a docstring, got none; its first line is what the report shows")
    first, _, rest = text.strip().partition("\n")
    return first.strip(), rest.strip()


def _names(id: str, what: str, names: Iterable[str]) -> tuple[str, ...]:
    found = _plain(names)
    if not found:
        raise HarnessError(f"property={id} must have {what}, got none; name at least one")
    return found


def _plain(names: Iterable[str]) -> tuple[str, ...]:
    """Names as a tuple; one name given as a bare string is one name."""
    return (names,) if isinstance(names, str) else tuple(names)


def _several(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (tuple, list, set, frozenset)) else (value,)
