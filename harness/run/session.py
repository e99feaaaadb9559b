"""A run from its targets to its report: load, plan, judge on workers, stream events, sum up."""
from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from assay import registry
from assay.contract.declaration import Declaration
from assay.contract.loading import load
from assay.errors import HarnessError, HostError, UsageError
from assay.report.jsonl import Report
from assay.run import background, events, fence
from assay.run.events import Header
from assay.run.hosts import RemoteHost
from assay.run.judge import Settings
from assay.run.judging import Bench
from assay.run.plan import CasePlan, CaseSpec, Selection, details, make_plan, recorded_costs, shard_of
from assay.run.pool import Job, Pool
from assay.run.resuming import keep
from assay.run.verdicts import Verdicts
from assay.run.waivers import Register, Waiver
from assay.run.zygote_process import Zygote, zygote_needed

ALL = "--all"  # the target that stands for everything built in
Runner = Callable[[Sequence[Job]], Iterator[dict[str, Any]]]


@dataclass(frozen=True)
class Request:
    """What one `check` was asked for."""

    targets: tuple[str, ...] = ()  # none, and no objects: everything that is built in
    objects: tuple[Declaration, ...] = ()  # live objects: run in this process
    kind: str | None = None
    selection: Selection = field(default_factory=Selection)
    settings: Settings = field(default_factory=Settings)
    workers: int = 1
    isolate: str = "auto"  # auto: whatever is not built in
    shard: tuple[int, int] | None = None
    waivers: tuple[Waiver, ...] = ()
    resume: Report | None = None  # an interrupted run of the same plan, whose results are kept
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
    """One run. `events()` yields header, plan, results and footer as they come; `stop()` ends it early."""

    def __init__(self, request: Request, zygote: Zygote | None = None) -> None:
        self.request = request
        self.results: list[dict[str, Any]] = []
        self.kept: list[dict[str, Any]] = []  # results of the run that is resumed; they are told first
        self.stopped = False
        self._zygote = zygote  # one that was started ahead of us, while torch was still to be imported
        self._pool: Pool | None = None
        self._planned = self._in_case = False
        self._started = time.monotonic()

    # ------------------------------------------------------------------------------------------------ life
    def __enter__(self) -> Session:
        request = self.request
        named = bool(request.targets) or not request.objects
        if self._zygote is None and named and zygote_needed(request.isolate, request.workers):
            self._zygote = Zygote()
        return self

    def __exit__(self, *raised: object) -> None:
        self.stopped = True
        if self._pool is not None:
            self._pool.stop()
        if self._zygote is not None:
            self._zygote.close()

    def stop(self) -> None:
        """End early, with a footer that says so; for a signal handler. Before there is a plan: KeyboardInterrupt."""
        self.stopped = True
        if self._pool is not None:
            self._pool.stop()
        elif self._in_case or not self._planned:
            raise KeyboardInterrupt

    # ------------------------------------------------------------------------------------------------ targets and plan
    def resolve(self) -> list[Target]:
        """What is to be checked. Usage is settled here, before anything runs."""
        found = [Target("this process", None, False, self.request.objects)] if self.request.objects else []
        for name in self.request.targets or (() if found else (None,)):
            found += self._resolve(name)
        seen: set[tuple[str, str]] = set()
        for declaration in (one for target in found for one in target.declarations):
            key = (declaration.kind, declaration.name)
            if key in seen:
                raise UsageError(f"implementation={declaration.name} of kind {declaration.kind} is given twice; name it once")
            seen.add(key)
        return found

    def _resolve(self, name: str | None) -> list[Target]:
        kind, never = self.request.kind, self.request.isolate == "never"
        if name is None:
            return [Target(ALL, kind, False, tuple(registry.declarations(kind)))]
        if "/" not in name and not name.endswith(".py") and self.request.isolate != "always":
            built_in = [made for made in registry.declarations(kind) if made.builtin and made.name == name]
            if built_in:
                return [Target(name, kind, False, tuple(built_in))]
        if never:
            return [Target(name, kind, False, tuple(load(name, kind)))]
        return [self._isolated(name, kind)]

    def _isolated(self, name: str, kind: str | None) -> Target:
        """What a target declares, as a process of its own finds it."""
        if self.address is None:
            raise HarnessError("an isolated run needs its zygote; use the session as a context manager")
        host = RemoteHost(self.address, name, kind, timeout=self.request.settings.timeout)
        try:
            return Target(name, kind, True, tuple(Declaration.from_json(one) for one in host.describe()))
        except HostError as died:
            return Target(name, kind, True, (), died)
        finally:
            host.close()

    @property
    def address(self) -> str | None:
        """Where the zygote listens, if there is one."""
        return None if self._zygote is None else self._zygote.address

    def plan(self, targets: Sequence[Target]) -> tuple[CasePlan, list[CaseSpec]]:
        """All applicable cases, and those of this shard."""
        declarations = [declaration for target in targets for declaration in target.declarations]
        kinds = {declaration.kind for declaration in declarations}
        properties = registry.properties()
        deep = self.request.settings.profile == "deep"
        held = {(one.kind, one.name) for target in targets for one in target.declarations if one.deep and target.name == ALL}
        selection = replace(with_devices(self.request.selection), deep=deep, held=frozenset(() if deep else held))
        absent = [one for target in targets if target.name == ALL for one in registry.missing(target.kind)]
        planned = make_plan(declarations, properties, selection, absent)
        if self.request.selection.only and declarations and not planned.cases and not planned.left_out:
            raise UsageError(f"only={', '.join(self.request.selection.only)} names nothing of kind "
                             f"{', '.join(sorted(kinds))}; `assay list properties` lists what there is")
        mine = list(planned.cases)
        if self.request.shard is not None:
            mine = shard_of(planned.cases, *self.request.shard, recorded_costs())
        return planned, mine

    # ------------------------------------------------------------------------------------------------ the run
    def events(self) -> Iterator[Mapping[str, Any]]:
        """header, plan, one result a case, footer."""
        targets = self.resolve()
        planned, mine = self.plan(targets)
        header, plan = self._header(targets), plan_event(planned, mine)
        self.kept = keep(self.request.resume, header, plan, planned.properties) if self.request.resume else []
        self._planned = True
        yield header
        yield plan
        for result in self._results(targets, planned, mine):
            self.results.append(result)
            yield result
        yield events.footer(self.results, plan, seconds=time.monotonic() - self._started, interrupted=self.stopped)

    def _header(self, targets: Sequence[Target]) -> Header:
        settings = self.request.settings
        declared = [declaration.to_json() for target in targets for declaration in target.declarations]
        sources = {Path(place).name: digest for place, digest in map(source, targets) if digest}
        hosts = {"hosts": fence.state()} if any(target.isolated for target in targets) else {}
        surroundings = events.environment(**hosts, **({"sources": sources} if sources else {}))
        return events.header(command=self.request.command, seed=settings.seed, profile=settings.profile,
                             implementations=declared, environment=surroundings, shard=self.request.shard)

    def _results(self, targets: Sequence[Target], planned: CasePlan, mine: Sequence[CaseSpec]) -> Iterator[dict[str, Any]]:
        """Kept ones, imports that died, stored counterexamples of waivers, then the cases themselves."""
        yield from self.kept
        yield from imports_that_died(targets)
        done = {one["id"] for one in self.kept}
        todo = [case for case in mine if case.id not in done]
        run = self.runner(targets, planned)
        register = Register(self.request.waivers, [one for target in targets for one in target.declarations], mine, planned)
        register.take(run(register.jobs()))
        verdicts = Verdicts(planned.properties, [case.id for case in todo], self.kept)
        for raw in run([Job(case) for case in todo]):
            yield from verdicts.add(register.apply(raw))
        yield from verdicts.rest()
        if not self.stopped:
            yield from register.findings()

    def runner(self, targets: Sequence[Target], planned: CasePlan) -> Runner:
        """What turns jobs into results: judges in processes of their own, or a bench in this one."""
        if self._zygote is None or self.request.objects:
            return lambda jobs: self._here(targets, jobs)
        setup = {"targets": [target.message() for target in targets if target.declarations]}
        self._pool = Pool(self._zygote, setup, self.request.settings, max(1, self.request.workers), planned.properties)
        if self.stopped:
            self._pool.stop()
        return self._pool.results

    def _here(self, targets: Sequence[Target], jobs: Sequence[Job]) -> Iterator[dict[str, Any]]:
        """In this process: `--isolate never` with one worker, and live objects."""
        messages = [target.message() if target.isolated else {**target.message(), "declared": list(target.declarations)}
                    for target in targets if target.declarations]
        bench = Bench(messages, self.request.settings, self.address) if jobs else None
        for job in jobs:
            if self.stopped or bench is None:
                return
            try:
                self._in_case = True
                result = bench.run(job.case) if job.example is None else bench.again(job.case, job.example)
            except KeyboardInterrupt:
                self.stopped = True
                return
            finally:
                self._in_case = False
            yield result


