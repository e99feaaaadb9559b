"""What the harness itself costs: python bench/overhead.py [TARGET] (default sdpa). Ratios from one run; CPU time, not clocks.

share: CPU time inside implementation, reference and bounds, over all CPU time of judging, in this process.
isolation: wall time of judging in a supervised process over judging in this one, case by case.
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
from assay.run.judge import Settings
from assay.run.judging import Bench
from assay.run.plan import CaseSpec, Selection, make_plan
from assay.run.zygote_process import Zygote

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


def isolation(name: str, kind: str, cases: list[CaseSpec]) -> tuple[float, float]:
    """Wall time of judging in a supervised process over judging in this one: of all cases together, and the median of cases.

    Each case is judged once here and once there, in turn, with fresh evaluations as in a run; who is first alternates.
    """
    with Zygote() as zygote:
        declared = [made.to_json() for made in registry.declarations(kind) if made.name == name]
        benches = (Bench([{"isolated": False, "declarations": [{"kind": kind, "name": name}]}], Settings(), None),
                   Bench([{"isolated": True, "target": name, "kind": kind, "declarations": declared}], Settings(), zygote.address))
        for bench in benches:
            bench.run(cases[0])  # the first case pays for imports and for the process
        spent: list[list[float]] = [[], []]
        for turn, case in enumerate(cases[1:]):
            for which in (turn % 2, 1 - turn % 2):
                started = time.perf_counter()
                benches[which].run(case)
                spent[which].append(time.perf_counter() - started)
        benches[1].close()
    return sum(spent[1]) / sum(spent[0]), statistics.median(there / here for here, there in zip(*spent, strict=True))


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
    whole, median = isolation(name, kind, cases[::5])
    print(f"isolation over in-process, {len(cases[::5]) - 1} cases: {whole:.2f} in all, median {median:.2f}")
    print(f"cold `assay check {name}`, standard, {', '.join(DTYPES)}: {cold('check', name, '--quiet'):.1f} s")
    print(f"`assay --help`: {cold('--help'):.2f} s")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "sdpa")
