"""One case to its verdict: draw examples, run the property on each, shrink the first failure, say what happened (layer 4)."""
from __future__ import annotations

import contextlib
import hashlib
import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import hypothesis
import torch

from assay.cases import Configuration, Example
from assay.contract.declaration import Declaration
from assay.errors import ExampleOverError, HostError, NotClaimedError, NotExercisedError, NotSupportedError, PathNotTakenError
from assay.hosting import Answer, Call, Host, Meanwhile, nothing
from assay.ledger import Decision, Ledger, open_ledger
from assay.properties import Property
from assay.run import events
from assay.run.distribution import Distribution
from assay.run.explain import failure_fields
from assay.run.plan import CaseSpec
from assay.run.simplify import simplify
from assay.run.telling import Telling, tell
from assay.subject import CACHED, Evaluations, Subject

DRAWN = {"quick": 5, "standard": 20, "deep": 1000}
SUSPECT = 3.0  # times the root mean square error of same-precision evaluation (numerics 9.3)
SHRINK_TRIES = 80  # configurations tried while shrinking one failure
CRASH_TRIES = 12  # the same when each try costs a new host process


@dataclass(frozen=True)
class Settings:
    """What a run fixes for all its cases."""

    profile: str = "standard"
    seed: int = 0
    timeout: float = 60.0
    shrink_tries: int = SHRINK_TRIES  # the doctor asks whether there is a failure, not for the smallest
    evaluations_kept: int = CACHED
    most: int | None = None  # examples a case at most, those of the boundary first: an audit of many models looks once at each


@dataclass
class Tried:
    """What one example came to."""

    configuration: Configuration
    outcome: str  # right, wrong, undecided, not_supported
    ledger: Ledger | None = None
    ended: HostError | None = None  # the host died, hung, or ran out of memory
    reason: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    unseen: bool = False  # undecided because what the property speaks of cannot be observed
    missed: bool = False  # undecided because the path that the implementation stands for was not taken
    exchanges: tuple[tuple[Call, Answer], ...] = ()  # every call of it with what came back
    unanswered: tuple[Call, ...] = ()  # the call in which the host ended

    @property
    def decision(self) -> Decision | None:
        return self.ledger.first_wrong() if self.ledger else None


@dataclass
class Tally:
    """Examples counted, and what is worth remembering of them."""

    right: int = 0
    wrong: int = 0
    undecided: int = 0
    not_supported: int = 0
    unseen: int = 0  # of the undecided
    missed: str = ""  # why a path that the implementation stands for was not taken, where that happened
    worst: float = 0.0
    worst_at: str = ""
    reasons: dict[str, int] = field(default_factory=dict)
    noise: list[float] = field(default_factory=list)  # error over the usual error at this precision, one an example
    spread: Distribution = field(default_factory=Distribution)

    def add(self, tried: Tried) -> None:
        setattr(self, tried.outcome, getattr(self, tried.outcome) + 1)
        self.unseen += tried.unseen
        self.missed = self.missed or (tried.reason if tried.missed else "")
        if tried.outcome in ("undecided", "not_supported"):
            self.reasons[tried.reason] = self.reasons.get(tried.reason, 0) + 1
        if tried.ledger and tried.outcome == "right":
            self.spread.add(tried.ledger.worst(), tried.configuration)
        if tried.ledger and tried.outcome == "right" and tried.ledger.noise:
            self.noise.append(max(tried.ledger.noise))
        if tried.ledger and tried.outcome == "right" and tried.ledger.worst() > self.worst:
            self.worst, self.worst_at = tried.ledger.worst(), tried.configuration.key()

    @property
    def decided(self) -> int:
        return self.right + self.wrong

    @property
    def total(self) -> int:
        return self.decided + self.undecided + self.not_supported

    def counts(self) -> dict[str, int]:
        return {"right": self.right, "wrong": self.wrong, "undecided": self.undecided, "not_supported": self.not_supported}


