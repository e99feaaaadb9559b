"""The inside of a judge: a trusted process that is given cases over a connection and answers with results."""
from __future__ import annotations

import socket
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from assay import registry
from assay.cases import Configuration
from assay.contract.declaration import Declaration
from assay.contract.loading import load
from assay.errors import AssayError, HarnessError
from assay.hosting import Host
from assay.properties import Property
from assay.run import events, wire
from assay.run.hosts import LocalHost, RemoteHost
from assay.run.judge import Judge, Settings
from assay.run.plan import CaseSpec


class Bench:
    """What a judge needs to try a case: the properties, the declarations, and a host for each target."""

    def __init__(self, targets: Sequence[Mapping[str, Any]], settings: Settings, zygote: str | None) -> None:
        self.settings = settings
        self.judge = Judge(settings)
        self.properties: dict[str, Property] = {prop.id: prop for prop in registry.properties()}
        self.declarations: dict[tuple[str, str], Declaration] = {}
        self._hosts: dict[tuple[str, str], Host] = {}
        for target in targets:
            self._add(target, zygote)

    def _add(self, target: Mapping[str, Any], zygote: str | None) -> None:
        if target["isolated"]:
            if zygote is None:
                raise HarnessError("an isolated target needs a zygote")
            declared = [Declaration.from_json(one) for one in target["declarations"]]
            host: Host = RemoteHost(zygote, target["target"], target["kind"], timeout=self.settings.timeout,
                                    memory=target.get("memory"), loaded=True)
        else:
            declared = target["declared"] if "declared" in target else local_declarations(target)
            host = LocalHost(declared)
        for declaration in declared:
            key = (declaration.kind, declaration.name)
            self.declarations[key], self._hosts[key] = declaration, host

    def run(self, case: CaseSpec) -> dict[str, Any]:
        """The result of one case; a fault of ours is a harness-error of that case."""
        key = (case.kind, case.implementation)
        prop = self.properties[case.property]
        try:
            return self.judge.judge(case, prop, self.declarations[key], self._hosts[key])
        except Exception as error:  # noqa: BLE001 - the boundary of a case: what goes wrong in the harness must not end the run
            return harness_error(case, prop, error)

    def again(self, case: CaseSpec, example: Mapping[str, Any]) -> dict[str, Any]:
        """The result of one stored example of a case."""
        key = (case.kind, case.implementation)
        prop = self.properties[case.property]
        try:
            made = Configuration.from_json(example)
            return self.judge.again(case, prop, self.declarations[key], self._hosts[key], made)
        except Exception as error:  # noqa: BLE001 - the boundary of a case, as in `run`
            return harness_error(case, prop, error)

    def close(self) -> None:
        for host in set(self._hosts.values()):
            host.close()


def local_declarations(target: Mapping[str, Any]) -> list[Declaration]:
    """A target's declarations, functions and all: built-in ones by kind and name, planted faults and benign ways by theirs, and a
    file that is not to be isolated by loading it here."""
    found: list[Declaration] = []
    if any(one.get("builtin") is False for one in target["declarations"]):
        return load(target["target"], target["kind"])
    for one in target["declarations"]:
        planted = one.get("planted")
        if planted:
            pool: list[registry.Fault | registry.Benign] = [*registry.faults(one["kind"]), *registry.benigns(one["kind"])]
            found += [made.declaration for made in pool if made.id == planted]
        else:
            found += [made for made in registry.declarations(one["kind"]) if made.name == one["name"]]
    return found


def harness_error(case: CaseSpec, prop: Property, error: BaseException) -> dict[str, Any]:
    """The result of a case in which the harness itself failed."""
    tail = "".join(traceback.format_exception(error))[-events.TAIL_LENGTH:]
    text = str(error) if isinstance(error, AssayError) else f"{type(error).__name__}: {error}"
    return dict(events.result(
        id=case.id, property=case.property, implementation=case.implementation, device=case.device, dtype=case.dtype,
        status="harness-error", statements=prop.statements, sentence=prop.sentence, rests_on=prop.rests_on, stderr_tail=tail,
        message=f"a fault of the harness, not of the implementation: {text}"))


def warm() -> None:
    """Import the specification, so that a fork has it."""
    registry.properties()


def serve(channel: socket.socket, request: Mapping[str, Any]) -> None:
    """The life of a judge: set-up first, then one result a case until the connection closes."""
    import torch

    torch.set_num_threads(1)
    setup = wire.receive(channel)
    bench = Bench(setup["targets"], Settings(**setup["settings"]), request.get("zygote"))
    wire.send(channel, {"ready": True})
    try:
        while True:
            try:
                asked = wire.receive(channel)
            except ConnectionError:
                return
            example = asked.pop("example", None)
            case = CaseSpec(**asked)
            found = bench.run(case) if example is None else bench.again(case, example)
            try:
                wire.send(channel, found)
            except ConnectionError:  # who asked was ended meanwhile
                return
    finally:
        bench.close()
