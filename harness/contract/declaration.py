"""What `@assay.implements` recorded about one implementation, validated against its kind."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from assay.numbers.arithmetic import Arithmetic

DEFAULT_DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Declaration:
    """One implementation of one kind: its claims, limits, conventions and arithmetic. JSON but for `function` and `cost`."""

    kind: str
    name: str
    function: Callable[..., Any] | None  # None on the parent's and judge's side of an isolated run
    dtypes: tuple[str, ...] = DEFAULT_DTYPES
    devices: tuple[str, ...] | None = None  # None: try what there is
    grad: bool = True
    lacks: frozenset[str] = frozenset()
    offers: frozenset[str] = frozenset()
    limits: Mapping[str, Any] = field(default_factory=dict)  # letter or argument -> frozenset of values, or range
    arithmetic: Arithmetic = field(default_factory=Arithmetic)
    conventions: Mapping[str, str] = field(default_factory=dict)  # complete: every convention of the kind has a value
    keywords: frozenset[str] = frozenset()  # keyword-only arguments of the kind that the signature takes
    cost: Callable[..., Any] | None = None
    version: str = ""
    url: str = ""
    origin: str = "built in"  # or the file / import path it came from
    builtin: bool = False

    def claims(self, feature: str) -> bool:
        """Whether the feature (a name out of FEATURES or a keyword of the kind) is held against the implementation."""
        raise NotImplementedError  # written with contract/

    def allows(self, name: str, value: Any) -> bool:
        """Whether `limits` admit this value of a letter or argument (True where no limit was declared)."""
        raise NotImplementedError  # written with contract/
