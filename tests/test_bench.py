"""Bounds are no wider than on record, and the rules in common use are told apart by what they miss."""
from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench"))

import headroom  # noqa: E402
import kill_matrix  # noqa: E402

WIDER = 1.5  # a median of so many times the recorded one fails: kernels differ between machines, bounds hardly do


CELLS = [("softmax", "float32"), ("softmax", "bfloat16"), ("attention", "float32")]


@pytest.mark.parametrize(("kind", "precision"), CELLS)
def test_bounds_are_no_wider_than_on_record(kind: str, precision: str) -> None:
    recorded = json.loads(headroom.RECORD.read_text())[kind][precision]
    measured = headroom.measure(kind, (precision,))[precision]
    assert measured.keys() == recorded.keys(), "a form came or went: run python bench/headroom.py and look at it"
    for form, parts in measured.items():
        for part, found in parts.items():
            assert found["min"] >= 1, f"{form}, {part}: an error beyond its bound"
            assert found["relative_bar"] <= WIDER * recorded[form][part]["relative_bar"], (form, part)


def test_rules_judge_as_their_names_say() -> None:
    truth = torch.linspace(1, 2, 8, dtype=torch.float64)
    reference = truth.float()
    right = kill_matrix.Result(reference, reference, truth)
    off = kill_matrix.Result(reference * 1.005, reference, truth)
    assert all(rule(right) for rule, _ in kill_matrix.RULES.values())
    told = {name for name, (rule, _) in kill_matrix.RULES.items() if not rule(off)}
    assert told == {"assert_close, defaults", "error ≤ 2 × reference's", "three shapes, rtol 1e-3"}
    broken = kill_matrix.Result(reference * torch.nan, reference, truth)
    assert not any(rule(broken) for rule, _ in kill_matrix.RULES.values())
