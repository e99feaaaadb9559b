"""The doctor: is every property able to fail, here and now? Planted faults must be told, unusual right ways must pass.

For each property and each fault that it says it kills, the case is judged until a dtype and seed fails it. Faults that
no property names are tried on the properties of their kind in order. Every benign way is judged on every property.
"""
from __future__ import annotations

import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from assay import registry
from assay.contract.declaration import Declaration
from assay.properties import Property
from assay.registry import Benign, Fault
from assay.run.diagnosis import Attempt, DoctorReport
from assay.run.events import RED
from assay.run.hosts import Channel, open_judge
from assay.run.judge import Settings
from assay.run.plan import CaseSpec, why_not
from assay.run.zygote import FOR_HOSTS
from assay.run.zygote_process import FOR_JUDGES, Zygote

DTYPES = ("float32", "bfloat16", "float16")  # in this order: most faults show in float32
KEPT = 1024  # evaluations that a judge keeps: the same examples serve every planted implementation
Planted = Fault | Benign
Listener = Callable[[Attempt], None]


@dataclass(frozen=True)
class Work:
    """A property to try on a planted implementation: tries until one is red, at most all of them."""

    prop: Property
    planted: Planted
    tries: tuple[tuple[str, int], ...]  # (dtype, seed)


def run(
    kinds: Sequence[str] | None = None, *, seeds: Sequence[int] = (0,), profile: str = "quick",
    workers: int | None = None, timeout: float = 120.0, only: Sequence[str] = (), faults: bool = True,
    benign: bool = True, dtypes: Sequence[str] = DTYPES, listener: Listener = lambda attempt: None,
) -> DoctorReport:
    """Examine the specification of these kinds (None: every kind that has one).

    only: ids or names of properties, faults or benign ways; each narrows its own sort. faults, benign: whether to try
    them. listener: told of each attempt.
    """
    started = time.monotonic()
    chosen = _chosen(kinds, only)
    chosen = Chosen(chosen.properties, chosen.faults if faults else (), chosen.benigns if benign else ())
    report = DoctorReport(tuple(p.id for p in chosen.properties if faults), tuple(f.id for f in chosen.faults),
                          tuple(b.id for b in chosen.benigns))
    count = workers or max(1, len(os.sched_getaffinity(0)))
    settings = Settings(profile=profile, timeout=timeout, shrink_tries=0, evaluations_kept=KEPT)

    def tell(attempt: Attempt, into: list[Attempt]) -> None:
        into.append(attempt)
        listener(attempt)

    named, report.unknown = _named(chosen, dtypes, seeds)
    with _zygote() as zygote:
        with Team(zygote, chosen.faults, settings, count) as team:
            for attempt in team.attempts(named):
                tell(attempt, report.attempts)
            for attempt in _hunt(team, chosen, report.alive, dtypes, seeds):
                tell(attempt, report.attempts)
        with Team(zygote, chosen.benigns, settings, count) as team:
            for attempt in team.attempts(_benign(chosen, dtypes, seeds)):
                tell(attempt, report.benign_attempts)
    report.seconds = time.monotonic() - started
    return report


# ------------------------------------------------------------------------------------------------ what is tried
@dataclass(frozen=True)
class Chosen:
    """What is examined."""

    properties: tuple[Property, ...]
    faults: tuple[Fault, ...]
    benigns: tuple[Benign, ...]


def _chosen(kinds: Sequence[str] | None, only: Sequence[str]) -> Chosen:
    """Properties, faults and benign ways of the kinds; `only` narrows each sort of which it names any, and where it names
    properties alone, faults to those that they kill."""
    properties = [prop for prop in registry.properties() if kinds is None or prop.kind in kinds]
    specified = {prop.kind for prop in properties}
    sorts: list[list[Any]] = [properties, [one for one in registry.faults() if one.kind in specified],
                              [one for one in registry.benigns() if one.kind in specified]]
    narrowed = []
    for sort in sorts:
        named = [one for one in sort if one.id in only or one.id.partition("/")[2] in only]
        narrowed.append(tuple(named or sort))
    if len(narrowed[0]) < len(properties) and len(narrowed[1]) == len(sorts[1]):
        killed = {id for prop in narrowed[0] for id in prop.kills}
        narrowed[1] = tuple(one for one in sorts[1] if one.id in killed)
    return Chosen(*narrowed)


def _tries(prop: Property, dtypes: Sequence[str], seeds: Sequence[int]) -> tuple[tuple[str, int], ...]:
    """Seeds in order, and for each the dtypes that the property speaks of; its own first where none is asked for."""
    able = [dtype for dtype in dtypes if prop.dtypes is None or dtype in prop.dtypes] or list(prop.dtypes or ())[:1]
    return tuple((dtype, seed) for seed in seeds for dtype in able)


def _named(chosen: Chosen, dtypes: Sequence[str], seeds: Sequence[int]) -> tuple[list[Work], list[tuple[str, str]]]:
    """Each property on each fault that it names, and the names that mean no fault."""
    known = {fault.id: fault for fault in registry.faults()}
    wanted = {fault.id for fault in chosen.faults}
    pairs = [(prop, id) for prop in chosen.properties for id in prop.kills]
    work = [Work(prop, known[id], _tries(prop, dtypes, seeds)) for prop, id in pairs if id in wanted]
    return work, [(prop.id, id) for prop, id in pairs if id not in known]


