"""The bridge from NumPy: what goes in, what comes out, what autograd gets, and what is noticed."""
from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bars import all_within
from torch import Tensor

from assay import registry
from assay.contract.declaration import declare
from assay.impls.numpy_bridge import Array, bridged
from assay.numbers.arithmetic import Arithmetic
from assay.numbers.evaluate import evaluate

SEEN: list[dict[str, Any]] = []


def product(x: Array, y: Array | None = None, *, mask: Array | None = None, ids: Array | None = None, scale: float = 1.0
            ) -> tuple[Array, Any]:
    """scale·x·y where the mask holds; notes what it was called with."""
    SEEN.append({"x": x, "y": y, "mask": mask, "ids": ids})
    keep = np.ones(x.shape, dtype=bool) if mask is None else mask
    other = np.ones_like(x) if y is None else y
    return np.where(keep, scale * x * other, 0), (x, other, keep, scale)


def product_backward(saved: Any, upstream: Array) -> dict[str, Array]:
    x, other, keep, scale = saved
    above = np.where(keep, upstream, 0) * scale
    return {"x": above * other, "y": above * x}


multiply = bridged(product, product_backward)


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def gradients_of(x: Tensor, y: Tensor, **options: Any) -> tuple[Tensor, Tensor, Tensor]:
    x, y = x.detach().requires_grad_(), y.detach().requires_grad_()
    out = multiply(x, y, **options)
    return (out, *torch.autograd.grad(out.sum(), (x, y)))


def test_gradients_reach_every_argument() -> None:
    x, y = (drawn(3, 4, seed=seed).requires_grad_() for seed in (1, 2))
    mask = drawn(3, 4, seed=3) > 0
    assert torch.autograd.gradcheck(lambda a, b: multiply(a, b, mask=mask, scale=2.0), (x, y))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_results_and_gradients_have_the_type_of_their_inputs(dtype: torch.dtype) -> None:
    for found in gradients_of(drawn(5, dtype=dtype), drawn(5, seed=1, dtype=dtype)):
        assert found.dtype == dtype


def test_half_precision_is_wide_inside_and_rounded_once() -> None:
    x, y = drawn(999, dtype=torch.bfloat16), drawn(999, seed=1, dtype=torch.bfloat16)
    assert torch.equal(multiply(x, y), (x.double() * y.double()).to(torch.bfloat16))
    assert SEEN[-1]["x"].dtype == np.float32
    bridged(product, inside="float64")(x)
    assert SEEN[-1]["x"].dtype == np.float64


def test_every_argument_keeps_its_nature() -> None:
    multiply(drawn(3, dtype=torch.float32), mask=torch.tensor([True, False, True]), ids=torch.arange(3))
    seen = SEEN[-1]
    assert (seen["x"].dtype, seen["mask"].dtype, seen["ids"].dtype, seen["y"]) == (np.float32, np.bool_, np.int64, None)


