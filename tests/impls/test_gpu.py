"""What only a CUDA device shows: kernels compiled, at the sizes that they are for, and a decoding step as a CUDA graph.

`make gpu` runs these. Results are held within the bars of the formula's forms, taken over a slice where the whole would take long.
"""
from __future__ import annotations

from typing import Any

import pytest
import torch
from bars import formula, within
from torch import Tensor

from assay import registry
from assay.numbers.arithmetic import Arithmetic
from assay.numbers.evaluate import evaluate

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")]
FAST = Arithmetic(exp="fast")


def drawn(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float32).to(dtype)


def right(found: Tensor, kind: str, arguments: dict[str, Any], arithmetic: Arithmetic = FAST) -> None:
    within(found, formula(kind, arguments, str(found.dtype).removeprefix("torch."), arithmetic))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("width", [64, 80, 128, 256])
def test_attention_of_a_long_sequence(width: int, dtype: torch.dtype) -> None:
    """The last queries of 4097 are those of a call with them alone, bottom-right aligned."""
    q, k, v = (drawn(1, heads, 4097, width, dtype=dtype, seed=seed) for seed, heads in enumerate((4, 2, 2)))
    out = registry.get("attention", "triton-attention")(q.cuda(), k.cuda(), v.cuda(), causal=True)
    right(out[:, :, -3:], "attention", {"q": q[:, :, -3:], "k": k, "v": v, "causal": True})


@pytest.mark.parametrize("name", ["triton-rms-norm", "triton-layer-norm"])
@pytest.mark.parametrize("columns", [1, 4095, 16384])
def test_norms_of_long_rows(name: str, columns: int) -> None:
    kind = name.removeprefix("triton-").replace("-", "_")
    x, tensors = drawn(3, columns, dtype=torch.bfloat16), ("weight", "bias") if kind == "layer_norm" else ("weight",)
    given = {one: drawn(columns, dtype=torch.bfloat16, seed=seed) for seed, one in enumerate(tensors)}
    out = registry.get(kind, name)(x.cuda(), **{one: w.cuda() for one, w in given.items()}, eps=1e-5)
    right(out, kind, {"x": x, **given, "eps": 1e-5}, Arithmetic(internal="float32"))


@pytest.mark.parametrize("columns", [1, 4095, 16384])
def test_sums_and_norms_of_long_rows(columns: int) -> None:
    """And the gradients of both addends and the weight, under upstream gradients of both results."""
    given = {name: drawn(*shape, dtype=torch.bfloat16, seed=seed) for seed, (name, shape) in enumerate(
        {"x": (3, columns), "residual": (3, columns), "weight": (columns,)}.items())}
    up = tuple(drawn(3, columns, dtype=torch.bfloat16, seed=seed) for seed in (3, 4))
    exact = evaluate(registry.forms("add_rms_norm"), {**given, "eps": 1e-5}, "bfloat16", Arithmetic(internal="float32"),
                     upstream=up, wrt=tuple(given))
    there = {name: value.cuda().requires_grad_() for name, value in given.items()}
    results = registry.get("add_rms_norm", "triton-add-rms-norm")(**there, eps=1e-5)
    found = torch.autograd.grad(results, list(there.values()), [one.cuda() for one in up])
    for one, bounded in zip((*results, *found), (*exact.outputs, *exact.gradients.values()), strict=True):
        within(one, bounded)


def test_offsets_beyond_two_to_the_31st() -> None:
    """The last row of a tensor of more than 2³¹ elements."""
    rows, columns = 2**17 + 1, 2**14
    x = torch.zeros(rows, columns, dtype=torch.bfloat16, device="cuda")
    x[-1] = drawn(columns, dtype=torch.bfloat16).cuda()
    out = registry.get("softmax", "triton-softmax")(x)
    right(out[-1:], "softmax", {"x": x[-1:].cpu()})


def test_a_decoding_step_is_replayed() -> None:
    from assay.impls.cuda_graph import STEP

    step, eager = (registry.get("attention", name) for name in ("cuda-graph-split-kv", "split-kv"))
    before = STEP.replays
    for seed in range(3):
        q, k, v = (drawn(1, 4, length, 64, dtype=torch.bfloat16, seed=seed).cuda() for length in (1, 513, 513))
        assert torch.equal(step(q, k, v), eager(q, k, v))
    assert STEP.replays == before + 3
