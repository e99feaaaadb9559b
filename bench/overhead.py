"""What the harness itself costs: python bench/overhead.py [TARGET] (default sdpa). Ratios from one run; CPU time, not clocks.

share: CPU time inside implementation, reference and bounds, over all CPU time of judging, in this process.
isolation: wall time of judging in a supervised process over judging in this one, cases alternating, medians.
cold: seconds from the start of a fresh `assay check` to its verdict, and of `assay --help`.
"""
from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from assay import registry
from assay.run.hosts import Zygote
from assay.run.judge import Settings
from assay.run.judging import Bench
from assay.run.plan import CaseSpec, Selection, make_plan

DTYPES = ("float32", "float16", "bfloat16")


class Stopwatch:
    """CPU time spent inside some functions, outermost calls only."""

    def __init__(self) -> None:
        self.seconds, self._depth = 0.0, 0

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            self._depth += 1
            started = time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                self._depth -= 1
                if self._depth == 0:
                    self.seconds += time.process_time() - started
        return timed


def cases_of(name: str) -> tuple[str, list[CaseSpec]]:
    """The kind of a built-in implementation, and its cases."""
    declared = [made for made in registry.declarations() if made.name == name]
    kind = declared[0].kind
    return kind, list(make_plan(declared[:1], registry.properties(kind), Selection(dtypes=DTYPES)).cases)


def share(name: str, kind: str, cases: list[CaseSpec]) -> dict[str, float]:
    """CPU seconds by where they went."""
    bench = Bench([{"isolated": False, "declarations": [{"kind": kind, "name": name}]}], Settings(), None)
    implementation, formula = Stopwatch(), Stopwatch()
    host = next(iter(bench._hosts.values()))
    host.call = implementation.around(host.call)  # type: ignore[method-assign]
    bench.judge.evaluations.get = formula.around(bench.judge.evaluations.get)  # type: ignore[method-assign]
    started = time.process_time()
    for case in cases:
        bench.run(case)
    total = time.process_time() - started
    return {"cases": len(cases), "total": total, "implementation": implementation.seconds, "reference and bounds": formula.seconds,
            "share": (implementation.seconds + formula.seconds) / total}


def isolation(name: str, kind: str, cases: list[CaseSpec]) -> float:
    """Median over cases of the time in a supervised process over the time in this one."""
    with Zygote() as zygote:
        here = Bench([{"isolated": False, "declarations": [{"kind": kind, "name": name}]}], Settings("quick"), None)
        declared = [made.to_json() for made in registry.declarations(kind) if made.name == name]
        target = {"isolated": True, "target": name, "kind": kind, "declarations": declared}
        there = Bench([target], Settings("quick"), zygote.address)
        ratios = []
        for case in cases:
            times = []
            for bench in (here, there):
                bench.run(case)  # the first run pays for caches and the process
                started = time.perf_counter()
                bench.run(case)
                times.append(time.perf_counter() - started)
            ratios.append(times[1] / times[0])
        there.close()
    return statistics.median(ratios)


def cold(*arguments: str) -> float:
    """Seconds of one fresh command."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        subprocess.run([str(Path(sys.executable).with_name("assay")), *arguments], cwd=folder, capture_output=True, check=False)
        return time.perf_counter() - started


def main(name: str) -> None:
    torch.set_num_threads(1)
    kind, cases = cases_of(name)
    spent = share(name, kind, cases)
    print(f"{name}: {spent['cases']:.0f} cases, {spent['total']:.1f} s CPU; implementation {spent['implementation']:.1f} s, "
          f"reference and bounds {spent['reference and bounds']:.1f} s: share {spent['share']:.0%}")
    print(f"isolation over in-process, median of {len(cases[::5])} cases: {isolation(name, kind, cases[::5]):.2f}")
    print(f"cold `assay check {name}`, standard, {', '.join(DTYPES)}: {cold('check', name, '--quiet'):.1f} s")
    print(f"`assay --help`: {cold('--help'):.2f} s")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "sdpa")
