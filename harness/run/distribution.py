"""Where a case's errors lie between 0 and their bound: over all right examples, by value family, and by size."""
from __future__ import annotations

import math
import statistics
from typing import Any

from assay.cases import Configuration
from assay.run.events import DISTRIBUTIONS, SPREAD, place_of

SIZES = (1, 8, 32, 128)  # upper ends of the ranges of an example's largest dim that are told apart; one more is open


class Distribution:
    """Error over bound of each right example, kept until the case is over."""

    def __init__(self) -> None:
        self._found: list[tuple[float, str, str]] = []

    def add(self, ratio: float, configuration: Configuration) -> None:
        """One right example."""
        if math.isfinite(ratio):
            self._found.append((ratio, configuration.family, size(configuration)))

    def to_json(self) -> dict[str, Any]:
        """Counts by half decades, and for each family and size: examples, median, worst. Nothing where all errors are 0."""
        ratios = [ratio for ratio, _, _ in self._found]
        if not any(ratios):
            return {}
        spread = [0] * SPREAD
        for ratio in ratios:
            spread[place_of(ratio)] += 1
        groups = {name: self._by(place) for place, name in enumerate(DISTRIBUTIONS, 1)}
        return {"spread": spread, **groups}

    def _by(self, place: int) -> dict[str, list[float]]:
        groups: dict[str, list[float]] = {}
        for one in self._found:
            groups.setdefault(str(one[place]), []).append(one[0])
        return {name: [len(of), _rounded(statistics.median(of)), _rounded(max(of))] for name, of in sorted(groups.items())}


def size(configuration: Configuration) -> str:
    """The range that the largest dim lies in: `1`, `2–8`, …, `over 128`."""
    largest = max(configuration.dims.values(), default=1)
    lower = 1
    for upper in SIZES:
        if largest <= upper:
            return f"{lower}–{upper}" if upper > lower else str(upper)
        lower = upper + 1
    return f"over {SIZES[-1]}"


def _rounded(ratio: float) -> float:
    return float(f"{ratio:.3g}")
