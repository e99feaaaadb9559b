"""When a failure appears: "fails exactly when causal=True and Tq < Tk", found by probing configurations around it (layer 4).

"Exactly" is told only when it separates everything that was tried, "only" when all failing ones meet it; and each part of it was
probed on both sides with the rest held.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from assay.cases import Configuration
from assay.contract.kinds import KINDS

PROBES = 16  # configurations around the smallest one that are tried, and as many around what was found of them
PARTS = 3  # of one predicate at most
ENOUGH = 8  # configurations without a right one before it is said that all fail

COMPARABLE = (  # sizes of one sort: only these are compared with each other
    ("T", "Tq", "Tk", "S", "window", "N"), ("H", "G"), ("D", "Dv", "C", "F", "rotary_dim"), ("E", "K", "top_k", "V"),
    ("rows", "columns", "P"), ("patch_size", "Hi", "Wi"))
PERIODS = (2, 4, 8)

Seen = tuple[Configuration, bool]  # and whether it fails
Test = Callable[[dict[str, Any]], bool]


@dataclass(frozen=True)
class Atom:
    """One condition on a configuration."""

    text: str
    test: Test
    names: tuple[str, ...]  # what it speaks of
    excluding: bool = False  # it rules out single values: worth saying where it makes the whole exact, not alone

    def holds(self, configuration: Configuration) -> bool:
        return self.test(facts(configuration))


def facts(configuration: Configuration) -> dict[str, Any]:
    """Everything that a configuration fixes, but for its seed."""
    return {**configuration.dims, **configuration.flags, "values": configuration.family, "layout": configuration.layout}


def predicate(seen: Sequence[Seen]) -> str:
    """What all failing configurations have in common, and no other has where that can be said in a few words; else empty."""
    wrong, right = ([one for one, fails in seen if fails is sort] for sort in (True, False))
    if len(wrong) < 2:
        return ""
    if not right:
        return f"it fails on all {len(wrong)} configurations tried" if len(wrong) >= ENOUGH else ""
    exact, chosen = conditions(seen)
    if not chosen:
        return ""
    counts = f"{len(wrong)} failing and {len(right)} right examples tried"
    return f"fails {'exactly' if exact else 'only'} when {' and '.join(atom.text for atom in chosen)} ({counts})"


def conditions(seen: Sequence[Seen]) -> tuple[bool, list[Atom]]:
    """Conditions that all failing configurations meet, each probed on both sides, and whether no right one meets them all."""
    wrong, right = ([one for one, fails in seen if fails is sort] for sort in (True, False))
    if not wrong or not right:
        return False, []
    atoms = [atom for atom in _atoms(wrong, right) if all(atom.holds(one) for one in wrong)
             and _paired(atom, wrong, right)]
    chosen = _cover(atoms, right)
    if chosen and all(_both_sides(atom, chosen, right) for atom in chosen):
        return True, chosen
    return False, _necessary([atom for atom in atoms if not atom.excluding], right)


def _cover(atoms: Sequence[Atom], right: Sequence[Configuration]) -> list[Atom]:
    """The fewest conditions that leave no right configuration in; the plainest come first."""
    for size in range(1, PARTS + 1):
        for chosen in combinations(atoms[: 40 if size < PARTS else 16], size):
            if not any(all(atom.holds(one) for atom in chosen) for one in right):
                return list(chosen)
    return []


def _necessary(atoms: Sequence[Atom], right: Sequence[Configuration]) -> list[Atom]:
    """Conditions without which it never failed: those that keep out most come first, each at least two that the others let in."""
    chosen: list[Atom] = []
    left = list(right)
    while len(chosen) < PARTS and left:
        best = max(atoms, key=lambda atom: sum(not atom.holds(one) for one in left), default=None)
        if best is None or sum(not best.holds(one) for one in left) < 2:
            break
        chosen.append(best)
        left = [one for one in left if best.holds(one)]
    return [atom for atom in chosen if _both_sides(atom, chosen, right)]


def _both_sides(atom: Atom, chosen: Sequence[Atom], right: Sequence[Configuration]) -> bool:
    """Whether some right configuration lacks this condition alone."""
    return any(not atom.holds(one) and all(other.holds(one) for other in chosen if other is not atom) for one in right)


def _paired(atom: Atom, wrong: Sequence[Configuration], right: Sequence[Configuration]) -> bool:
    """Whether a failing and a right configuration are alike in all but what the condition speaks of."""
    def rest(configuration: Configuration) -> str:
        return repr({name: value for name, value in facts(configuration).items() if name not in atom.names})

    failing = {rest(one) for one in wrong}
    return any(not atom.holds(one) and rest(one) in failing for one in right)


def _atoms(wrong: Sequence[Configuration], right: Sequence[Configuration]) -> Iterator[Atom]:
    """Conditions to try, the plainest first: arguments of the kind, relations of sizes, then how the example was drawn."""
    told, others = [facts(one) for one in wrong], [facts(one) for one in right]
    names = list(told[0])
    arguments = [name for name in names if name in KINDS[wrong[0].kind].options]
    columns = {name: ([one.get(name) for one in told], [one.get(name) for one in others]) for name in names}
    for name in arguments:
        yield from _values(name, *columns[name])
    for group in COMPARABLE:
        for left, right_name in combinations([name for name in group if name in names], 2):
            yield from _relations(left, right_name)
    for name in names:
        yield from _sizes(name, *columns[name])
    for name in (name for name in names if name not in arguments):
        yield from _values(name, *columns[name])


def _values(name: str, wrong: list[Any], right: list[Any]) -> Iterator[Atom]:
    """name=value; name given; name not some value."""
    first = wrong[0]
    if not _is_number(first) and all(value == first for value in wrong):
        text = f"{name}={first}" if first not in (None, "none") else f"no {name} is given"
        yield Atom(text, lambda one: one.get(name) == first, (name,))
    elif None in right or "none" in right:
        yield Atom(f"{name} is given", lambda one: one.get(name) not in (None, "none"), (name,))
    for value in dict.fromkeys(right):
        if isinstance(value, str) and value not in wrong:
            yield Atom(f"{name} is not {value}", lambda one, value=value: one.get(name) != value, (name,), True)  # type: ignore[misc]


def _relations(left: str, right: str) -> Iterator[Atom]:
    def compared(test: Callable[[Any, Any], bool]) -> Test:
        return lambda one: _is_number(one.get(left)) and _is_number(one.get(right)) and test(one[left], one[right])

    yield Atom(f"{left} < {right}", compared(lambda a, b: a < b), (left, right))
    yield Atom(f"{left} > {right}", compared(lambda a, b: a > b), (left, right))
    yield Atom(f"{left} ≠ {right}", compared(lambda a, b: a != b), (left, right))
    yield Atom(f"{left} = {right}", compared(lambda a, b: a == b), (left, right))


def _sizes(name: str, wrong: list[Any], right: list[Any]) -> Iterator[Atom]:
    """Thresholds, parity, multiples, one size."""
    if not all(map(_is_number, wrong)):
        return
    low, high = min(wrong), max(wrong)
    sizes = [value for value in right if _is_number(value)]
    if any(value < low for value in sizes):
        yield Atom(f"{name} ≥ {low}", lambda one: _is_number(one.get(name)) and one[name] >= low, (name,))
    if any(value > high for value in sizes):
        yield Atom(f"{name} ≤ {high}", lambda one: _is_number(one.get(name)) and one[name] <= high, (name,))
    if len(set(wrong)) > 1 and all(isinstance(value, int) for value in wrong):
        for period in PERIODS:
            yield from _periods(name, period)


def _periods(name: str, period: int) -> Iterator[Atom]:
    whole = f"{name} is even" if period == 2 else f"{name} is a multiple of {period}"
    broken = f"{name} is odd" if period == 2 else f"{name} is no multiple of {period}"
    yield Atom(whole, lambda one: isinstance(one.get(name), int) and one[name] % period == 0, (name,), True)
    yield Atom(broken, lambda one: isinstance(one.get(name), int) and one[name] % period != 0, (name,), True)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


# ------------------------------------------------------------------------------------------------ what to probe
def neighbours(options: Mapping[str, tuple[Any, ...]], at: Configuration) -> Iterator[dict[str, Any]]:
    """Picks with one name changed, every name once before any a second time; the sizes next to the present one first."""
    current = {**at.dims, **at.flags, "family": at.family, "layout": at.layout}
    queues = {name: _around(choices, current[name]) for name, choices in options.items() if name in current}
    while any(queues.values()):
        for name, queue in queues.items():
            if queue:
                yield {**current, name: queue.pop(0)}


def beyond(options: Mapping[str, tuple[Any, ...]], seen: Sequence[Seen]) -> Iterator[dict[str, Any]]:
    """Picks around the right configurations that lack one of the conditions found: is it really without it that none fails?"""
    _, chosen = conditions(seen)
    right = [one for one, fails in seen if not fails]
    lacking = [next((one for one in reversed(right) if not atom.holds(one)
                     and all(other.holds(one) for other in chosen if other is not atom)), None) for atom in chosen]
    rounds = [neighbours(options, one) for one in lacking if one is not None]
    while rounds:
        for picks in list(rounds):
            picked = next(picks, None)
            if picked is None:
                rounds.remove(picks)
            else:
                yield picked


def _around(choices: Sequence[Any], value: Any) -> list[Any]:
    others = [choice for choice in dict.fromkeys(choices) if choice != value or type(choice) is not type(value)]
    if _is_number(value) and all(map(_is_number, others)):
        return sorted((choice for choice in others if choice), key=lambda choice: abs(choice - value))
    return others
