"""Properties at sizes beyond the usual: one axis at a time is long, the others short, so that an example stays cheap.

`spec/sizes.py` and `spec/layer_sizes.py` hold the tables.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from assay.cases import Example
from assay.properties import Specification
from assay.spec.conduct import formula
from assay.subject import Subject

FAMILIES = ("integers", "normal")
Check = Callable[[Subject, Example], None]


def gradients(subject: Subject, example: Example) -> None:
    """Every gradient lies within its bar of the formula's."""
    if not subject.kind.differentiable:
        return
    found, exact = subject.gradients(**example), subject.exact_gradients(**example)
    for name, gradient in found.items():
        assert gradient == exact[name]


@dataclass(frozen=True)
class Larger:
    """One property: what the checks say, where some axes are long.

    given: sizes and options of its examples. output, gradient: what outputs are held by, and gradients where they are claimed.
    rests_on: the property that must hold before this one is asked. layout: beside a contiguous one. conventions: as of a property,
    where the checks hold for these alone. examples: drawn besides those of the boundary.
    """

    spec: Specification
    name: str
    sentence: str
    statement: str
    kills: tuple[str, ...]
    given: Mapping[str, Any]
    output: Check = formula
    gradient: Check | None = gradients
    rests_on: str = "output_is_the_formula"
    needs: tuple[str, ...] = ()
    conventions: Mapping[str, Any] = field(default_factory=dict)
    layout: str = "head_last"
    examples: int = 3

    def add(self) -> None:
        """Add it to its kind."""
        def prop(subject: Subject, example: Example) -> None:
            self.output(subject, example)
            if self.gradient is not None and subject.declaration.claims("gradients"):
                self.gradient(subject, example)

        prop.__name__, prop.__doc__, prop.__module__ = self.name, self.sentence, __name__
        families = tuple(name for name in FAMILIES if name in self.spec.cases.families)
        types = ("float32",) if self.spec.kind in ("alibi", "sinusoidal") else None  # no input has a type to follow
        self.spec.holds(self.statement, kills=self.kills, rests_on=(f"{self.spec.kind}/{self.rests_on}",), needs=self.needs,
                        conventions=self.conventions, dtypes=types, examples=self.examples,
                        given={"family": families, "layout": ("contiguous", self.layout), **self.given})(prop)
