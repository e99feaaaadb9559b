"""Specifications of positions: angles are held to float32 at any position, lengths to a bar without the angle."""
from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from assay import registry
from assay.contract.declaration import declare
from assay.run.judge import Settings
from assay.run.judging import Bench
from assay.run.plan import Selection, make_plan


def status(kind: str, name: str, dtype: str, function: Any, **options: Any) -> str:
    """The verdict of one property on one function."""
    made = declare(kind, function, name="tried", dtypes=(dtype,), **options)
    bench = Bench([{"isolated": False, "declared": [made]}], Settings(profile="quick"), None)
    plan = make_plan([made], registry.properties(kind), Selection(only=(name,)))
    (case,) = plan.cases
    try:
        return str(bench.run(case)["status"])
    finally:
        bench.close()


def turned(x: Tensor, angle: Tensor) -> Tensor:
    """Neighbouring channels turned by these angles (…, T, D/2), rounded once."""
    angle = angle.unsqueeze(1) if angle.dim() == 3 else angle
    a, b = x[..., 0::2].double(), x[..., 1::2].double()
    both = (a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos())
    return torch.stack(both, dim=-1).flatten(-2).to(x.dtype)


def frequencies(x: Tensor, dtype: torch.dtype) -> Tensor:
    return 10000.0 ** -(torch.arange(0, x.shape[-1], 2).to(dtype) / x.shape[-1])


def in_float32(x: Tensor, positions: Tensor) -> Tensor:
    return turned(x, (positions.float().unsqueeze(-1) * frequencies(x, torch.float32)).double())


def in_bfloat16(x: Tensor, positions: Tensor) -> Tensor:
    return turned(x, (positions.float().unsqueeze(-1) * frequencies(x, torch.float32)).bfloat16().double())


def slightly_long(x: Tensor, positions: Tensor) -> Tensor:
    """A right angle, and a turn that lengthens by four units of the type."""
    angle = positions.double().unsqueeze(-1) * frequencies(x, torch.float64)
    return (turned(x.double(), angle) * (1 + 8 * torch.finfo(x.dtype).eps)).to(x.dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_angles_in_float32_pass_up_to_a_million(dtype: str) -> None:
    assert status("rotary", "angles_are_formed_in_float32", dtype, in_float32) == "pass"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_angles_in_bfloat16_fail(dtype: str) -> None:
    assert status("rotary", "angles_are_formed_in_float32", dtype, in_bfloat16) == "fail"


@pytest.mark.parametrize("function", [in_float32, in_bfloat16])
def test_lengths_are_judged_apart_from_angles(function: Any) -> None:
    assert status("rotary", "length_of_each_pair_is_kept", "float32", function) == "pass"


def test_a_length_off_by_a_few_units_fails_at_any_position() -> None:
    assert status("rotary", "length_of_each_pair_is_kept", "float32", slightly_long) == "fail"


def test_a_table_of_bfloat16_is_caught_where_float32_is_claimed() -> None:
    def tables_in_bfloat16(x: Tensor, positions: Tensor) -> Tensor:
        angle = positions.float().unsqueeze(-1) * frequencies(x, torch.float32)
        angle = angle.unsqueeze(1) if angle.dim() == 3 else angle
        cos, sin = angle.cos().bfloat16().float(), angle.sin().bfloat16().float()
        a, b = x[..., 0::2].float(), x[..., 1::2].float()
        return torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2).to(x.dtype)

    for internal, want in (("float32", "fail"), ("input", "pass")):
        assert status("rotary", "output_is_the_formula", "bfloat16", tables_in_bfloat16,
                      arithmetic={"internal": internal}) == want


def test_every_statement_of_positions_is_covered() -> None:
    ids = {"rotary": [*(f"ROPE-{n}" for n in range(1, 9)), "YARN-1"], "sinusoidal": [f"SIN-{n}" for n in range(1, 6)],
           "alibi": ["ALI-1", "ALI-2", "E11"], "embedding": ["EMB-2"], "input_embedding": ["EMB-1", "LRN-1"],
           "unembedding": ["LM-1"], "patchify": ["VIT-1"]}
    for kind, wanted in ids.items():
        covered = {id for prop in registry.properties(kind) for id in prop.statements}
        assert set(wanted) <= covered, kind
