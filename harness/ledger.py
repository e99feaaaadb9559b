"""Decisions and the ledger they write themselves into (layer 2).

A property decides with `==`, `<=`, `identical`, `differs`, `member`, `fact` and `statistic`. Each records itself in the ledger
of the example at hand, whatever the property does with its truth value, so that a verdict never hangs on an `assert` that
`python -O` strips. Each also asks whether it could have failed: a comparison that zeros, the negated or the mean output would
pass under the same bar is *undecided*.
"""
from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch

from assay.errors import HarnessError
from assay.numbers.bound import Bounded, comparison_hook

Outcome = Literal["right", "wrong", "undecided"]

# A relation that zeros satisfy by nature counts as decided when the bar is below this share of the signal (numerics 9.4).
SIGNAL_SHARE = 0.25


@dataclass(frozen=True)
class Failure:
    """Where and by how much a comparison failed."""

    text: str
    got: str = ""
    expected: str = ""
    bound: str = ""
    index: tuple[int, ...] = ()
    wrong_elements: int = 0
    elements: int = 0
    pattern: str = ""
    of: str = ""  # what the elements are those of, where it is not the output as it was called first


@dataclass(frozen=True)
class Decision:
    """One recorded comparison. False only when it went wrong."""

    outcome: Outcome
    check: str
    error_over_bound: float = 0.0
    failure: Failure | None = None
    reason: str = ""  # why it is undecided

    def __bool__(self) -> bool:
        return self.outcome != "wrong"


@dataclass
class Ledger:
    """All decisions of one example."""

    decisions: list[Decision] = field(default_factory=list)
    noise: list[float] = field(default_factory=list)  # error over that of same-precision evaluation, one a measured call
    out_of_range: str = ""  # set when an intermediate or its bar may leave the declared type's range

    def record(self, decision: Decision) -> Decision:
        self.decisions.append(decision)
        return decision

    def first_wrong(self) -> Decision | None:
        return next((d for d in self.decisions if d.outcome == "wrong"), None)

    def outcome(self) -> Outcome:
        """Wrong if anything is, else right if anything was decided; out of range is undecided for everyone."""
        if not self.decisions:
            raise HarnessError("the property recorded no decision: it must compare something with ==, <=, identical, …")
        if self.out_of_range:
            return "undecided"
        outcomes = {d.outcome for d in self.decisions}
        return "wrong" if "wrong" in outcomes else "right" if "right" in outcomes else "undecided"

    def worst(self) -> float:
        """Largest error over bound among comparisons that have a bar."""
        return max((d.error_over_bound for d in self.decisions), default=0.0)


_current: ContextVar[Ledger] = ContextVar("assay_ledger")


@contextmanager
def open_ledger() -> Iterator[Ledger]:
    """The ledger that decisions inside the block go to."""
    ledger = Ledger()
    token = _current.set(ledger)
    hook = comparison_hook.set(_compare)
    try:
        yield ledger
    finally:
        comparison_hook.reset(hook)
        _current.reset(token)


def current() -> Ledger:
    """The ledger of the example under way."""
    try:
        return _current.get()
    except LookupError:
        raise HarnessError("no example is under way: comparisons of measured tensors belong inside a property") from None


