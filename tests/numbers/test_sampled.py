"""The sampled bound: deterministic, scales with the type, covers right ways, leaves exact zeros and uncertain routing alone."""
from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from assay import registry
from assay.errors import HarnessError
from assay.numbers.arithmetic import Arithmetic
from assay.numbers.perturbing import Perturbing
from assay.numbers.sampled import FACTOR, FEWER, pooled, sampled

RECORD = Path(__file__).parents[2] / "bench" / "calibrate_sampled.json"
WIDTH, HIDDEN, EXPERTS = 8, 6, 4


def drawn(label: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(label)) / math.sqrt(shape[-1])


def layer(dtype: torch.dtype, ffn: str = "swiglu") -> dict[str, Any]:
    params = {f"attn.w_{name}": drawn(i, WIDTH, WIDTH) for i, name in enumerate("qkvo")}
    params |= {"norm1.weight": 1 + drawn(5, WIDTH), "norm2.weight": 1 + drawn(6, WIDTH)}
    lead = (EXPERTS,) if ffn == "moe" else ()
    part = "moe" if ffn == "moe" else "ffn"
    params |= {f"{part}.w_gate": drawn(7, *lead, HIDDEN, WIDTH), f"{part}.w_up": drawn(8, *lead, HIDDEN, WIDTH),
               f"{part}.w_down": drawn(9, *lead, WIDTH, HIDDEN)}
    if ffn == "moe":
        params["moe.w_router"] = drawn(10, EXPERTS, WIDTH)
    return {"x": 3 * drawn(11, 2, 5, WIDTH).to(dtype), "params": {n: w.to(dtype) for n, w in params.items()}, "num_heads": 2}


def test_same_seed_same_bars() -> None:
    forms, arguments = registry.forms("block"), layer(torch.float32)
    first, second, other = (sampled(forms, arguments, "float32", Arithmetic(), seed=seed).outputs[0].bar for seed in (1, 1, 2))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert 0.3 < float(first.mean() / other.mean()) < 3


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_right_ways_lie_within_and_another_epsilon_lies_outside(dtype: str) -> None:
    arguments = layer(getattr(torch, dtype))
    (out,) = sampled(registry.forms("block"), arguments, dtype, Arithmetic()).outputs
    reference = registry.get("block", "reference")
    wide = {"x": arguments["x"].double(), "params": {n: w.double() for n, w in arguments["params"].items()}, "num_heads": 2}
    for got in (reference(**arguments).double(), reference(**wide).to(arguments["x"].dtype).double()):
        assert bool(((got - out.value).abs() <= out.bar).all())
    wrong = reference(**wide, placement="post")
    assert bool(((wrong - out.value).abs() > out.bar).any())


def test_gradients_of_all_arguments_carry_bars() -> None:
    arguments, names = layer(torch.float32), ("x", "params/attn.w_q", "params/norm2.weight")
    up = drawn(20, 2, 5, WIDTH)
    found = sampled(registry.forms("block"), arguments, "float32", Arithmetic(), upstream=up, wrt=names)
    leaves = {name: _at(arguments, name).clone().requires_grad_() for name in names}
    own = {**arguments, "x": leaves["x"], "params": {**arguments["params"], **{n.partition("/")[2]: w for n, w in leaves.items()
                                                                               if "/" in n}}}
    got = torch.autograd.grad(registry.get("block", "reference")(**own), list(leaves.values()), up)
    for name, gradient in zip(names, got, strict=True):
        assert bool(((gradient.double() - found.gradients[name].value).abs() <= found.gradients[name].bar).all())
        assert float(found.gradients[name].bar.max()) < 1e-3


def _at(arguments: dict[str, Any], path: str) -> torch.Tensor:
    found: Any = arguments
    for part in path.split("/"):
        found = found[part]
    return found


def test_unknown_names_are_refused() -> None:
    with pytest.raises(HarnessError, match="wrt="):
        sampled(registry.forms("block"), layer(torch.float32), "float32", Arithmetic(), upstream=drawn(0, 2, 5, WIDTH), wrt=("y",))


def test_tokens_with_a_near_tie_of_experts_are_left_out() -> None:
    arguments = {**layer(torch.float32, "moe"), "ffn": "moe", "top_k": 1}
    sure = sampled(registry.forms("block"), arguments, "float32", Arithmetic()).outputs[0]
    assert bool(sure.bar.isfinite().all())
    router = arguments["params"]["moe.w_router"]
    tied = {**arguments,
            "params": {**arguments["params"], "moe.w_router": torch.cat([router[:1], router[:1], router[:1], router[:1]])}}
    unsure = sampled(registry.forms("block"), tied, "float32", Arithmetic()).outputs[0]
    assert bool(unsure.bar.isinf().all())


def test_pooling_lifts_what_happens_to_be_small() -> None:
    spread = torch.tensor([[1.0, 0.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0]], dtype=torch.float64)
    lifted = pooled(spread)
    assert float(lifted[0, 1]) == pytest.approx(math.sqrt(10 / 8))
    assert float(lifted[0, 2]) == 2.0


def test_operations_that_do_not_round_are_not_moved() -> None:
    x = torch.arange(12.0, dtype=torch.float64).reshape(3, 4)
    model = Arithmetic().model("float32")
    with Perturbing(lambda dtype: model, torch.Generator().manual_seed(0)) as mode:
        moved = x.transpose(0, 1).contiguous().masked_fill(torch.tensor(False), 0.0)
        counted = mode.counted
        product = x @ moved
    assert torch.equal(moved, x.T)
    assert counted == 0
    assert mode.counted == 1
    assert 0 < float((product - x @ x.T).abs().max()) < 1e-3


def test_results_of_half_precision_move_by_their_own_places() -> None:
    x = torch.linspace(1, 2, 64).to(torch.bfloat16)
    model = Arithmetic().model("bfloat16")
    with Perturbing(lambda dtype: model, torch.Generator().manual_seed(0), unit=2.0):
        moved = x * 1.5
    apart = (moved.float() - (x * 1.5).float()).abs()
    assert moved.dtype == torch.bfloat16
    assert 0 < float(apart.max()) <= 3 * 2.0**-7 * 3


def test_the_factor_rests_on_its_record() -> None:
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    assert record["factor"] == FACTOR
    assert record["runs"] == FEWER
    assert record["evaluations"] >= 10_000
    assert record["beyond factor"] == 0
    assert 1.5 * record["largest z"] <= FACTOR
