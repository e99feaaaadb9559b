"""Cases one by one, for runners that are not ours: pytest asks for the plan, then for the result of each case."""
from __future__ import annotations

import atexit
import os
import shlex
from collections.abc import Mapping
from typing import Any

from assay.contract.declaration import Declaration
from assay.run.judging import Bench
from assay.run.plan import CasePlan, CaseSpec
from assay.run.pool import Job
from assay.run.session import Request, Session, Target, imports_that_died
from assay.run.verdicts import FAILED, foundations
from assay.run.waivers import Register


class Units:
    """The plan of a request, and a bench in this process that is made when the first case is asked for.

    Implementations that a file or import path names run in processes of their own; the zygote they come from is this
    process' own and ends with it.
    """

    def __init__(self, request: Request) -> None:
        self.request = request
        self._session: Session | None = None
        self._targets: list[Target] | None = None
        self._planned: CasePlan | None = None
        self.mine: list[CaseSpec] = []
        self._bench: Bench | None = None
        self._register: Register | None = None
        self._status: dict[str, str] = {}

    # ------------------------------------------------------------------------------------------------ the plan
    def targets(self) -> list[Target]:
        """What is checked. Usage is settled here."""
        if self._targets is None:
            self._session = Session(self.request)
            self._session.__enter__()
            atexit.register(self.close)
            self._targets = self._session.resolve()
        return self._targets

    def declarations(self) -> list[Declaration]:
        """Everything that the targets declare."""
        return [made for target in self.targets() for made in target.declarations]

    def plan(self) -> CasePlan:
        """The plan; made once."""
        if self._planned is None:
            targets = self.targets()
            assert self._session is not None
            self._planned, self.mine = self._session.plan(targets)
        return self._planned

    def cases(self) -> list[CaseSpec]:
        """The cases in the order in which they should run. A file that died at its import has none: HostError."""
        self.plan()
        for target in self.targets():
            if target.died is not None:
                raise target.died
        return self.mine

    def died(self) -> list[dict[str, Any]]:
        """A result for each import that killed its process or hung."""
        return list(imports_that_died(self.targets()))

    # ------------------------------------------------------------------------------------------------ results
    def result(self, case: CaseSpec) -> Mapping[str, Any]:
        """The result of a case, waivers and known foundations taken into account."""
        bench, planned = self._bench or self._make_bench(), self.plan()
        result = self._waivers(bench).apply(bench.run(case))
        below = [id for id in foundations(result, planned.properties) if self._status.get(id) in FAILED]
        if result["status"] == "fail" and below:
            result = {**result, "status": "blocked", "blocked_by": below}
        self._status[case.id] = result["status"]
        if result["reproduce"].startswith(shlex.join(["assay", "replay", "this process"])):
            test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]  # a live object: only its test can make it again
            result = {**result, "reproduce": shlex.join(["pytest", test]) if test else ""}
        return result

    def _waivers(self, bench: Bench) -> Register:
        """Waivers, their counterexamples run first."""
        if self._register is None:
            self._register = Register(self.request.waivers, self.declarations(), self.mine, self.plan())
            self._register.take(self._again(bench, job) for job in self._register.jobs())
        return self._register

    def _again(self, bench: Bench, job: Job) -> dict[str, Any]:
        return bench.again(job.case, job.example or {})

    def findings(self) -> list[dict[str, Any]]:
        """Stale waivers, where there are any."""
        if not self.request.waivers:
            return []
        return list(self._waivers(self._bench or self._make_bench()).findings())

    def _make_bench(self) -> Bench:
        targets = self.targets()
        assert self._session is not None
        messages = [{**target.message(), "declared": list(target.declarations)} if not target.isolated else target.message()
                    for target in targets if target.declarations]
        self._bench = Bench(messages, self.request.settings, self._session.address)
        return self._bench

    def close(self) -> None:
        """End hosts and zygote."""
        if self._bench is not None:
            self._bench.close()
            self._bench = None
        if self._session is not None:
            self._session.__exit__(None, None, None)
            self._session = None
        atexit.unregister(self.close)


