"""What families of Hugging Face's language models do not claim, and why: data, one line of evidence for each.

A model type without an entry claims everything: causality, a cache that takes single tokens and chunks, rows that do not touch
each other, padding on either side where it takes positions, and one attention for all kernels.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final


@dataclass(frozen=True)
class Family:
    """Model types that share a trait. evidence: what in the library's source, or in the paper, shows that it is meant so.

    bounded: a table of learned positions ends; longer sequences are refused. lacks: features not claimed. conventions: choices
    other than the default. withheld: offers that it does not make.
    """

    types: tuple[str, ...]
    evidence: str
    bounded: str = ""  # the configuration's name for the number of places
    lacks: frozenset[str] = frozenset()
    withheld: frozenset[str] = frozenset()
    conventions: Mapping[str, Any] = field(default_factory=dict)

    def told(self) -> str:
        """What it says, in words."""
        said = [f"at most `{self.bounded}` tokens"] if self.bounded else []
        said += [f"no {name}" for name in sorted(self.lacks)] + [f"{name} not offered" for name in sorted(self.withheld)]
        return ", ".join(said + [f"{name} = {value}" for name, value in self.conventions.items()])


def _family(types: str, evidence: str, *, bounded: str = "", lacks: str = "", withheld: str = "", **conventions: Any) -> Family:
    return Family(tuple(types.split()), evidence, bounded, frozenset(lacks.split()), frozenset(withheld.split()), conventions)


FAMILIES: Final[tuple[Family, ...]] = ()


def of(model_type: str) -> tuple[Family, ...]:
    """The entries that speak of a model type."""
    return tuple(family for family in FAMILIES if model_type in family.types)
