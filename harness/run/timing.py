"""The inside of `assay bench`: a process that loads implementations and times them in turns, A B C A B C ….

Reads a request as JSON from standard input and writes a row of JSON a line; what implementations print goes to stderr.
What counts are ratios from one run: each round times every implementation once, and ratios are taken within a round.
"""
from __future__ import annotations

import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from assay import ledger, registry
from assay.contract import loading
from assay.contract.declaration import Declaration
from assay.contract.kinds import KINDS
from assay.errors import AssayError, UsageError
from assay.hosting import Call
from assay.run.arguments import bind
from assay.run.hosts import LocalHost
from assay.run.perform import clean
from assay.run.standalone import leaves
from assay.run.workloads import Workload, example, peer, workloads
from assay.subject import Evaluations, Subject

ROUND = 0.02  # seconds that one implementation gets in a round, at least
GROWTH = (0.25, 0.5, 1.0)
Timed = Callable[[], Any]


@dataclass(frozen=True)
class Row:
    """One implementation on one workload. Ratios are to the peer: below 1 is faster."""

    kind: str
    workload: str
    implementation: str
    mode: str  # forward, or forward + backward
    dtype: str
    device: str
    ratio: float | None = None
    low: float | None = None  # quartiles of the ratio over rounds
    high: float | None = None
    share_of_floor: float | None = None  # least time for the operations or bytes alone over the time taken; of a wrong one none
    multiply_adds: int | None = None
    peak_bytes: int | None = None
    memory_exponent: float | None = None
    work_exponent: float | None = None
    right: str = ""  # right, wrong or undecided by the formula's bound on this very example
    note: str = ""


def main() -> None:
    """Answer the request on standard input."""
    request = json.load(sys.stdin)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    try:
        for row in rows(request):
            answers.write(json.dumps(asdict(row)) + "\n")
    except UsageError as error:
        answers.write(json.dumps({"usage": str(error)}) + "\n")
    answers.flush()
    os._exit(0)  # threads that an implementation left behind would keep an ordinary exit waiting


def rows(request: Mapping[str, Any]) -> Iterator[Row]:
    """Every row of the request, kind by kind."""
    for kind, declared in chosen(request["targets"], request["kind"]).items():
        for workload in workloads(kind):
            yield from Contest(kind, workload, declared, request["dtype"], request["device"], request["rounds"]).rows()


def chosen(targets: Sequence[str], only: str | None) -> dict[str, list[Declaration]]:
    """Implementations by kind: a kind's name stands for all that are built in; the peer and the reference always join."""
    found: dict[str, list[Declaration]] = {}
    for target in targets:
        if target in KINDS:
            workloads(target)
        for made in registry.declarations(target) if target in KINDS else loading.load(target, only):
            if target not in KINDS or not made.deep:
                found.setdefault(made.kind, []).append(made)
    for kind, declared in found.items():
        names = {made.name for made in declared}
        declared[:0] = [made for made in registry.declarations(kind)
                        if made.name in {peer(kind), "reference"} and made.name not in names]
    return found


