"""Judges in processes of their own, each taking one case after another; a judge that dies is replaced."""
from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from assay.errors import HarnessError
from assay.properties import Property
from assay.run import events
from assay.run.hosts import Channel
from assay.run.judge import Settings
from assay.run.judging import harness_error
from assay.run.plan import CaseSpec
from assay.run.zygote_process import Zygote

HANGS = 3  # cases of one implementation that may hang before the rest is given up


@dataclass(frozen=True)
class Job:
    """A case to judge, or one stored example of it to run again."""

    case: CaseSpec
    example: Mapping[str, Any] | None = None

    def message(self) -> dict[str, Any]:
        """For a judge."""
        return {**asdict(self.case), "example": self.example}


@dataclass(frozen=True)
class Judge:
    """A judge that was made ready. starts: how often its zygote had been started; another start means that it is dead."""

    channel: Channel
    starts: int


class Waiting:
    """Jobs not yet taken, in order. Those of one property, device and type stay with one worker while there are others to take:
    implementations are given the same examples, and a judge evaluates the formula on these once."""

    def __init__(self, jobs: Sequence[Job] = ()) -> None:
        self._groups: dict[tuple[str, ...], deque[Job]] = {}
        for job in jobs:
            self._groups.setdefault((job.case.property, job.case.device, job.case.dtype), deque()).append(job)
        self._held: dict[int, tuple[str, ...]] = {}  # by worker

    def take(self, worker: int) -> Job | None:
        """The next job for this worker; None when none is left."""
        if not self._groups:
            return None
        held = self._held.get(worker, ())
        if held not in self._groups:
            others = {group for number, group in self._held.items() if number != worker}
            held = next((group for group in self._groups if group not in others), next(iter(self._groups)))
            self._held[worker] = held
        job = self._groups[held].popleft()
        if not self._groups[held]:
            del self._groups[held]
        return job


class Pool:
    """Threads that each keep one judge busy; `results` gives what they come to, in the order in which it comes."""

    def __init__(self, zygote: Zygote, setup: Mapping[str, Any], settings: Settings, workers: int,
                 properties: Mapping[str, Property]) -> None:
        self._zygote, self._properties = zygote, properties
        self._setup = {**setup, "settings": asdict(settings)}
        self._workers = workers
        self._idle: list[Judge] = []
        self._waiting = Waiting()
        self._done: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._hangs: dict[tuple[str, str], int] = {}
        self._lock = threading.Lock()
        self._stopped = False

    def results(self, jobs: Sequence[Job]) -> Iterator[dict[str, Any]]:
        """One result a job, until there is one for each or `stop` was called; judges stay for the next call."""
        self._waiting = Waiting(jobs)
        for number in range(min(self._workers, len(jobs))):
            threading.Thread(target=self._work, args=(number,), daemon=True).start()
        for _ in jobs:
            result = self._done.get()
            if result is None:
                return
            yield result

    def stop(self) -> None:
        """Wake up whoever waits for results; safe inside a signal handler."""
        self._stopped = True
        self._done.put(None)

    def _work(self, number: int) -> None:
        """One worker's life: jobs until none is left."""
        judge: Judge | None = None
        while (job := self._next(number)) is not None:
            judge, result = self._judged(job, judge)
            if result is None:
                return
            self._note(job.case, result)
            self._done.put(result)
        if judge is not None:
            self._idle.append(judge)

    def _judged(self, job: Job, judge: Judge | None) -> tuple[Judge | None, dict[str, Any] | None]:
        """What a job comes to, and the judge for the next one; no result after a stop."""
        while not self._stopped:
            starts = self._zygote.starts
            try:
                judge = judge or self._judge()
                judge.channel.send(job.message())
                return judge, judge.channel.receive()
            except (OSError, HarnessError) as error:  # a judge died: ours is the fault, the next case gets a new one
                judge = None
                if not self._stopped and not self._zygote.revive(starts):  # a zygote that was ended took its judges along
                    return None, harness_error(job.case, self._properties[job.case.property], error)
        return None, None

    def _next(self, number: int) -> Job | None:
        """The next job that is worth trying; those that are not are answered here."""
        while not self._stopped:
            with self._lock:
                job = self._waiting.take(number)
                if job is None:
                    return None
                given_up = self._hangs.get((job.case.kind, job.case.implementation), 0) >= HANGS
            if not given_up:
                return job
            self._done.put(self._not_tried(job.case))
        return None

    def _judge(self) -> Judge:
        """An idle judge, or a new one."""
        starts = self._zygote.starts
        with self._lock:
            self._idle = [judge for judge in self._idle if judge.starts == starts]
            if self._idle:
                return self._idle.pop()
        channel = Channel(self._zygote.address, {"role": "judge"})
        channel.send(self._setup)
        channel.receive()
        return Judge(channel, starts)

    def _note(self, case: CaseSpec, result: Mapping[str, Any]) -> None:
        if result["status"] == "timeout":
            with self._lock:
                key = (case.kind, case.implementation)
                self._hangs[key] = self._hangs.get(key, 0) + 1

    def _not_tried(self, case: CaseSpec) -> dict[str, Any]:
        prop = self._properties[case.property]
        return dict(events.result(
            id=case.id, property=case.property, implementation=case.implementation, device=case.device, dtype=case.dtype,
            status="timeout", statements=prop.statements, sentence=prop.sentence, rests_on=prop.rests_on,
            message=f"not tried: {HANGS} cases of {case.implementation} hung before"))
