"""A run from its targets to its report: load, plan, judge on workers, stream events, sum up."""
from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from assay import registry
from assay.contract.declaration import Declaration
from assay.contract.loading import load
from assay.errors import HarnessError, HostError, UsageError
from assay.run import events
from assay.run.hosts import RemoteHost, Zygote
from assay.run.judge import Settings
from assay.run.judging import Bench, harness_error
from assay.run.plan import CasePlan, CaseSpec, Selection, details, make_plan, shard_of

HANGS = 3  # cases of one implementation that may hang before the rest is given up
Listener = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True)
class Request:
    """What one `check` was asked for."""

    targets: tuple[str, ...] = ()
    kind: str | None = None
    selection: Selection = field(default_factory=Selection)
    settings: Settings = field(default_factory=Settings)
    workers: int = 1
    isolate: str = "auto"  # auto: whatever is not built in
    shard: tuple[int, int] | None = None
    command: str = "assay check"


@dataclass(frozen=True)
class Target:
    """One thing to check: what it declares, and whether it runs in a process of its own."""

    name: str
    kind: str | None
    isolated: bool
    declarations: tuple[Declaration, ...]
    died: HostError | None = None  # the import killed the process, or hung

    def message(self) -> dict[str, Any]:
        """For a judge: functions stay behind, it finds or loads them itself."""
        return {"target": self.name, "kind": self.kind, "isolated": self.isolated,
                "declarations": [declaration.to_json() for declaration in self.declarations]}


