"""`assay audit`: every model type of an installed library, each tried as a black box in a child process of its own.

Few examples a property: a first look at all of them. What fails is looked into with `assay check hf:TYPE`.
"""
from __future__ import annotations

import importlib
import multiprocessing
import os
import resource
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from assay import registry
from assay.contract.declaration import Declaration
from assay.contract.kinds import unknown
from assay.contract.loading import SCHEMES, load
from assay.errors import UsageError
from assay.run.hosts import LocalHost
from assay.run.judge import Judge, Settings
from assay.run.judging import harness_error
from assay.run.perform import clean
from assay.run.plan import CaseSpec, Selection, make_plan

LIBRARIES = {"transformers": "hf"}  # what can be audited -> how its targets begin
MEMORY = 6 << 30  # bytes a child may hold
EXAMPLES = 4  # a property: enough for a verdict, which takes three that are decided
# Left to `assay check`: what costs most and what others of the list nearly always find first.
LEFT_TO_CHECK = ("greedy_generation_agrees_with_and_without_cache", "caches_do_not_touch_each_other",
                 "the_seed_decides_the_weights", "any_sequence_of_cache_operations_gives_what_one_pass_gives")
UNFINISHED = "not finished"
RED = ("fail", "crash", "timeout", "out-of-memory", "harness-error")
Message = dict[str, Any]


@dataclass
class Row:
    """What one model type came to."""

    type: str
    built: bool = False
    verdict: str = ""  # conformant, non-conformant, inconclusive, not built
    reason: str = ""  # why it was not built, or how its process ended
    statuses: dict[str, str] = field(default_factory=dict)  # property -> status
    messages: dict[str, str] = field(default_factory=dict)  # of what failed
    left_out: dict[str, str] = field(default_factory=dict)  # property -> why it is not planned
    seconds: float = 0.0  # of processor time

    @property
    def failing(self) -> list[str]:
        """Names of the properties that failed."""
        return [name.partition("/")[2] for name, status in self.statuses.items() if status in RED]

    def settle(self) -> None:
        """The verdict from what is known."""
        decided = sum(status == "pass" for status in self.statuses.values())
        self.verdict = "not built" if not self.built else "non-conformant" if self.failing else "inconclusive" if self.reason else \
            "conformant" if 2 * decided >= len(self.statuses) else "inconclusive"

    def to_json(self) -> dict[str, Any]:
        """One line of the report."""
        return asdict(self) | {"failing": self.failing}


def targets(library: str, only: Sequence[str] = ()) -> list[str]:
    """The targets to audit, and everything that children share imported."""
    if library not in LIBRARIES:
        raise UsageError(unknown("library", library, LIBRARIES))
    missing = registry.missing_libraries(SCHEMES[LIBRARIES[library]])
    if missing:
        raise UsageError(f"library={library} is not installed; install assay[thirdparty]")
    found: list[str] = bridge(library).listed(only)
    if not found:
        raise UsageError(f"only={', '.join(only)} matches none of the model types of {library} {version(library)}; "
                         "a pattern is as in a shell, such as 'llama*'")
    return found


def bridge(library: str) -> Any:
    """The module that makes the library's models."""
    return importlib.import_module(SCHEMES[LIBRARIES[library]])


# ------------------------------------------------------------------------------------------------ the parent
@dataclass
class _Child:
    """A process that tries one target, and what it has told so far."""

    row: Row
    process: BaseProcess
    channel: Connection
    deadline: float
    running: str = ""
    done: bool = False

    def take(self) -> None:
        """One message of it, or the end of its life."""
        try:
            told: Message = self.channel.recv()
        except EOFError:
            self.done = True
            return
        self.running = told.pop("running", "")
        for name, value in told.items():
            if isinstance(value, dict):
                getattr(self.row, name).update(value)
            else:
                setattr(self.row, name, value)

    def finish(self, *, late: bool) -> Row:
        """Its row, after the process has ended or was ended."""
        if late:
            self.process.kill()
        self.process.join()
        self.channel.close()
        code = self.process.exitcode
        if late:  # of the whole type, on a machine that others may load: what was not reached is not known
            self.row.reason = f"{UNFINISHED}: its time was over in {self.running or 'building it'}"
        elif code:
            self.row.reason = f"crash in {self.running or 'building it'} (exit code {code})"
            if self.running:
                self.row.statuses[self.running] = "crash"
        self.row.settle()
        return self.row


def run(names: Sequence[str], *, workers: int, timeout: float, seed: int = 0) -> Iterator[Row]:
    """The row of each target as it is finished. timeout: seconds for one target."""
    from assay.run.conduct import settle

    registry.properties()
    settle()
    context, waiting, alive = multiprocessing.get_context("fork"), list(names), list[_Child]()
    try:
        while waiting or alive:
            while waiting and len(alive) < workers:
                alive.append(_started(context, waiting.pop(0), timeout, seed))
            wait([child.channel for child in alive], timeout=max(0.0, min(child.deadline for child in alive) - time.monotonic()))
            for child in list(alive):
                while not child.done and child.channel.poll():
                    child.take()
                late = not child.done and time.monotonic() > child.deadline
                if child.done or late:
                    alive.remove(child)
                    yield child.finish(late=late)
    finally:
        for child in alive:
            child.process.kill()


def _started(context: Any, name: str, timeout: float, seed: int) -> _Child:
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(name, seed, theirs), daemon=True)
    process.start()
    theirs.close()
    return _Child(Row(name.partition(":")[2]), process, ours, time.monotonic() + timeout)


# ------------------------------------------------------------------------------------------------ the child
def _child(name: str, seed: int, channel: Connection) -> None:
    """Build one model, judge its cases, tell each result as it comes."""
    import torch

    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    try:
        declaration = load(name)[0]
        made = declaration.function
        assert made is not None
        made(seed=0)(torch.tensor([[1, 2, 3]]))
    # The boundary to a library of two hundred model types: what building one raises is the reason why it is not audited.
    except Exception as error:  # noqa: BLE001
        channel.send({"reason": clean(f"{type(error).__name__}: {error}", 300).replace("\n", " "), "seconds": time.process_time()})
        return
    channel.send({"built": True, "seconds": time.process_time()})
    _judge(declaration, Settings(profile="quick", seed=seed, shrink_tries=0, most=EXAMPLES), channel)


def _judge(declaration: Declaration, settings: Settings, channel: Connection) -> None:
    host, judge = LocalHost([declaration]), Judge(settings)
    properties = {made.id: made for made in registry.properties(declaration.kind)
                  if made.id.partition("/")[2] not in LEFT_TO_CHECK}
    planned = make_plan([declaration], list(properties.values()), Selection(devices=("cpu",)))
    channel.send({"left_out": {one["property"]: one["reason"] for one in planned.left_out}})
    for case in planned.cases:
        channel.send({"running": case.property})
        result = _result(judge, case, properties[case.property], declaration, host)
        status, message = result["status"], result["message"]
        channel.send({"statuses": {case.property: status}, "messages": {} if status == "pass" else {case.property: message},
                      "seconds": time.process_time()})


def _result(judge: Judge, case: CaseSpec, prop: Any, declaration: Declaration, host: LocalHost) -> dict[str, Any]:
    try:
        return judge.judge(case, prop, declaration, host)
    except Exception as error:  # noqa: BLE001 - the boundary of a case, as in `judging`
        return harness_error(case, prop, error)

