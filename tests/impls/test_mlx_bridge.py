"""The bridge from MLX beyond test_array_bridges.py: what it refuses, and MLX's own functions behind it."""
from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from arrays import drawn, multiplying
from bars import formula, within

from assay import registry
from assay.impls.mlx_bridge import bridged

mx = pytest.importorskip("mlx.core", reason="mlx is not installed; the extra `mlx` has it")

SEEN: list[dict[str, Any]] = []


multiply = multiplying(bridged, lambda mask, x: mx.where(mask, x, mx.zeros_like(x)), SEEN)


def test_every_argument_keeps_its_nature() -> None:
    multiply(drawn(3), mask=torch.tensor([True, False, True]), ids=torch.tensor([0, -100, 1 << 40]), scale=3)
    seen = SEEN[-1]
    assert (seen["mask"].dtype, seen["ids"].dtype, seen["y"], seen["scale"]) == (mx.bool_, mx.int64, None, 3)
    assert seen["ids"].tolist() == [0, -100, 1 << 40]


def test_what_mlx_would_narrow_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="float32 or narrower"):
        multiply(drawn(2, dtype=torch.float64))


def attention(**options: Any) -> list[float]:
    """Equal scores: each query gives the mean of the values 1, 10, 100 that it sees."""
    v = torch.tensor([[1.0], [10.0], [100.0]]).expand(1, 1, 3, 1)
    call = {"q": torch.zeros(1, 1, 3, 1), "k": torch.zeros(1, 1, 3, 1), "v": v, **options}
    return [round(one, 3) for one in registry.get("attention", "mlx-attention")(**call).flatten().tolist()]


def test_a_mask_says_what_is_kept() -> None:
    assert attention(mask=torch.eye(3, dtype=torch.bool)) == [1, 10, 100]


def test_causality_counts_from_the_last_token() -> None:
    assert attention(causal=True) == [1, 5.5, 37]
    assert attention(q=torch.zeros(1, 1, 1, 1), causal=True) == [37]


def test_heads_come_before_tokens_and_neighbours_share_a_key_head() -> None:
    call = {"q": drawn(1, 4, 2, 2), "k": drawn(1, 2, 3, 2, seed=1), "v": drawn(1, 2, 3, 2, seed=2)}
    within(registry.get("attention", "mlx-attention")(**call), formula("attention", call))


def test_rotation_starts_where_it_is_told_and_refuses_gaps() -> None:
    rope = registry.get("rotary", "mlx-rope")
    for positions in (torch.arange(3) + 5, torch.tensor([[0, 1, 2], [7, 8, 9]])):
        for pairing in ("interleaved", "half"):
            call = {"x": drawn(2, 2, 3, 4), "positions": positions, "pairing": pairing}
            within(rope(**call), formula("rotary", call))
    with pytest.raises(NotImplementedError, match="count up by one"):
        rope(drawn(1, 1, 2, 4), torch.tensor([0, 2]))


def test_the_finding_stands_or_the_declaration_is_stale() -> None:
    """`lacks={"empty"}` of the layer norm rests on it."""
    page = Path(__file__).resolve().parents[2] / "reports" / "findings" / "mlx_layer_norm_empty.py"
    assert subprocess.run([sys.executable, str(page)], capture_output=True).returncode == 1