# ------------------------------------------------------------------------------------------------ comparisons
def split(value: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """(value, bar) in float64 of a measured tensor, a plain tensor or a number."""
    if isinstance(value, Bounded):
        return value.value, value.bar
    number = isinstance(value, (int, float))  # a plain number is float64, whatever torch's default type
    exact = torch.as_tensor(value, dtype=torch.float64 if number else None).detach().to(torch.float64)
    return exact, torch.zeros((), dtype=torch.float64)


def _compare(op: str, left: Any, right: Any) -> Decision:
    if op == "==":
        return equal(left, right)
    if op == "!=":
        return differs(left, right)
    if op == "<=":
        return at_most(left, right)
    if op == ">=":
        return at_most(right, left)
    raise HarnessError(f"comparison {op!r} has no meaning between measured tensors; use ==, <=, >= or !=")


def equal(left: Any, right: Any, *, check: str = "left == right") -> Decision:
    """The bars overlap, element by element."""
    (got, got_bar), (expected, expected_bar) = split(left), split(right)
    got, expected, bar = torch.broadcast_tensors(got, expected, got_bar + expected_bar)
    gap = (got - expected).abs()
    same = (got == expected) | (got.isnan() & expected.isnan())
    wrong = ~(same | (gap <= bar))
    ratio = _ratio(gap, bar, same)
    if bool(wrong.any()):
        failure = replace(_describe(wrong, got, expected, bar, gap), of=getattr(left, "said", "") or getattr(right, "said", ""))
        return current().record(Decision("wrong", check, ratio, failure))
    reason = _vacuous(got, expected, bar, constant=not isinstance(right, Bounded) or bool((expected_bar == 0).all()))
    return current().record(Decision("undecided" if reason else "right", check, ratio, reason=reason))


def _ratio(gap: torch.Tensor, bar: torch.Tensor, same: torch.Tensor) -> float:
    if gap.numel() == 0:
        return 0.0
    ratio = torch.where(same, 0.0, gap / bar)
    return float(ratio.nan_to_num(nan=math.inf, posinf=math.inf).max())


def _vacuous(got: torch.Tensor, expected: torch.Tensor, bar: torch.Tensor, *, constant: bool) -> str:
    """Why this comparison could not have failed: an empty tensor, or zeros or the mean would pass as well."""
    if expected.numel() == 0:
        return "nothing to compare"
    if not constant:
        signal = torch.maximum(got.abs(), expected.abs())
        return "" if bool((bar < SIGNAL_SHARE * signal).any()) else "the bar is wider than a quarter of the signal"
    if bool(((expected.abs() <= bar) | (expected == 0)).all()):
        return "zeros would pass"
    if expected.numel() > 1 and bool(expected.isfinite().all()):
        mean = expected.mean()
        spread = (expected - mean).abs()
        if bool(expected.min() != expected.max()) and bool((spread <= bar).all()):
            return "the mean would pass"
    return ""


def _describe(wrong: torch.Tensor, got: torch.Tensor, expected: torch.Tensor, bar: torch.Tensor,
              gap: torch.Tensor) -> Failure:
    """The worst element of a failed comparison, and how many are wrong."""
    excess = torch.where(wrong, (gap / bar.clamp_min(1e-300)).nan_to_num(nan=math.inf, posinf=math.inf), -1.0)
    flat = int(excess.reshape(-1).argmax())
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), got.shape)) if got.dim() else ()
    at = (lambda t: float(t.reshape(-1)[flat])) if got.dim() else float
    return Failure(
        text=f"{int(wrong.sum())} of {wrong.numel()} elements differ", got=f"{at(got):.9g}",
        expected=f"{at(expected):.9g}", bound=f"{at(bar):.3g}", index=index, wrong_elements=int(wrong.sum()),
        elements=wrong.numel(), pattern=place(wrong, expected),
    )


def place(wrong: torch.Tensor, expected: torch.Tensor | None = None) -> str:
    """Where the wrong elements lie, when it can be said in a few words ("only the last column"), else by value."""
    if wrong.dim() == 0 or bool(wrong.all()) or not bool(wrong.any()):
        return ""
    triangle = _triangle(wrong)
    if triangle:
        return triangle
    names = {-1: "column", -2: "row", -3: "head" if wrong.dim() > 3 else "batch entry", -4: "batch entry"}
    found = []
    for axis in range(-1, -min(wrong.dim(), 4) - 1, -1):
        others = [d for d in range(wrong.dim()) if d != axis % wrong.dim()]
        hit = wrong.any(dim=others) if others else wrong
        phrase = _axis_phrase(hit.nonzero().flatten().tolist(), wrong.shape[axis], names[axis])
        if phrase:
            found.append(phrase)
    return ", ".join(found) or ("" if expected is None else _by_value(wrong, expected))


def _axis_phrase(where: list[int], size: int, name: str) -> str:
    if size < 2 or len(where) == size:
        return ""
    if where == [size - 1]:
        return f"only the last {name}"
    if where == [0]:
        return f"only the first {name}"
    if len(where) == 1:
        return f"only {name} {where[0]}"
    if where == list(range(where[0], size)):
        return f"{name}s from {where[0]} on"
    if where == list(range(where[-1] + 1)):
        return f"{name}s up to {where[-1]}"
    return _periodic(where, size, name)


def _periodic(where: list[int], size: int, name: str) -> str:
    """Odd or even ones, the last (or another) one of each tile."""
    period, first = where[1] - where[0], where[0]
    if size < 2 * period or first >= period or where != list(range(first, size, period)):
        return f"{name}s {where[0]} to {where[-1]}" if where == list(range(where[0], where[-1] + 1)) else ""
    if period == 2:
        return f"{'odd' if first else 'even'} {name}s"
    if first in (0, period - 1):
        return f"the {'last' if first else 'first'} {name} of each {period}"
    return f"{name} {first} of each {period}"


def _triangle(wrong: torch.Tensor) -> str:
    """Beside the diagonal that ends at the bottom right, the same in every plane."""
    if wrong.dim() < 2 or min(wrong.shape[-2:]) < 3:
        return ""
    shift = wrong.shape[-1] - wrong.shape[-2]
    ones = torch.ones(wrong.shape[-2:], dtype=torch.bool)
    sides = {"only above the diagonal": ones.triu(shift + 1), "only below the diagonal": ones.tril(shift - 1),
             "only on the diagonal": ones.triu(shift).tril(shift)}
    return next((text for text, side in sides.items() if torch.equal(wrong, side.expand_as(wrong))), "")