@pytest.mark.parametrize("view", [
    lambda x: x.mT, lambda x: x[:, ::2], lambda x: x[1:, 1:], lambda x: x[:1].expand(4, -1), lambda x: x[:0],
], ids=["transposed", "sliced", "offset", "expanded", "empty"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_memory_layout_does_not_matter(view: Any, dtype: torch.dtype) -> None:
    x, y = view(drawn(4, 6, dtype=dtype)), view(drawn(4, 6, seed=1, dtype=dtype))
    for strided, plain in zip(gradients_of(x, y), gradients_of(x.contiguous(), y.contiguous()), strict=True):
        assert torch.equal(strided, plain)
        assert strided.is_contiguous()


def test_upstream_may_be_expanded() -> None:
    x = drawn(3, 4).requires_grad_()
    above = torch.tensor(2.0, dtype=torch.float64).expand(3, 4)
    assert torch.equal(torch.autograd.grad(multiply(x), x, above)[0], torch.full((3, 4), 2.0, dtype=torch.float64))


def test_results_have_memory_of_their_own() -> None:
    x = drawn(4)
    out = bridged(lambda x: (x, None))(x)
    out.add_(1)
    assert torch.equal(out, x + 1) and torch.equal(x, drawn(4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_kernel_cannot_write_to_its_input(dtype: torch.dtype) -> None:
    def careless(x: Array) -> tuple[Array, Any]:
        x += 1
        return x, None

    x = drawn(4, dtype=dtype)
    with pytest.raises(ValueError, match="read-only"):
        bridged(careless)(x)
    assert torch.equal(x, drawn(4, dtype=dtype))


def test_an_input_overwritten_before_the_backward_is_noticed() -> None:
    x = drawn(4).requires_grad_()
    y = x * 1
    out = multiply(y)
    with torch.no_grad():
        y.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_several_outputs_some_of_them_integers() -> None:
    def largest(x: Array) -> tuple[tuple[Array, Array], Any]:
        return (x.max(axis=-1), x.argmax(axis=-1)), (x.argmax(axis=-1), x.shape)

    def largest_backward(saved: Any, upstream: tuple[Array, Array]) -> dict[str, Array]:
        place, shape = saved
        return {"x": np.eye(shape[-1])[place] * upstream[0][..., None]}

    x = drawn(3, 5, dtype=torch.float32).requires_grad_()
    value, place = bridged(largest, largest_backward)(x)
    assert (value.requires_grad, place.requires_grad, place.dtype) == (True, False, torch.int64)
    (found,) = torch.autograd.grad(value.sum(), x)
    assert torch.equal(found, torch.nn.functional.one_hot(place, 5).float())


def test_a_gradient_of_another_shape_is_an_error() -> None:
    def total(saved: Any, upstream: Array) -> dict[str, Array]:
        return {"x": upstream.sum(keepdims=True)}

    x = drawn(4).requires_grad_()
    with pytest.raises(ValueError, match=r"the gradient of x must have its shape \(4,\), got \(1,\)"):
        bridged(product, total)(x).sum().backward()


def test_what_has_no_backward_says_so() -> None:
    x = drawn(4).requires_grad_()
    with pytest.raises(NotImplementedError, match="product has no backward"):
        bridged(product)(x).sum().backward()


def test_gradients_of_gradients_are_refused_not_wrong() -> None:
    x = drawn(4).requires_grad_()
    (once,) = torch.autograd.grad((multiply(x, x) ** 2).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        once.sum().backward()


def test_the_type_inside_is_one_that_numpy_adds_up_well() -> None:
    with pytest.raises(ValueError, match="inside='float16' must be one of float32, float64"):
        bridged(product, inside="float16")


def test_claims_are_read_from_the_forward() -> None:
    def softmax(x: Array) -> tuple[Array, Any]:
        return x, None

    assert inspect.signature(bridged(softmax)) == inspect.signature(softmax)
    assert not declare("softmax", bridged(softmax), grad=False).claims("dim")


def test_floating_point_warnings_stay_inside(recwarn: pytest.WarningsRecorder) -> None:
    before = np.geterr()
    out = bridged(lambda x: (x - x, None))(torch.tensor([float("inf"), 1.0]))
    assert out.isnan().tolist() == [True, False]
    assert not recwarn.list and np.geterr() == before


def test_the_example_of_the_documentation_is_right() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "numpy.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    with registry.collecting() as made:
        exec(re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0], names)
    assert [(one.kind, one.name) for one in made] == [("rms_norm", "mine")]
    x, weight, above = drawn(2, 3, 5), drawn(5, seed=1), drawn(2, 3, 5, seed=2)
    a, b = x.requires_grad_(), weight.requires_grad_()
    out = names["mine"](a, b, eps=1e-5)
    exact = evaluate(registry.forms("rms_norm"), {"x": a, "weight": b, "eps": 1e-5}, "float64", Arithmetic(), upstream=above,
                     wrt=("x", "weight"))
    all_within((out, *torch.autograd.grad(out, (a, b), above)), exact)
