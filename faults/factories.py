"""Planting a class of models through its factory, as kinds take it whose objects are made from a seed."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Made = TypeVar("Made")


def planted(kind: str, mark: Callable[..., Any], summary: str, **options: Any) -> Callable[[type[Made]], type[Made]]:
    """Register a class by a factory that takes its seed, under the class' name in small letters. mark: `fault` or `benign`."""
    def register(made: type[Made]) -> type[Made]:
        def factory(*, seed: int) -> Made:
            return made(seed)  # type: ignore[call-arg]

        factory.__name__ = factory.__qualname__ = "".join(f"_{c.lower()}" if c.isupper() else c for c in made.__name__).lstrip("_")
        factory.__module__, factory.__doc__ = made.__module__, summary
        mark(kind, summary=summary, **options)(factory)
        return made

    return register