def _by_value(wrong: torch.Tensor, expected: torch.Tensor) -> str:
    """Exactly the elements whose expected value is of one sort."""
    sorts = {"not finite": ~expected.isfinite(), "0": expected == 0, "negative": expected < 0, "positive": expected > 0}
    for text, sort in sorts.items():
        if torch.equal(sort, wrong):
            return f"exactly where the expected value is {text}"
    size, right = expected.abs(), ~wrong
    if int(right.sum()) < 2 or int(wrong.sum()) < 2:
        return ""
    if bool(size[wrong].min() > size[right].max()):
        return f"exactly where the expected value is {float(size[wrong].min()):.4g} or more in size"
    if bool(size[wrong].max() < size[right].min()):
        return f"exactly where the expected value is {float(size[wrong].max()):.4g} or less in size"
    return ""


def at_most(left: Any, right: Any, *, check: str = "left <= right") -> Decision:
    """left ≤ right within the bars, element by element."""
    (low, low_bar), (high, high_bar) = split(left), split(right)
    low, high, bar = torch.broadcast_tensors(low, high, low_bar + high_bar)
    wrong = ~(low <= high + bar)
    if bool(wrong.any()):
        return current().record(Decision("wrong", check, math.inf, _describe(wrong, low, high, bar, low - high)))
    reason = "nothing to compare" if low.numel() == 0 else "" if bool(bar.isfinite().any()) else "the bar is infinite"
    return current().record(Decision("undecided" if reason else "right", check, reason=reason))


def differs(left: Any, right: Any, *, check: str = "left != right") -> Decision:
    """Provably different somewhere: the bars do not overlap. Undecided where bars as wide as the signal hide it."""
    (got, got_bar), (other, other_bar) = split(left), split(right)
    got, other, bar = torch.broadcast_tensors(got, other, got_bar + other_bar)
    if bool(((got - other).abs() > bar).any()):
        return current().record(Decision("right", check))
    if got.numel() == 0 or bool((bar >= SIGNAL_SHARE * torch.maximum(got.abs(), other.abs())).any()):
        return current().record(Decision("undecided", check, reason="the bar is too wide to tell them apart"))
    failure = Failure("the two are equal within the bar, and should differ", elements=got.numel())
    return current().record(Decision("wrong", check, math.inf, failure))


def provably_differ(left: Any, right: Any) -> bool:
    """Whether two tensors differ beyond their bars; a question for witnesses, recorded nowhere."""
    (got, got_bar), (other, other_bar) = split(left), split(right)
    return bool(((got - other).abs() > got_bar + other_bar).any())


def identical(left: Any, right: Any, *, witness: Any = True, check: str = "identical(left, right)") -> Decision:
    """Equal values, bit for bit but for the sign of zero. `witness`: evidence on the same input that the change reaches the
    output where it should (a bool, or a pair of tensors that must differ); without it the decision is undecided."""
    got, expected = torch.broadcast_tensors(split(left)[0], split(right)[0])
    wrong = ~((got == expected) | (got.isnan() & expected.isnan()))
    if bool(wrong.any()):
        gap = (got - expected).abs()
        return current().record(Decision("wrong", check, math.inf,
                                         _describe(wrong, got, expected, torch.zeros_like(gap), gap)))
    seen = provably_differ(*witness) if isinstance(witness, tuple) else bool(witness)
    reason = "nothing to compare" if got.numel() == 0 else "" if seen else "nothing shows that the change matters elsewhere"
    return current().record(Decision("undecided" if reason else "right", check, reason=reason))


def fact(holds: bool, text: str, *, got: str = "", expected: str = "", decided: bool = True,
         check: str = "") -> Decision:
    """A discrete observation: a shape, a type, a set of indices. `text` says what went wrong when it does not hold."""
    if not holds:
        return current().record(Decision("wrong", check or text, math.inf, Failure(text, got, expected)))
    return current().record(Decision("right" if decided else "undecided", check or text,
                                     reason="" if decided else "it holds by nature here"))


def member(outcome: Sequence[int], required: Sequence[int], allowed: Sequence[int], *, text: str) -> Decision:
    """A discrete choice by margins: `outcome` holds all of `required` and nothing outside `allowed`."""
    got, must, may = set(outcome), set(required), set(allowed)
    return fact(must <= got <= may, text, got=str(sorted(got)),
                expected=f"all of {sorted(must)}, nothing outside {sorted(may)}",
                decided=bool(must) or got < may)


def statistic(p_value: float, alpha: float, *, text: str, got: str = "", expected: str = "") -> Decision:
    """A statistical test with false-alarm rate `alpha` for this one decision."""
    return fact(bool(p_value >= alpha), f"{text} (p = {p_value:.3g}, limit {alpha:.3g})", got=got, expected=expected)