def _hunt(team: Team, chosen: Chosen, alive: Sequence[str], dtypes: Sequence[str],
          seeds: Sequence[int]) -> Iterator[Attempt]:
    """Faults still alive on the properties of their kind, those that kill most first, until each is killed."""
    left = {fault.id: fault for fault in chosen.faults if fault.id in alive}
    rounds = [(prop, dtype) for dtype in dtypes for prop in sorted(chosen.properties, key=lambda p: -len(p.kills))]
    for prop, dtype in rounds:
        round_ = [Work(prop, fault, _tries(prop, (dtype,), seeds)) for fault in left.values()
                  if fault.kind == prop.kind and fault.id not in prop.kills and not why_not(prop, fault.declaration)]
        for attempt in team.attempts(round_):
            if attempt.killed:
                del left[attempt.planted]
            yield attempt


def _benign(chosen: Chosen, dtypes: Sequence[str], seeds: Sequence[int]) -> list[Work]:
    """Each property on each benign way of its kind, in every dtype and with every seed."""
    return [Work(prop, way, ((dtype, seed),)) for prop in chosen.properties for seed in seeds for dtype in dtypes
            for way in chosen.benigns if way.kind == prop.kind and (prop.dtypes is None or dtype in prop.dtypes)
            and dtype in way.declaration.dtypes and not why_not(prop, way.declaration)]


# ------------------------------------------------------------------------------------------------ who tries it
class Team:
    """Judges in forked processes, one a worker and seed; a hang or death is a kill, and brings a new judge."""

    def __init__(self, zygote: Zygote, planted: Sequence[Planted], settings: Settings, count: int) -> None:
        self._zygote, self._settings = zygote, settings
        self._targets = [_target(one) for one in planted]
        self._judges: list[dict[int, Channel]] = [{} for _ in range(count)]  # of each worker, by seed

    def __enter__(self) -> Team:
        return self

    def __exit__(self, *raised: object) -> None:
        for judge in (judge for judges in self._judges for judge in judges.values()):
            judge.kill()

    def attempts(self, work: Sequence[Work]) -> Iterator[Attempt]:
        """Every piece of work tried, as it ends."""
        todo, done = deque(work), queue.Queue[Attempt | BaseException]()
        threads = [threading.Thread(target=self._work, args=(judges, todo, done), daemon=True)
                   for judges in self._judges[: len(work)]]
        for thread in threads:
            thread.start()
        for _ in work:
            told = done.get()
            if isinstance(told, BaseException):
                raise told
            yield told
        for thread in threads:
            thread.join()

    def _work(self, judges: dict[int, Channel], todo: deque[Work], done: queue.Queue[Attempt | BaseException]) -> None:
        try:
            while True:
                try:
                    work = todo.popleft()
                except IndexError:
                    return
                done.put(self._attempt(judges, work))
        except BaseException as error:  # noqa: BLE001 - the boundary of a thread: the one who waits raises it
            done.put(error)

    def _attempt(self, judges: dict[int, Channel], work: Work) -> Attempt:
        started, statuses = time.monotonic(), list[str]()
        last: dict[str, Any] = {"status": "not-tried"}
        dtype, seed = work.tries[0] if work.tries else ("", 0)
        for dtype, seed in work.tries:
            last = self._judged(judges, work, dtype, seed)
            statuses.append(last["status"])
            if last["status"] in RED:
                break
        return Attempt(
            work.prop.id, work.planted.id, last["status"] in RED, last["status"], work.planted.id in work.prop.kills,
            dtype, seed, str(last.get("message", "")), dict(last.get("counterexample") or {}), tuple(statuses),
            time.monotonic() - started)

    def _judged(self, judges: dict[int, Channel], work: Work, dtype: str, seed: int) -> dict[str, Any]:
        """The raw result of one case: a foundation that failed too changes nothing here."""
        declaration = work.planted.declaration
        case = CaseSpec(work.prop.id, work.prop.kind, declaration.name, "cpu", dtype)
        if seed not in judges:
            judges[seed] = self._judge(seed)  # a judge that cannot start is our fault, never a kill
        try:
            deadline = time.monotonic() + self._settings.timeout
            judges[seed].send(asdict(case), deadline)
            return dict(judges[seed].receive(deadline))
        except TimeoutError:
            judges.pop(seed).kill()
            return {"status": "timeout", "message": f"no verdict within {self._settings.timeout:g} s"}
        except ConnectionError:
            judges.pop(seed).kill()
            return {"status": "crash", "message": "it took its judge along"}

    def _judge(self, seed: int) -> Channel:
        return open_judge(self._zygote.address, {"targets": self._targets, "settings": asdict(replace(self._settings, seed=seed))})


def _zygote() -> Zygote:
    """A zygote that has imported specification and planted implementations: it forks judges alone, never a host."""
    modules = {one.function.__module__ for one in registry.properties()}
    planted: tuple[Planted, ...] = (*registry.faults(), *registry.benigns())
    modules |= {one.function.__module__ for one in planted}
    return Zygote((*FOR_HOSTS, *FOR_JUDGES, *sorted(modules)))


def _target(planted: Planted) -> dict[str, Any]:
    declaration: Declaration = planted.declaration
    return {"target": planted.id, "kind": planted.kind, "isolated": False,
            "declarations": [{"kind": planted.kind, "name": declaration.name, "planted": planted.id}]}


def first_kill(prop: Property, *, timeout: float = 60.0) -> Attempt | None:
    """The first fault of `kills` that the property tells, with its smallest counter-example; None if it tells none."""
    known = {fault.id: fault for fault in registry.faults(prop.kind)}
    faults = [known[id] for id in prop.kills if id in known]
    settings = Settings(profile="quick", timeout=timeout)
    with _zygote() as zygote, Team(zygote, faults, settings, 1) as team:
        for fault in faults:
            for attempt in team.attempts([Work(prop, fault, _tries(prop, DTYPES, (0,)))]):
                if attempt.killed:
                    return attempt
    return None
