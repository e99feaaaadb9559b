"""What is said of a failure beyond its numbers: where, when, and what it is consistent with (layer 4)."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from assay import registry
from assay.run.consistent import Found, Heard, consistent, elements, heard
from assay.run.plan import why_not
from assay.run.predicates import PROBES, Seen, beyond, neighbours, predicate
from assay.subject import Subject

if TYPE_CHECKING:
    from assay.run.judge import Trial, Tried

OTHERS = 4  # further examples on which an alternative must fit
CRASH_PROBES = 6  # each costs a new process
# What may be spent is counted in calls and elements, not in seconds, so that the same failure is told alike everywhere.
PROBING, COMPARING = 32.0, 8.0  # for configurations around the smallest one, and for further examples
ELEMENTS = 2_000  # of all arguments, that cost as much again as the call itself
SAMPLED = 4  # times what a call costs where the bound is found by many runs of the formula
NOTHING = Found()


@dataclass(frozen=True)
class Telling:
    """Sentences about a failure; empty where nothing could be found."""

    beneath: str = ""  # id of a property that this one rests on and that the same example fails
    when: str = ""
    where: str = ""  # in the example that failed first
    found: Found = NOTHING

    def sentences(self) -> Iterator[str]:
        if self.where:
            yield self.where
        if self.beneath:
            yield f"The same example fails {self.beneath} too, on which this rests: look there first."
        if self.when:
            yield f"{self.when[:1].upper()}{self.when[1:]}."
        if self.found.texts:
            yield f"Consistent with: {'; or '.join(self.found.texts)}."

    def fields(self) -> dict[str, Any]:
        """What of it the counterexample holds."""
        told = {"when": self.when, "where": self.where, "consistent_with": list(self.found.texts),
                "faults": list(self.found.faults)}
        return {name: value for name, value in told.items() if value}


def tell(trial: Trial, first: Tried, shrunk: Tried, simplest: Tried) -> Telling:
    """Everything about a failure: `first` as it was found, `shrunk` to the simplest configuration, `simplest` in its values."""
    below = _beneath(trial, shrunk)
    if below:  # what it is consistent with, and when it fails, is told there
        return Telling(beneath=below, where=_where(trial, first, simplest))
    found = NOTHING
    if shrunk.ended is None:
        found = consistent(subject_of(trial, shrunk), _heard(trial, shrunk), _failing(trial, first, shrunk, simplest),
                           _others(trial, first, shrunk), trial.prop.cases.flags)
    return Telling(when=_when(trial, shrunk), where=_where(trial, first, simplest), found=found)


def _beneath(trial: Trial, shrunk: Tried) -> str:
    """A property that this one rests on and that the smallest configuration fails as well."""
    if shrunk.ended is not None:  # each try would cost a new process
        return ""
    for prop in registry.properties(trial.prop.kind):
        held = prop.id in trial.prop.rests_on and prop.cases is trial.prop.cases and not why_not(prop, trial.declaration)
        spoken = prop.dtypes is None or trial.case.dtype in prop.dtypes
        if (held and spoken and prop.cases.admits(shrunk.configuration, trial.declaration, prop.given)
                and trial.of(prop).run(shrunk.configuration).outcome == "wrong"):
            return prop.id
    return ""


def _cost(trial: Trial, tried: Tried) -> float:
    """What running and judging an example cost: one for a small call."""
    sizes = [sum(map(elements, call.arguments.values())) for call, _ in tried.exchanges]
    many = getattr(registry.reference(trial.prop.kind), "BOUND", "") == "sampled"
    return sum(1 + size / ELEMENTS for size in sizes or [0]) * (SAMPLED if many else 1)


def subject_of(trial: Trial, tried: Tried) -> Subject:
    return Subject(trial.declaration, trial.host, trial.dtype, trial.prop.cases.example(tried.configuration, trial.dtype),
                   device=trial.case.device, evaluations=trial.judge.evaluations)


def _heard(trial: Trial, tried: Tried) -> list[Heard]:
    trial.judge.evaluations.every_form = True
    return heard(subject_of(trial, tried), tried.exchanges)


def _failing(trial: Trial, first: Tried, shrunk: Tried, simplest: Tried) -> Iterator[Sequence[Heard]]:
    """Examples that fail too: the simplest, and the one found first."""
    if simplest is not shrunk:
        yield _heard(trial, simplest)
    if first is not shrunk and first.ended is None:
        yield _heard(trial, first)


def _others(trial: Trial, first: Tried, shrunk: Tried) -> Iterator[Sequence[Heard]]:
    """Examples that tell alternatives apart: those that always run."""
    done = {first.configuration.key(), shrunk.configuration.key()}
    left = COMPARING
    boundary = trial.prop.cases.boundary(trial.declaration, trial.prop.given)
    for configuration in [one for one in boundary if one.key() not in done][-OTHERS:]:
        if left <= 0:
            return
        tried = trial.run(configuration)
        left -= _cost(trial, tried)
        if tried.ended is None and tried.outcome in ("right", "wrong"):
            yield _heard(trial, tried)


def _when(trial: Trial, shrunk: Tried) -> str:
    """Probe around the smallest configuration, then around what seems to matter; say what tells failing ones from right ones."""
    if shrunk.ended is not None and shrunk.ended.status == "timeout":
        return ""
    options = trial.prop.cases.options(trial.declaration, trial.prop.given)
    _probe(trial, neighbours(options, shrunk.configuration), shrunk)
    _probe(trial, beyond(options, _seen(trial)), shrunk)
    return predicate(_seen(trial))


def _probe(trial: Trial, picks: Iterator[dict[str, Any]], shrunk: Tried) -> None:
    left, spent = PROBES if shrunk.ended is None else CRASH_PROBES, 0.0
    for picked in picks:
        if left <= 0 or spent >= PROBING / 2:
            return
        made = trial.prop.cases.make(picked, shrunk.configuration.seed, trial.declaration, trial.prop.given)
        if made is not None and made.key() not in trial.seen:
            left -= 1
            spent += _cost(trial, trial.run(made))


def _seen(trial: Trial) -> list[Seen]:
    """What each configuration came to, where that was decided."""
    return [(configuration, outcome == "wrong") for configuration, outcome in trial.seen.values() if outcome in ("wrong", "right")]


def _where(trial: Trial, first: Tried, simplest: Tried) -> str:
    """The place of the wrong elements in the example found first, where the smallest one is too small to show it."""
    told, seen = simplest.decision, first.decision
    if told is None or seen is None or seen.failure is None or not seen.failure.pattern:
        return ""
    if told.failure is not None and told.failure.pattern:
        return ""
    dims = " ".join(f"{letter}={size}" for letter, size in first.configuration.dims.items())
    return f"In the first example that failed ({dims}) the wrong elements are {seen.failure.pattern}."
