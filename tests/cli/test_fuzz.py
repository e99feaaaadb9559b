"""`assay fuzz`: what is found is kept and runs first; a right implementation ends in 0 and leaves nothing."""
from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from assay.cli.fuzzing import seconds
from assay.errors import UsageError

Call = Callable[..., tuple[int, str, str]]
SOON = ("--time", "4s", "--dtype", "float32", "--only", "SM-1", "--workers", "1", "--isolate", "never", "--json")


def test_a_failure_is_kept_and_runs_first_the_next_time(kernels: Path, assay: Call) -> None:
    code, out, _ = assay("fuzz", "kernels.py:wrong", *SOON)
    told = json.loads(out)
    assert code == 1 and told["failing"] and told["replayed"] == 0
    kept = list(Path("assay-fuzz/found").glob("*/seed-*/report.jsonl"))
    assert kept
    code, out, err = assay("fuzz", "kernels.py:wrong", *SOON)
    assert code == 1 and json.loads(out)["replayed"] >= 1 and "still failing" in err


def test_a_right_implementation_leaves_nothing(kernels: Path, assay: Call) -> None:
    code, out, _ = assay("fuzz", "kernels.py:right", *SOON)
    told = json.loads(out)
    assert code == 0 and not told["failing"] and told["examples"] > 0
    assert not list(Path("assay-fuzz").glob("found/*/*"))


def test_what_was_found_on_another_target_is_none_of_this_one(kernels: Path, assay: Call) -> None:
    assert assay("fuzz", "kernels.py:wrong", *SOON)[0] == 1
    code, out, _ = assay("fuzz", "kernels.py:right", *SOON)
    assert code == 0 and json.loads(out)["replayed"] == 0


@pytest.mark.parametrize(("span", "wanted"), [("90s", 90), ("10m", 600), ("1.5h", 5400), ("7", 7)])
def test_spans(span: str, wanted: float) -> None:
    assert seconds(span) == wanted


@pytest.mark.parametrize("span", ["", "soon", "-1s", "0m", "1d", "nan"])
def test_no_spans(span: str) -> None:
    with pytest.raises(UsageError, match="must be a number above 0"):
        seconds(span)