class Session:
    """One run. `events()` yields header, plan, results and footer as they come; stop early by closing the generator."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.results: list[dict[str, Any]] = []
        self.plan_event: events.Plan | None = None
        self._zygote: Zygote | None = None
        self._started = time.monotonic()

    # ------------------------------------------------------------------------------------------------ life
    def __enter__(self) -> Session:
        if self.request.isolate != "never" or self.request.workers > 1:
            self._zygote = Zygote()  # imports torch in the background while this process does
        return self

    def __exit__(self, *raised: object) -> None:
        if self._zygote is not None:
            self._zygote.close()

    # ------------------------------------------------------------------------------------------------ targets and plan
    def resolve(self) -> list[Target]:
        """What is to be checked. Usage is settled here, before anything runs."""
        found: list[Target] = []
        for name in self.request.targets or (None,):
            found += self._resolve(name)
        seen: set[tuple[str, str]] = set()
        for target in found:
            for declaration in target.declarations:
                key = (declaration.kind, declaration.name)
                if key in seen:
                    raise UsageError(f"implementation={declaration.name} of kind {declaration.kind} is given twice; name it once")
                seen.add(key)
        return found

    def _resolve(self, name: str | None) -> list[Target]:
        kind, never = self.request.kind, self.request.isolate == "never"
        if name is None:
            declared = registry.declarations(kind)
            return [Target("--all", kind, self.request.isolate == "always" and False, tuple(declared))]
        built_in = [d for d in registry.declarations(kind) if d.builtin and d.name == name]
        if built_in and self.request.isolate != "always":
            return [Target(name, kind, False, tuple(built_in))]
        if never:
            return [Target(name, kind, False, tuple(load(name, kind)))]
        if self._zygote is None:
            raise HarnessError("an isolated run needs its zygote; use the session as a context manager")
        host = RemoteHost(self._zygote.address, name, kind, timeout=self.request.settings.timeout)
        try:
            declarations = tuple(Declaration.from_json(one) for one in host.describe())
        except HostError as died:
            return [Target(name, kind, True, (), died)]
        finally:
            host.close()
        return [Target(name, kind, True, declarations)]

    def plan(self, targets: Sequence[Target]) -> tuple[CasePlan, list[CaseSpec]]:
        """All applicable cases, and those of this shard."""
        declarations = [declaration for target in targets for declaration in target.declarations]
        planned = make_plan(declarations, registry.properties(), self.request.selection)
        mine = list(planned.cases)
        if self.request.shard is not None:
            mine = shard_of(planned.cases, *self.request.shard)
        return planned, mine

    # ------------------------------------------------------------------------------------------------ the run
    def events(self) -> Iterator[Mapping[str, Any]]:
        """header, plan, one result a case, footer. Closing early (Ctrl-C) still yields nothing twice: call `footer`."""
        targets = self.resolve()
        planned, mine = self.plan(targets)
        declared = [declaration.to_json() for target in targets for declaration in target.declarations]
        settings = self.request.settings
        yield events.header(command=self.request.command, seed=settings.seed, profile=settings.profile, implementations=declared,
                            environment=events.environment(), shard=self.request.shard)
        kinds = {case.kind for case in mine}
        shown = [prop for prop in planned.properties.values() if prop.kind in kinds]
        self.plan_event = events.plan(
            {case.id: case.row for case in mine}, planned.left_out, properties=details(shown),
            whole=[case.id for case in planned.cases])
        yield self.plan_event
        for result in self._imports_that_died(targets):
            self.results.append(result)
            yield result
        verdicts = Verdicts(planned, mine)
        for raw in self._judged(targets, mine, planned):
            for result in verdicts.add(raw):
                self.results.append(result)
                yield result
        for result in verdicts.rest():
            self.results.append(result)
            yield result
        yield self.footer()

    def footer(self, *, interrupted: bool = False) -> events.Footer:
        """The last event, from the results so far."""
        plan = self.plan_event or events.plan({})
        return events.footer(self.results, plan, seconds=time.monotonic() - self._started, interrupted=interrupted)

    def _imports_that_died(self, targets: Sequence[Target]) -> Iterator[dict[str, Any]]:
        for target in targets:
            if target.died is not None:
                name = Path(target.name).name
                yield dict(events.result(
                    id=f"import[{name}]", property="import/file_can_be_imported", implementation=name, device="cpu", dtype="none",
                    status=target.died.status, statements=["CONDUCT"], message=str(target.died),
                    sentence="The file can be imported.", stderr_tail=target.died.stderr_tail))

    def _judged(self, targets: Sequence[Target], mine: Sequence[CaseSpec], planned: CasePlan) -> Iterator[dict[str, Any]]:
        if self._zygote is None:
            yield from self._here(targets, mine)
            return
        pool = Pool(self._zygote, targets, self.request, mine, planned)
        try:
            yield from pool.results()
        finally:
            pool.close()

    def _here(self, targets: Sequence[Target], mine: Sequence[CaseSpec]) -> Iterator[dict[str, Any]]:
        """In this process: `--isolate never` with one worker."""
        messages = [{**target.message(), "declared": list(target.declarations)} for target in targets]
        bench = Bench(messages, self.request.settings, None)
        for case in mine:
            yield bench.run(case)


class Verdicts:
    """Turns a fail into blocked where a foundation failed too: holds it back until its foundations are known."""

    def __init__(self, planned: CasePlan, mine: Sequence[CaseSpec]) -> None:
        self._rests = {prop.id: prop.rests_on for prop in planned.properties.values()}
        self._waiting_for = {case.id for case in mine}
        self._status: dict[str, str] = {}
        self._held: list[dict[str, Any]] = []

    def add(self, result: dict[str, Any]) -> list[dict[str, Any]]:
        """Results that can be told now that this one is known."""
        self._status[result["id"]] = result["status"]
        self._waiting_for.discard(result["id"])
        self._held.append(result)
        told = [held for held in self._held if self._known(held)]
        self._held = [held for held in self._held if held not in told]
        return [self._told(held) for held in told]

    def rest(self) -> list[dict[str, Any]]:
        """What was still held when the run ended early."""
        held, self._held = self._held, []
        return [self._told(one) for one in held]

    def _foundations(self, result: Mapping[str, Any]) -> list[str]:
        tail = result["id"][len(result["property"]):]
        return [f"{below}{tail}" for below in self._rests.get(result["property"], ())]

    def _known(self, result: Mapping[str, Any]) -> bool:
        return result["status"] != "fail" or not any(id in self._waiting_for for id in self._foundations(result))

    def _told(self, result: dict[str, Any]) -> dict[str, Any]:
        below = [id for id in self._foundations(result) if self._status.get(id) in events.RED]
        if result["status"] != "fail" or not below:
            return result
        return {**result, "status": "blocked", "blocked_by": below}


class Pool:
    """Judges in processes of their own, each taking one case after another; a judge that dies is replaced."""

    def __init__(self, zygote: Zygote, targets: Sequence[Target], request: Request, mine: Sequence[CaseSpec],
                 planned: CasePlan) -> None:
        self._zygote, self._request, self._planned = zygote, request, planned
        self._setup = {"targets": [target.message() for target in targets if target.declarations],
                       "settings": asdict(request.settings)}
        self._todo: deque[CaseSpec] = deque(mine)
        self._left = len(mine)
        self._done: queue.Queue[dict[str, Any]] = queue.Queue()
        self._hangs: dict[tuple[str, str], int] = {}
        self._lock = threading.Lock()
        self._stop = False
        count = max(1, min(request.workers, len(mine)))
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(count)] if mine else []

    def results(self) -> Iterator[dict[str, Any]]:
        for thread in self._threads:
            thread.start()
        for _ in range(self._left):
            yield self._done.get()

    def close(self) -> None:
        self._stop = True

    def _work(self) -> None:
        """One worker's life: cases until none is left."""
        channel = None
        while not self._stop:
            with self._lock:
                if not self._todo:
                    return
                case = self._todo.popleft()
                given_up = self._hangs.get((case.kind, case.implementation), 0) >= HANGS
            if given_up:
                self._done.put(self._not_tried(case))
                continue
            try:
                if channel is None:
                    channel = self._zygote.open({"role": "judge"})
                    channel.send(self._setup)
                    channel.receive()
                channel.send(asdict(case))
                result = channel.receive()
            except (OSError, HarnessError) as error:  # a judge died: ours is the fault, the next case gets a new one
                channel = None
                if self._stop:
                    return
                result = harness_error(case, self._planned.properties[case.property], error)
            if result["status"] == "timeout":
                with self._lock:
                    key = (case.kind, case.implementation)
                    self._hangs[key] = self._hangs.get(key, 0) + 1
            self._done.put(result)

    def _not_tried(self, case: CaseSpec) -> dict[str, Any]:
        prop = self._planned.properties[case.property]
        return dict(events.result(
            id=case.id, property=case.property, implementation=case.implementation, device=case.device, dtype=case.dtype,
            status="timeout", statements=prop.statements, sentence=prop.sentence, rests_on=prop.rests_on,
            message=f"not tried: {HANGS} cases of {case.implementation} hung before"))