def with_devices(selection: Selection) -> Selection:
    """The selection with `auto` resolved: every device that there is."""
    there = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
    for device in selection.devices:
        if device != "auto" and device.partition(":")[0] not in there:
            raise UsageError(f"device={device} is not available here; give auto or {' or '.join(there)}")
    devices = tuple(dict.fromkeys(one for device in selection.devices for one in (there if device == "auto" else (device,))))
    return Selection(selection.only, devices, selection.dtypes)


def plan_event(planned: CasePlan, mine: Sequence[CaseSpec]) -> events.Plan:
    """The plan as the report holds it."""
    kinds = {case.kind for case in mine}
    shown = [prop for prop in planned.properties.values() if prop.kind in kinds]
    named = [id for prop in shown for id in prop.statements]
    return events.plan({case.id: case.row for case in mine}, planned.left_out, properties=details(shown),
                       statements=background.texts(named), formulas=background.formulas(named), kinds=background.kinds(kinds),
                       whole=[case.id for case in planned.cases])


def source(target: Target) -> tuple[str, str]:
    """File of a target and a digest of it; no digest where it is no file."""
    place = target.name if target.name.endswith(".py") else target.name.rpartition(":")[0]
    if not place.endswith(".py") or not Path(place).is_file():
        return target.name, ""
    return place, hashlib.sha256(Path(place).read_bytes()).hexdigest()[:16]


def imports_that_died(targets: Sequence[Target]) -> Iterator[dict[str, Any]]:
    """A result for each file whose import killed its process, or hung."""
    for target in targets:
        if target.died is not None:
            name = Path(target.name).name
            yield dict(events.result(
                id=f"import[{name}]", property="import/file_can_be_imported", implementation=name, device="cpu", dtype="none",
                status=target.died.status, statements=["CONDUCT"], message=str(target.died),
                sentence="The file can be imported.", stderr_tail=target.died.stderr_tail))
