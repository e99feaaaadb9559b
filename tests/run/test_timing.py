"""`assay bench`: rows for all that runs, words for what does not, nothing lost where a process dies."""
from __future__ import annotations

from pathlib import Path

import pytest

from assay import registry
from assay.errors import UsageError
from assay.run import bench
from assay.run.timing import GROWTH, Contest, exponent, in_turns
from assay.run.workloads import PEERS, WORKLOADS, Workload, example

OWN = '''
import os, torch, assay

@assay.implements("rotary", name="mine")
def mine(x, positions, *, base=10000.0, pairing="interleaved"):
    return assay.get("rotary", "reference")(x, positions, base=base, pairing=pairing)

@assay.implements("rotary", name="halved")
def halved(x, positions, *, base=10000.0, pairing="interleaved"):
    return x / 2

@assay.implements("rotary", name="raises")
def raises(x, positions, *, base=10000.0, pairing="interleaved"):
    raise RuntimeError("no kernel for this size")
'''


def test_own_implementations_stand_beside_their_peer(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    report = bench.run([str(tmp_path / "own.py")], rounds=2)
    rows = {(row["implementation"], row["mode"]): row for row in report.rows}
    assert rows["reference", "forward"]["ratio"] == 1
    assert rows["mine", "forward"]["right"] == "right"
    assert rows["mine", "forward + backward"]["ratio"] > 0
    assert rows["halved", "forward"]["right"] == "wrong" and rows["halved", "forward"]["share_of_floor"] is None
    assert all(0 < rows[name, "forward"]["share_of_floor"] <= 1 for name in ("reference", "mine"))
    assert rows["raises", "forward"]["ratio"] is None
    assert "no kernel for this size" in rows["raises", "forward"]["note"]
    assert any("mine" in line for line in report.lines())


@pytest.mark.parametrize(("end", "told"), [("os._exit(3)", "code 3"), ("os.kill(os.getpid(), 11)", "SIGSEGV")])
def test_what_was_measured_survives_a_process_that_dies(tmp_path: Path, end: str, told: str) -> None:
    (tmp_path / "own.py").write_text(OWN.replace('raise RuntimeError("no kernel for this size")', end))
    report = bench.run([str(tmp_path / "own.py")], rounds=2)
    assert told in report.ended[0]
    assert report.lines()[-1] == report.ended[0]


def test_a_kind_without_workload_is_refused_in_one_line() -> None:
    with pytest.raises(UsageError, match="kind='tokenizer' has nothing that is timed"):
        bench.run(["tokenizer"])


def test_every_round_times_each_once() -> None:
    order: list[str] = []
    calls = [lambda: order.append("a"), lambda: order.append("b")]
    assert [len(times) for times in in_turns(calls, 3, "cpu")] == [3, 3]
    assert {"a", "b"} == set(order)


def test_the_exponent_is_that_of_the_power() -> None:
    assert exponent([int(1000 * factor**2) for factor in GROWTH]) == pytest.approx(2, abs=0.01)
    assert exponent([0, 1, 2]) is None


@pytest.mark.parametrize("kind", WORKLOADS)
def test_workloads_can_be_built(kind: str) -> None:
    import torch

    small = Workload("small", {letter: min(size, 4) for letter, size in WORKLOADS[kind][0].dims.items()}, WORKLOADS[kind][0].flags)
    assert dict(example(kind, small, torch.float32).arguments)
    assert set(PEERS) <= set(WORKLOADS)


def test_the_gradients_of_parameters_are_timed_too() -> None:
    reference = next(made for made in registry.declarations("block") if made.name == "reference")
    contest = Contest("block", WORKLOADS["block"][0].grown(1 / 64), [reference], "float32", "cpu", 1)
    found = contest._timed(reference, "forward + backward")()
    assert len(found) == 1 + len(contest.example.arguments["params"]) and all(bool((one != 0).any()) for one in found)