class Judge:
    """Judges the cases of one implementation after another; keeps evaluated references between them."""

    def __init__(self, settings: Settings, progress: Callable[[str], None] = lambda text: None) -> None:
        self.settings = settings
        self.evaluations = Evaluations(settings.evaluations_kept)
        self.progress = progress

    def judge(self, case: CaseSpec, prop: Property, declaration: Declaration, host: Host) -> dict[str, Any]:
        """The result of one case, in the shape of a report's result line."""
        started = time.perf_counter()
        trial = Trial(self, case, prop, declaration, host)
        tally, failed = trial.search()
        found = _decided(tally) if failed is None else trial.explain(failed)
        found["values"] = {**found.get("values", {}), **tally.spread.to_json()}
        return dict(events.result(
            id=case.id, property=prop.id, statements=prop.statements, implementation=case.implementation, device=case.device,
            dtype=case.dtype, sentence=prop.sentence, rests_on=prop.rests_on, examples=tally.counts(),
            seconds=time.perf_counter() - started, **found))

    def again(self, case: CaseSpec, prop: Property, declaration: Declaration, host: Host,
              configuration: Configuration) -> dict[str, Any]:
        """The result of this very example, neither searched for nor shrunk: what a replay or a waiver asks."""
        started = time.perf_counter()
        trial, tally = Trial(self, case, prop, declaration, host), Tally()
        tried = trial.run(configuration)
        tally.add(tried)
        found = failure_fields(trial, tried, Telling()) if tried.outcome == "wrong" else _single(tried)
        return dict(events.result(
            id=case.id, property=prop.id, statements=prop.statements, implementation=case.implementation, device=case.device,
            dtype=case.dtype, sentence=prop.sentence, rests_on=prop.rests_on, examples=tally.counts(),
            seconds=time.perf_counter() - started, **found))


def _single(tried: Tried) -> dict[str, Any]:
    """What one example that is not wrong says for itself."""
    status = {"right": "pass", "undecided": "inconclusive", "not_supported": "not-supported"}[tried.outcome]
    status = "not-exercised" if tried.unseen else status
    return {"status": status, "message": f"this example is {tried.outcome.replace('_', ' ')} now"
            + (f": {tried.reason}" if tried.reason else "")}


def _decided(tally: Tally) -> dict[str, Any]:
    """pass, suspect, inconclusive, not-supported or not-exercised, from the counts of a case without a wrong example."""
    enough = max(3, math.ceil(tally.total / 4))
    main = max(tally.reasons, key=lambda reason: tally.reasons[reason], default="")
    found: dict[str, Any] = {"error_over_bound": tally.worst, "values": {"error_over_bound": tally.worst}}
    if tally.missed:  # what ran in its place is not what was to be judged, however much else was right
        return found | {"status": "not-exercised", "message": tally.missed}
    if tally.right >= enough and len(tally.noise) >= 3 and statistics.median(tally.noise) > SUSPECT:
        typical = statistics.median(tally.noise)
        return found | {"status": "suspect", "suspect": {"error over that of same-precision evaluation, median": typical},
                        "message": f"all {tally.right} decided examples lie within the proven bound, yet the error is typically "
                        f"{typical:.3g} times that of evaluating the formula in the same precision"}
    if tally.right >= enough:
        return found | {"status": "pass", "message": f"{tally.right} of {tally.total} examples decided, all right"}
    if tally.not_supported > tally.undecided:
        return found | {"status": "not-supported", "message": f"{tally.not_supported} of {tally.total} examples raised "
                        f"\"not implemented\": {main}"}
    if tally.unseen > tally.total / 2:
        return found | {"status": "not-exercised", "message": main}
    return found | {"status": "inconclusive", "message": f"only {tally.right} of {tally.total} examples could be decided: "
                    f"{main or 'no example could be drawn within the declared limits'}"}


