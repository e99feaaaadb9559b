"""`assay audit`: every model type of an installed library, each tried as a black box in a host of its own, by a judge of its own.

Few examples a property: a first look at all of them. What fails is looked into with `assay check hf:TYPE`.
"""
from __future__ import annotations

import importlib
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from typing import Any

import torch

from assay import registry
from assay.contract.declaration import Declaration
from assay.contract.kinds import unknown
from assay.contract.loading import SCHEMES
from assay.errors import HostError, UsageError
from assay.hosting import Call
from assay.properties import Property
from assay.run import events
from assay.run.hosts import Channel, RemoteHost, open_judge
from assay.run.judge import Settings
from assay.run.perform import clean
from assay.run.plan import CaseSpec, Selection, make_plan
from assay.run.zygote import FOR_HOSTS
from assay.run.zygote_process import FOR_JUDGES, Zygote

LIBRARIES = {"transformers": "hf"}  # what can be audited -> how its targets begin
# How they begin -> what every host would import, in the zygote once.
SHARED = {"hf": (SCHEMES["hf"], "transformers.modeling_utils", "transformers.models.auto.modeling_auto")}
MEMORY = 6 << 30  # bytes a host may hold
EXAMPLES = 4  # a property: enough for a verdict, which takes three that are decided
# Left to `assay check`: what costs most and what others of the list nearly always find first.
LEFT_TO_CHECK = ("greedy_generation_agrees_with_and_without_cache", "caches_do_not_touch_each_other",
                 "the_seed_decides_the_weights", "any_sequence_of_cache_operations_gives_what_one_pass_gives")
UNFINISHED = "not finished"


@dataclass
class Row:
    """What one model type came to."""

    type: str
    built: bool = False
    verdict: str = ""  # conformant, non-conformant, inconclusive, not built
    reason: str = ""  # why it was not built, not finished, or is inconclusive
    seconds: float = 0.0  # from its start to its end
    declaration: dict[str, Any] = field(default_factory=dict)
    cases: Sequence[CaseSpec] = ()  # planned
    left: Sequence[Mapping[str, str]] = ()  # out of the plan
    results: list[dict[str, Any]] = field(default_factory=list)

    @property
    def failing(self) -> list[str]:
        """Names of the properties that failed."""
        return [one["property"].partition("/")[2] for one in self.results if one["status"] in events.RED]

    def settle(self) -> None:
        """The verdict from what is known, by the rule of every report."""
        planned = {"cases": [case.id for case in self.cases], "rows": [case.row for case in self.cases]}
        self.verdict = events.verdict_of(self.results, planned)[0] if self.built else "not built"
        if self.verdict == "inconclusive" and not self.reason:
            self.reason = events.why_inconclusive(self.results, planned)[0]

    def to_json(self) -> dict[str, Any]:
        """One line of the table."""
        return {"type": self.type, "built": self.built, "verdict": self.verdict, "reason": self.reason, "seconds": self.seconds,
                "failing": self.failing, "statuses": {one["property"]: one["status"] for one in self.results},
                "messages": {one["property"]: one["message"] for one in self.results if one["status"] != "pass"},
                "left_out": {one["property"]: one["reason"] for one in self.left}}


def targets(library: str, only: Sequence[str] = ()) -> list[str]:
    """The targets to audit."""
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


# ------------------------------------------------------------------------------------------------ one after another
def run(names: Sequence[str], *, workers: int, timeout: float, seed: int = 0) -> Iterator[Row]:
    """The row of each target as it is finished. timeout: seconds for one target."""
    settings = Settings(profile="quick", seed=seed, timeout=timeout, shrink_tries=0, most=EXAMPLES)
    modules = {prop.function.__module__ for prop in registry.properties()}
    shared = {module for name in names for module in SHARED.get(name.partition(":")[0], ())}
    with Zygote((*FOR_HOSTS, *FOR_JUDGES, *sorted(modules), *sorted(shared))) as zygote:
        team = ThreadPoolExecutor(workers)
        try:
            for done in as_completed([team.submit(_audited, zygote, name, settings) for name in names]):
                yield done.result()
        finally:  # whoever is still at work loses host and judge with the zygote, and so ends
            team.shutdown(wait=False, cancel_futures=True)


def _audited(zygote: Zygote, name: str, settings: Settings) -> Row:
    """Build one type, then judge its cases until they end or its time does."""
    row, started = Row(name.partition(":")[2]), time.monotonic()
    declaration = _built(row, zygote, name, settings.timeout)
    if declaration is not None:
        row.built = True
        _judged(row, zygote, name, declaration, settings, started + settings.timeout)
    row.settle()
    row.seconds = time.monotonic() - started
    return row


def _built(row: Row, zygote: Zygote, name: str, timeout: float) -> Declaration | None:
    """What a host of its own declares, once its model has answered a call; importing and building may take half the time each."""
    host = RemoteHost(zygote.address, name, timeout=timeout / 2, memory=MEMORY)
    try:
        declaration = Declaration.from_json(host.describe()[0])
        refused = host.call(Call(declaration.kind, declaration.name, _first(host, declaration), method="__call__")).refusal
        reason = f"{refused.type}: {refused.message}" if refused else ""
    except (UsageError, HostError) as error:
        reason = f"{type(error).__name__}: {error}"
    finally:
        host.close()
    row.reason = clean(reason, 300).replace("\n", " ")
    return None if reason else declaration


def _first(host: RemoteHost, declaration: Declaration) -> Mapping[str, Any]:
    """Arguments of a call that any model of its kind answers."""
    if declaration.kind != "image_classifier":
        return {"ids": torch.tensor([[1, 2, 3]])}
    shape = host.call(Call(declaration.kind, declaration.name, {}, method="image_shape")).outputs
    return {"image": torch.zeros(1, *shape)}


def _judged(row: Row, zygote: Zygote, name: str, declaration: Declaration, settings: Settings, deadline: float) -> None:
    """The result of each case, written into the row as it comes; the judge holds a host with the target."""
    planned = make_plan([declaration], [made for made in registry.properties(declaration.kind)
                                        if made.id.partition("/")[2] not in LEFT_TO_CHECK], Selection(devices=("cpu",)))
    row.declaration, row.cases, row.left = declaration.to_json(), planned.cases, planned.left_out
    target = {"target": name, "kind": declaration.kind, "isolated": True, "memory": MEMORY, "declarations": [declaration.to_json()]}
    judge = open_judge(zygote.address, {"targets": [target], "settings": asdict(settings)})
    try:
        for case in planned.cases:
            row.results.append(_result(judge, case, deadline))
    except TimeoutError:  # of the whole type, on a machine that others may load: what was not reached is not known
        row.reason = f"{UNFINISHED}: its time was over in {planned.cases[len(row.results)].property}"
    except ConnectionError:
        case = planned.cases[len(row.results)]
        row.results.append(_ended(case, planned.properties[case.property]))
    finally:
        judge.kill()  # and with it the host


def _result(judge: Channel, case: CaseSpec, deadline: float) -> dict[str, Any]:
    judge.send(asdict(case), deadline)
    return dict(judge.receive(deadline))


def _ended(case: CaseSpec, prop: Property) -> dict[str, Any]:
    """The result of a case whose judge ended."""
    return dict(events.result(
        id=case.id, property=prop.id, statements=prop.statements, implementation=case.implementation, device=case.device,
        dtype=case.dtype, status="harness-error", sentence=prop.sentence, message="its judge ended"))
