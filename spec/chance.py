"""Tests of chance that several specifications share, exact or of a known limit; each gives a p-value.

scipy.stats is loaded by the first test that is made, not with the specification: it takes a fifth of the time that a check needs
to start, and most checks make none.
"""
from __future__ import annotations

import importlib
from typing import Any

import torch


def stats() -> Any:
    """scipy.stats."""
    return importlib.import_module("scipy.stats")


def binomial(count: int, trials: int, low: float, high: float) -> float:
    """Two-sided p-value of a binomial count, at the probability in low … high that suits it best."""
    low, high = min(max(low, 0.0), 1.0), min(max(high, 0.0), 1.0)
    binom = stats().binom
    rare, frequent = float(binom.cdf(count, trials, low)), float(binom.sf(count - 1, trials, high))
    return min(1.0, 2 * min(rare, frequent))


def binomials(counts: torch.Tensor, trials: int, probability: float) -> float:
    """The smallest two-sided p-value among binomial counts, times their number (Bonferroni)."""
    seen, binom = counts.unique().numpy(), stats().binom
    sides = binom.cdf(seen, trials, probability), binom.sf(seen - 1, trials, probability)
    return min(1.0, 2 * counts.numel() * float(min(side.min() for side in sides)))


def chi_square(value: float, degrees: int) -> float:
    """Two-sided p-value of a value that has the χ² distribution with so many degrees of freedom."""
    chi2 = stats().chi2
    return 2 * min(float(chi2.cdf(value, degrees)), float(chi2.sf(value, degrees)))


def student(draws: torch.Tensor, mean: float) -> float:
    """Two-sided p-value of Student's test that independent draws have this mean; draws that are all the same have it or not."""
    if bool((draws == draws[0]).all()):
        return float(bool(draws[0] == mean))
    return float(stats().ttest_1samp(draws.numpy(), mean).pvalue)


def mann_whitney(one: Any, other: Any, *, alternative: str = "two-sided") -> float:
    """p-value of the Mann–Whitney test that neither sample tends to be the larger."""
    return float(stats().mannwhitneyu(one, other, alternative=alternative).pvalue)
