"""Every rule bounds what torch computes in the type itself, and what roundings of adverse sign could make of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from numeric_ways import worst
from torch.utils._python_dispatch import TorchDispatchMode

from assay.errors import HarnessError, NoRuleError
from assay.numbers.arithmetic import EXACT, Arithmetic, format_of
from assay.numbers.bound import Bounded, comparison_hook, engine, lift, precision, stored
from assay.numbers.evaluate import evaluate
from assay.numbers.forms import Form

INDEX = torch.tensor([2, 0, 2, 1])
PLACES = torch.tensor([[0, 1, 2, 0, 3, 1], [1, 1, 0, 2, 0, 3], [3, 2, 1, 0, 1, 0], [0, 0, 0, 0, 0, 0]])
Tensor = torch.Tensor

ONE: dict[str, Callable[[Tensor], Any]] = {  # functions of one (4, 6) tensor of any sign
    "transpose": lambda x: x.transpose(0, 1) * 1.1,
    "reshape": lambda x: x.reshape(3, 8) * 1.1,
    "split": lambda x: torch.cat([part * 0.3 for part in x.split(2, 1)], 1),
    "chunk_unbind_stack": lambda x: torch.stack([part * 0.3 for part in x.unbind(0)], 1),
    "flip_roll": lambda x: x.flip(0).roll(1, 1) / 3.0,
    "tril_triu": lambda x: x.tril() * 0.7 + x.triu(1),
    "repeat_interleave": lambda x: x.repeat_interleave(2, 0) * 0.3,
    "expand": lambda x: x.unsqueeze(0).expand(3, 4, 6) * 0.3,
    "pad": lambda x: F.pad(x, (1, 2), value=0.5) * 0.3,
    "index": lambda x: x[INDEX] * 0.3,
    "index_select": lambda x: x.index_select(0, INDEX) * 0.3,
    "gather": lambda x: x.gather(0, PLACES) * 0.3,
    "mask_select_where": lambda x: torch.where(x > 0, x * 0.3, x / 7.0),
    "masked_fill": lambda x: (x * 0.3).masked_fill(x > 0.5, 0.1),
    "add_scalar": lambda x: x + 0.1,
    "rsub": lambda x: 1.1 - x,
    "mul": lambda x: x * x * x,
    "div": lambda x: (x + 0.3) / (x * x + 0.5),
    "abs_sign": lambda x: x.abs() * x.sign() * 0.3,
    "clamp": lambda x: (x * 0.3).clamp(-0.25, 0.2),
    "relu": lambda x: (x * 0.3).relu() * 3.0,
    "maximum": lambda x: torch.maximum(x * 0.3, x / 3.0 + 0.1),
    "sum": lambda x: x.sum(1) * 0.3,
    "sum_all": lambda x: (x * x).sum(),
    "mean": lambda x: x.mean(-1, keepdim=True) - x,
    "amax": lambda x: x - x.amax(1, keepdim=True),
    "max_dim": lambda x: x.max(0).values * 0.3,
    "cumsum": lambda x: x.cumsum(1),
    "prod": lambda x: (x * 0.5 + 1.5).prod(1),
    "var": lambda x: x.var(1, unbiased=False).sum() + x.var(0).mean(),
    "norm": lambda x: torch.linalg.vector_norm(x, dim=1),
    "logsumexp": lambda x: x.logsumexp(1),
    "exp": lambda x: x.exp(),
    "exp2": lambda x: x.exp2(),
    "expm1": lambda x: x.expm1(),
    "log": lambda x: (x * x + 0.1).log(),
    "log1p": lambda x: (x * x).log1p(),
    "sqrt": lambda x: (x * x + 0.1).sqrt(),
    "rsqrt": lambda x: (x * x + 0.1).rsqrt(),
    "pow": lambda x: (x * x + 0.1) ** 1.7 + x**3,
    "scalar_pow": lambda x: 10.0 ** (x * 0.3),
    "sin_cos": lambda x: (3.0 * x).sin() * (x * 2.5).cos(),
    "tanh": lambda x: x.tanh(),
    "erf": lambda x: x.erf(),
    "sigmoid": lambda x: x.sigmoid(),
    "silu": lambda x: F.silu(x),
    "gelu": lambda x: F.gelu(x),
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "softplus": lambda x: F.softplus(x),
    "logsigmoid": lambda x: F.logsigmoid(x),
    "softmax": lambda x: F.softmax(x, -1),
    "log_softmax": lambda x: F.log_softmax(x, -1),
    "matmul": lambda x: x @ x.transpose(0, 1),
    "matmul_batched": lambda x: x.reshape(2, 2, 6) @ x.reshape(2, 6, 2),
    "einsum": lambda x: torch.einsum("ij,kj->ik", x, x * 0.5),
    "addmm": lambda x: F.linear(x, x * 0.5, x[:, 0]),
    "topk": lambda x: (x * 0.3).topk(2, 1).values,
    "sort": lambda x: x.sort(1).values * 0.3,
    "index_add": lambda x: torch.zeros_like(x).index_add(0, INDEX, x),
    "index_put": lambda x: torch.zeros_like(x).index_put((INDEX,), x, accumulate=True),
    "scatter_add": lambda x: torch.zeros_like(x).scatter_add(0, PLACES, x * 0.3),
    "embedding": lambda x: F.embedding(INDEX, x) * 0.3,
    "linspace_factory": lambda x: x * torch.full((6,), 0.1, dtype=x.dtype),
}
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def _input(dtype: torch.dtype, seed: int, size: float) -> Tensor:
    return (torch.randn(4, 6, generator=torch.Generator().manual_seed(seed)) * size).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", sorted(ONE))
def test_native_arithmetic_stays_within_bars_forward_and_backward(name: str, dtype: torch.dtype) -> None:
    function = ONE[name]
    for seed, size in ((0, 1.0), (1, 3.0), (2, 1e-3)):
        x = _input(dtype, seed, size).requires_grad_()
        native = function(x)
        upstream = torch.randn(native.shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
        native.backward(upstream)
        forms = (Form(name, function),)
        found = evaluate(forms, {"x": x.detach()}, dtype, Arithmetic(), upstream=upstream, wrt=("x",))
        assert not found.left_range
        assert worst(native.detach(), found.outputs[0]) <= 1
        assert x.grad is not None
        assert worst(x.grad, found.gradients["x"]) <= 1


QUIET = {
    "view",
    "reshape",
    "_unsafe_view",
    "transpose",
    "permute",
    "expand",
    "slice",
    "select",
    "unsqueeze",
    "squeeze",
    "t",
    "clone",
    "detach",
    "masked_fill",
    "neg",
    "cat",
    "stack",
    "amax",
    "max",
    "split",
    "unbind",
    "flip",
    "roll",
    "tril",
    "triu",
    "index",
    "index_select",
    "gather",
    "where",
    "zeros_like",
    "full",
    "abs",
    "sign",
    "topk",
    "sort",
    "embedding",
    "alias",
    "constant_pad_nd",
    "clamp",
    "relu",
    "maximum",
    "repeat_interleave",
    "_to_copy",
}


class _Adverse(TorchDispatchMode):
    """Moves every computed number by up to a unit roundoff, in a direction drawn."""

    def __init__(self, dtype: torch.dtype, seed: int) -> None:
        super().__init__()
        self.dtype = dtype
        self.u = format_of(dtype).u * 0.999
        self.generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not isinstance(out, Tensor) or out.dtype != torch.float64 or func.overloadpacket.__name__ in QUIET:
            return out
        sign = torch.randint(0, 2, out.shape, generator=self.generator) * 2.0 - 1.0
        held = out.to(self.dtype).double() == out  # these no rounding moves
        return torch.where(held, out, out * (1.0 + self.u * sign))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", sorted(ONE))
def test_adverse_roundings_stay_within_bars(name: str, dtype: torch.dtype) -> None:
    function = ONE[name]
    x = _input(dtype, 5, 1.0)
    found = evaluate((Form(name, function),), {"x": x}, dtype, Arithmetic())
    for seed in range(10):
        with _Adverse(dtype, seed):
            moved = function(x.double())
        assert worst(moved, found.outputs[0]) <= 1


def test_small_integers_are_exact_in_any_type() -> None:
    x = torch.arange(-6, 6, dtype=torch.bfloat16).reshape(3, 4)
    with engine(Arithmetic().model("bfloat16")):
        b = lift(x)
        for result in (b @ b.transpose(0, 1), b.sum(1), b + 1.0, b * b, b * 0.5, b.cumsum(1), b.amax(0)):
            assert result.is_exact


def test_what_the_type_does_not_hold_has_a_bar() -> None:
    with engine(Arithmetic().model("bfloat16")):
        b = lift(torch.tensor([255.0, 3.0]))
        added = b + 2.0  # 257 needs nine bits, 5 does not
        assert float(added._bar[0]) >= 1.0
        assert float(added._bar[1]) == 0.0
        assert float((b * 0.1)._bar.min()) > 0.0


def test_structural_infinity_and_nan_carry_no_bar() -> None:
    with engine(Arithmetic().model("float32")) as entered:
        x = (lift(torch.ones(3)) * 0.3).masked_fill(torch.tensor([True, False, False]), float("-inf"))
        y = x - 1.0
        assert float(y._bar[0]) == 0.0
        assert float(y.exp()._bar[0]) == 0.0
        assert bool((x - x)._value[0].isnan())
    assert not entered.left_range


def test_leaving_the_range_is_noted() -> None:
    for factor, leaves in ((1.0, False), (70.0, True)):
        with engine(Arithmetic().model("float16")) as entered:
            _ = lift(torch.tensor([1000.0])) * factor
        assert entered.left_range is leaves


def test_angle_error_grows_with_position() -> None:
    positions = torch.tensor([0, 1, 1000, 1_000_000])
    with engine(Arithmetic().model("bfloat16")):
        with precision("angles"):
            exponent = torch.arange(0, 8, 2) / 8
            angle = positions.unsqueeze(-1) * 10000.0**-exponent
        with precision("tables"):
            cosine = angle.cos()
    bars = angle._bar
    assert bool((bars[0] == 0).all())
    assert bool((bars[1:, 1] > 0).all())
    ratio = bars[3, 1] / bars[2, 1]
    assert 900 < float(ratio) < 1100
    assert float(bars[3, 0]) == 0.0  # integers below 2**24 are exact in float32
    assert float(cosine._bar.max()) <= 2.1


def test_an_operation_without_rule_is_named() -> None:
    with pytest.raises(NoRuleError, match=r"aten\.lgamma"), engine(EXACT):
        lift(torch.ones(2)).lgamma()


def test_comparisons_ask_the_ledger() -> None:
    measured = lift(torch.ones(2), torch.full((2,), 0.1))
    with pytest.raises(HarnessError, match="ledger"):
        _ = measured == 1
    asked: list[str] = []
    token = comparison_hook.set(lambda op, left, right: asked.append(op) or True)
    try:
        assert measured == 1
        assert measured <= torch.ones(2)
        assert torch.ones(2) != measured
    finally:
        comparison_hook.reset(token)
    assert asked == ["==", "<=", "!="]
    assert isinstance(hash(measured), int)


def test_measured_arithmetic_carries_the_bar() -> None:
    measured = lift(torch.ones(2, 3), torch.full((2, 3), 0.25))
    total = measured.sum(-1)
    assert isinstance(total, Bounded)
    assert torch.allclose(total.bar, torch.full((2,), 0.75, dtype=torch.float64))


def _through_memory(x: Tensor) -> Tensor:
    return stored(x * 1.1) * 0.3


def test_what_is_stored_between_rounds_to_the_stored_type_and_so_does_its_gradient() -> None:
    """In float32 inside, a result and its gradient that went through bfloat16 lie within their bars, and not within float32's."""
    x, up = (torch.randn(64, generator=torch.Generator().manual_seed(seed)).bfloat16() for seed in (0, 1))
    single = Arithmetic(internal="float32")
    runs = {way: evaluate((Form("way", way),), {"x": x}, "bfloat16", single, upstream=up, wrt=("x",))
            for way in (_through_memory, lambda x: x * 1.1 * 0.3)}
    (kept, exact) = runs.values()
    there = (x.float() * 1.1).bfloat16().float() * 0.3
    back = (up.float() * 0.3).bfloat16().float() * 1.1
    for found, wide, narrow in ((there, kept.outputs[0], exact.outputs[0]), (back, kept.gradients["x"], exact.gradients["x"])):
        off = (found.bfloat16().double() - wide.value).abs()
        assert bool((off <= wide.bar).all())
        assert bool((off > narrow.bar).any())


def test_stored_is_free_where_every_result_is_stored_anyway() -> None:
    with engine(Arithmetic().model("bfloat16")):
        x = lift(torch.ones(3))
        assert stored(x) is x
    plain = torch.ones(3)
    assert stored(plain) is plain