class Recorded:
    """A host whose answers are kept, so that they can be judged a second time without calling again."""

    def __init__(self, host: Host, answers: list[Answer] | None = None) -> None:
        self._host = host
        self._given = list(answers or [])
        self.exchanges: list[tuple[Call, Answer]] = []
        self.unanswered: tuple[Call, ...] = ()

    def again(self) -> Recorded:
        """The same answers in the same order, then the host itself."""
        return Recorded(self._host, [answer for _, answer in self.exchanges])

    def describe(self) -> list[Mapping[str, Any]]:
        return self._host.describe()

    def call(self, call: Call, meanwhile: Meanwhile = nothing) -> Answer:
        self.unanswered = (call,)
        answer = self._given.pop(0) if self._given else self._host.call(call, meanwhile)
        self.unanswered = ()
        self.exchanges.append((call, answer))
        return answer

    def close(self) -> None:
        self._host.close()


class _FoundError(Exception):
    """Ends hypothesis' search: a failing example is in hand."""


class Trial:
    """The search for a wrong example of one case, and the explanation of the first one found."""

    def __init__(self, judge: Judge, case: CaseSpec, prop: Property, declaration: Declaration, host: Host) -> None:
        self.judge, self.case, self.prop = judge, case, prop
        self.declaration, self.host = declaration, host
        self.dtype = getattr(torch, case.dtype)
        self.seen: dict[str, tuple[Configuration, str]] = {}  # by key: what each drawn configuration came to

    def of(self, prop: Property) -> Trial:
        """The same of another property of the kind."""
        return Trial(self.judge, self.case, prop, self.declaration, self.host)

    # ---------------------------------------------------------------------------------------- one example
    def run(self, configuration: Configuration) -> Tried:
        """One example on the implementation as it stands."""
        self.judge.progress(configuration.key())
        example = self.prop.cases.example(configuration, self.dtype)
        tried = self.run_example(configuration, example)
        if not configuration.values:
            self.seen[configuration.key()] = configuration, tried.outcome
        return tried

    def run_example(self, configuration: Configuration, example: Example) -> Tried:
        """By the usual form first; what is wrong by that is judged again, on the same answers, by all forms."""
        self.judge.evaluations.every_form = False
        self.judge.evaluations.refusal_allowed = self.prop.cases.may_be_refused(configuration)
        self.judge.evaluations.weigh = self.prop.id.endswith("_is_the_formula")
        recorded = Recorded(self.host)
        tried = self._run_once(configuration, example, recorded)
        if tried.outcome == "wrong" and tried.ended is None:
            self.judge.evaluations.every_form = True
            recorded = recorded.again()
            tried = self._run_once(configuration, example, recorded)
        tried.exchanges, tried.unanswered = tuple(recorded.exchanges), recorded.unanswered
        return tried

    def _run_once(self, configuration: Configuration, example: Example, host: Recorded) -> Tried:
        subject = Subject(self.declaration, host, self.dtype, example, device=self.case.device,
                          evaluations=self.judge.evaluations)
        with open_ledger() as ledger:
            try:
                self.prop.function(subject, example)
            except (NotSupportedError, NotClaimedError) as missing:
                return Tried(configuration, "not_supported", ledger, reason=str(missing)[:200] or "no message")
            except NotExercisedError as unseen:
                return Tried(configuration, "undecided", ledger, reason=str(unseen), unseen=True,
                             missed=isinstance(unseen, PathNotTakenError))
            except HostError as ended:
                return Tried(configuration, "wrong", ledger, ended=ended, arguments=example.arguments)
            except (AssertionError, ExampleOverError):
                pass  # the decision that ended the property is in the ledger
            except (IndexError, RuntimeError, TypeError, ValueError):
                _blame_form(subject, host)
                if ledger.first_wrong() is None:
                    raise
            outcome = ledger.outcome()
        reason = ledger.out_of_range or next((d.reason for d in ledger.decisions if d.reason), "")
        return Tried(configuration, outcome, ledger, reason=reason, arguments=example.arguments)

    # ---------------------------------------------------------------------------------------- the search
    def search(self) -> tuple[Tally, Tried | None]:
        """The boundary examples, then hypothesis'; stops at the first wrong one."""
        tally = Tally()
        cases, claims, given = self.prop.cases, self.declaration, self.prop.given
        for configuration in cases.boundary(claims, given)[: self.judge.settings.most]:
            tried = self.run(configuration)
            tally.add(tried)
            if tried.outcome == "wrong":
                return tally, tried
        return tally, self._draw(tally)

    def _draw(self, tally: Tally) -> Tried | None:
        wanted = self.prop.examples if self.prop.examples is not None else DRAWN[self.judge.settings.profile]
        if self.judge.settings.most is not None:
            wanted = min(wanted, self.judge.settings.most - tally.total)
        if wanted <= 0:
            return None
        found: list[Tried] = []

        def one(configuration: Configuration | None) -> None:
            if found:
                raise _FoundError
            if configuration is None:
                hypothesis.reject()
            tried = self.run(configuration)
            tally.add(tried)
            if tried.outcome == "wrong":
                found.append(tried)
                raise _FoundError
            if tried.ledger and math.isfinite(tried.ledger.worst()):
                hypothesis.target(tried.ledger.worst())

        drawn: Any = hypothesis.given(self.prop.cases.strategy(self.declaration, self.prop.given))
        search: Any = hypothesis.seed(self._seed())(hypothesis.settings(
            max_examples=wanted, database=None, deadline=None, derandomize=False, report_multiple_bugs=False,
            phases=[hypothesis.Phase.generate, hypothesis.Phase.target], suppress_health_check=list(hypothesis.HealthCheck),
            verbosity=hypothesis.Verbosity.quiet, print_blob=False)(drawn(one)))
        with contextlib.suppress(_FoundError, hypothesis.errors.Unsatisfiable, hypothesis.errors.Flaky):
            search()  # what was found, if anything, is in `found`
        return found[0] if found else None

    def _seed(self) -> int:
        """The same for every implementation and run with this seed: property, dtype and run seed."""
        text = f"{self.prop.id}/{self.case.dtype}/{self.judge.settings.seed}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")

    # ---------------------------------------------------------------------------------------- a failure
    def explain(self, failed: Tried) -> dict[str, Any]:
        """Confirm by running it alone, shrink, and say it in a sentence."""
        self.host.close()  # the next call gets a fresh process, where there is one
        again = self.run(failed.configuration)
        if again.outcome != "wrong":
            return failure_fields(self, failed, Telling(), ["the same input was right when run again alone: the failure depends "
                                                            "on earlier calls or on chance"])
        shrunk = self.shrink(again)
        smallest = simplify(shrunk, shrunk.arguments, self.run, self.judge.settings.shrink_tries)
        told = tell(self, again, shrunk, smallest) if self.judge.settings.shrink_tries else Telling()
        return failure_fields(self, smallest, told)

    def shrink(self, failed: Tried) -> Tried:
        """Greedy: the first simpler configuration that still fails in the same way, until none does or the budget ends."""
        tries = self.judge.settings.shrink_tries
        budget = min(CRASH_TRIES, tries) if failed.ended else tries
        if failed.ended and failed.ended.status == "timeout":
            return failed
        current, seen = failed, {failed.configuration.key()}
        improved = True
        while improved and budget > 0:
            improved = False
            for candidate in self.prop.cases.simpler(current.configuration, self.declaration, self.prop.given):
                if candidate.key() in seen:
                    continue
                seen.add(candidate.key())
                budget -= 1
                tried = self.run(candidate)
                if tried.outcome == "wrong" and _same_sort(tried, failed):
                    current, improved = tried, True
                    break
                if budget <= 0:
                    break
        return current


def _blame_form(subject: Subject, host: Recorded) -> None:
    """Properties reckon with results of the right form; where one stumbled over another, that is the fault, and is recorded."""
    for call, answer in host.exchanges:
        with contextlib.suppress(ExampleOverError, ValueError):  # the formula refuses calls that a property wants refused
            subject.hold_form(call, answer)


def _same_sort(one: Tried, other: Tried) -> bool:
    """Whether two failures are of one sort: both ended the host alike, or both are wrong values with the same check."""
    if one.ended or other.ended:
        return bool(one.ended and other.ended and one.ended.status == other.ended.status)
    return True