class Contest:
    """All implementations of one workload."""

    def __init__(self, kind: str, workload: Workload, declared: Sequence[Declaration], dtype: str, device: str,
                 rounds: int) -> None:
        self.kind, self.workload, self.dtype, self.device, self.rounds = kind, workload, dtype, device, rounds
        self.declared = sorted(declared, key=lambda made: made.name != peer(kind))
        self.example = example(kind, workload, getattr(torch, dtype))
        self.evaluations = Evaluations()
        self._facts: dict[str, dict[str, Any]] = {}
        self._results: tuple[Any, ...] = ()
        self._width = getattr(torch, dtype).itemsize

    def rows(self) -> Iterator[Row]:
        """Forward, then forward and backward, where the kind has gradients."""
        able = [made for made in self.declared if self._prepared(made)]
        for made in self.declared:
            if made not in able:
                yield self._row(made, "forward", note=self._facts[made.name]["note"])
        yield from self._mode("forward", able)
        if KINDS[self.kind].differentiable:
            yield from self._mode("forward + backward", [made for made in able if made.grad])

    def _prepared(self, made: Declaration) -> bool:
        """Judge and count it once; False where it does not run, or does not claim this."""
        facts = self._facts[made.name] = {"note": ""}
        outside = next((f"{letter}={size} is not claimed" for letter, size in self.workload.dims.items()
                        if not made.allows(letter, size)), "")
        if self.dtype not in made.dtypes:
            outside = f"{self.dtype} is not claimed"
        if outside:
            facts["note"] = outside
            return False
        try:
            facts["right"] = self._judged(made)
            facts |= self._counted(made)
            self._timed(made, "forward")()
        except Exception as error:  # noqa: BLE001 - the boundary to foreign code: whatever it raises is its row's note
            facts["note"] = clean(f"{type(error).__name__}: {error}", 200)
            return False
        return True

    def _judged(self, made: Declaration) -> str:
        """Whether the output is the formula's, within its bound, on this example: speed of a wrong result is nothing."""
        subject = Subject(made, LocalHost([made]), getattr(torch, self.dtype), self.example, device=self.device,
                          evaluations=self.evaluations)
        with ledger.open_ledger() as decisions:
            got, want = subject(**self.example), subject.exact(**self.example)
            self._results = _several(want)
            for one, other in zip(_several(got), self._results, strict=True):
                _ = one == other  # the comparison enters itself into the ledger
        return str(decisions.outcome())

    def _counted(self, made: Declaration) -> dict[str, Any]:
        """Operations, memory, and how both grow."""
        peaks, products, last = list[int](), list[int](), dict[str, int]()
        for factor in GROWTH:
            grown = example(self.kind, self.workload.grown(factor), getattr(torch, self.dtype))
            call = Call(self.kind, made.name, dict(grown.arguments), device=self.device, grad_mode=False, count=True)
            last = dict(LocalHost([made]).call(call).counts)
            peaks.append(last.get("peak_bytes", 0))
            products.append(last.get("multiply_adds", 0))
        return {"multiply_adds": products[-1], "peak_bytes": peaks[-1], "memory_exponent": exponent(peaks),
                "work_exponent": exponent(products)}

    def _timed(self, made: Declaration, mode: str) -> Timed:
        """A call without anything of ours around it."""
        gradients = mode != "forward"
        values = {name: _placed(value, self.device, gradients and name in KINDS[self.kind].differentiable)
                  for name, value in self.example.arguments.items()}
        positional, keywords = bind(made, values)
        function = made.function
        assert function is not None

        def forward() -> Any:
            with torch.no_grad():
                return function(*positional, **keywords)

        def both() -> Any:
            out = [one for one in _several(function(*positional, **keywords))
                   if isinstance(one, torch.Tensor) and one.requires_grad]
            wanted = [one for _, one in leaves(values, "") if one.requires_grad]
            return torch.autograd.grad(out, wanted, [torch.ones_like(one) for one in out], allow_unused=True)

        return both if gradients else forward

    def _mode(self, mode: str, able: Sequence[Declaration]) -> Iterator[Row]:
        """Times of all in turns, as ratios to the first."""
        if not able:
            return
        ceilings = self._ceilings() if mode == "forward" else []
        times = in_turns([*(self._timed(made, mode) for made in able), *(call for call, _ in ceilings)], self.rounds, self.device)
        floor = self._floor(able, times, [many for _, many in ceilings]) if ceilings else None
        for made, spent in zip(able, times, strict=False):
            ratios = [own / other for own, other in zip(spent, times[0], strict=True)]
            low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else (ratios[0],) * 3
            share = None if floor is None or self._is_wrong(made) else floor / min(spent)
            yield self._row(made, mode, ratio=middle, low=low, high=high, share_of_floor=share)

    def _ceilings(self) -> list[tuple[Timed, float]]:
        """What the machine does best, and how many such calls the work takes: moving as many bytes as arguments and results hold,
        and the fewest products that any of them makes. They are timed among the others, under the same load."""
        arguments = [one for _, one in leaves(dict(self.example.arguments), "")]
        results = [one for one in self._results if isinstance(one, torch.Tensor)]  # in fp64, whatever they are in when written
        moved = sum(one.numel() * one.element_size() for one in arguments) + sum(one.numel() * self._width for one in results)
        block = torch.ones(max(1, moved // 2), dtype=torch.uint8, device=self.device)
        target = torch.empty_like(block)
        found: list[tuple[Timed, float]] = [(lambda: target.copy_(block), 1.0)]
        least = min((facts["multiply_adds"] for facts in self._facts.values() if facts.get("multiply_adds")), default=0)
        if least:
            size = 512 if self.device == "cpu" else 8192
            square = torch.ones(size, size, dtype=getattr(torch, self.dtype), device=self.device)
            found.append((lambda: square @ square, least / size**3))
        return found

    def _floor(self, able: Sequence[Declaration], times: Sequence[Sequence[float]], many: Sequence[float]) -> float:
        """Seconds for the longer of the two, or those of the fastest that is not wrong: what was done can be done."""
        best = [min(spent) for spent in times]
        needed = max(share * one for share, one in zip(many, best[len(able):], strict=True))
        return min([needed, *(one for made, one in zip(able, best, strict=False) if not self._is_wrong(made))])

    def _is_wrong(self, made: Declaration) -> bool:
        return self._facts[made.name].get("right") == "wrong"

    def _row(self, made: Declaration, mode: str, **told: Any) -> Row:
        facts = {name: value for name, value in self._facts[made.name].items() if name not in told}
        return Row(self.kind, self.workload.label, made.name, mode, self.dtype, self.device, **{**facts, **told})


def _several(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def _placed(value: Any, device: str, gradient: bool) -> Any:
    if isinstance(value, Mapping):
        return {name: _placed(one, device, gradient) for name, one in value.items()}
    if not isinstance(value, torch.Tensor):
        return value
    moved = value.detach().to(device).clone()
    return moved.requires_grad_() if gradient and moved.is_floating_point() else moved


# ------------------------------------------------------------------------------------------------ clocks and ceilings
def in_turns(calls: Sequence[Timed], rounds: int, device: str) -> list[list[float]]:
    """Seconds a call, of each and by round; every round has each once, and starts with another."""
    repeats = []
    for call in calls:
        once = seconds(call, 2, device)
        repeats.append(max(1, math.ceil(ROUND / max(once, 1e-9))))
    spent: list[list[float]] = [[] for _ in calls]
    for turn in range(rounds):
        for place in range(len(calls)):
            which = (turn + place) % len(calls)
            spent[which].append(seconds(calls[which], repeats[which], device))
    return spent


def seconds(call: Timed, repeats: int, device: str) -> float:
    """Of one call, over several in a row; by CUDA's own events where that is the device."""
    if device.startswith("cuda"):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()  # type: ignore[no-untyped-call]
        for _ in range(repeats):
            call()
        end.record()  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        return float(start.elapsed_time(end)) / 1000 / repeats  # type: ignore[no-untyped-call]
    started = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - started) / repeats


def exponent(counts: Sequence[int]) -> float | None:
    """The slope of log memory, or work, over log size, by least squares; None where nothing was counted."""
    if not all(count > 0 for count in counts):
        return None
    xs, ys = [math.log(factor) for factor in GROWTH], [math.log(count) for count in counts]
    return statistics.linear_regression(xs, ys).slope


if __name__ == "__main__":
    try:
        main()
    except AssayError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(1)
