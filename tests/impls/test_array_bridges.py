"""What every bridge to a library with a gradient of its own must stand: JAX and MLX, each where it is installed."""
from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from arrays import drawn, multiplying
from bars import all_within
from torch import Tensor

from assay import registry
from assay.contract.declaration import declare
from assay.impls import jax_bridge, mlx_bridge
from assay.numbers.arithmetic import Arithmetic
from assay.numbers.evaluate import evaluate


@dataclass
class Library:
    """A library behind its bridge, and what it calls things."""

    name: str
    bridged: Callable[..., Any]
    numbers: Any  # where its exp, max, argmax, where and float32 are
    seen: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        where, zeros = self.numbers.where, self.numbers.zeros_like
        self.multiply = multiplying(self.bridged, lambda mask, x: where(mask, x, zeros(x)), self.seen)

    def gradients_of(self, x: Tensor, y: Tensor, **options: Any) -> tuple[Tensor, Tensor, Tensor]:
        x, y = x.detach().requires_grad_(), y.detach().requires_grad_()
        out = self.multiply(x, y, **options)
        return (out, *torch.autograd.grad(out.sum(), (x, y)))


@pytest.fixture(params=["jax", "mlx"])
def library(request: pytest.FixtureRequest) -> Library:
    name = request.param
    numbers = pytest.importorskip({"jax": "jax.numpy", "mlx": "mlx.core"}[name],
                                  reason=f"{name} is not installed; the extra `{name}` has it")
    return Library(name, {"jax": jax_bridge, "mlx": mlx_bridge}[name].bridged, numbers)


def test_gradients_reach_every_argument(library: Library) -> None:
    x, y, mask = drawn(3, 4), drawn(3, 4, seed=1), drawn(3, 4, seed=2) > 0
    out, dx, dy = library.gradients_of(x, y, mask=mask, scale=2.0)
    for found, right in ((out, x * y * 2), (dx, y * 2), (dy, x * 2)):
        assert torch.equal(found, right * mask)


def test_what_needs_no_gradient_gets_none(library: Library) -> None:
    x, y = drawn(3).requires_grad_(), drawn(3, seed=1)
    library.multiply(x, y).sum().backward()
    assert x.grad is not None and torch.equal(x.grad, y) and y.grad is None
    assert not library.multiply(x.detach(), y).requires_grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_types_are_kept_on_the_way_in_and_out(library: Library, dtype: torch.dtype) -> None:
    x, y = drawn(99, dtype=dtype), drawn(99, seed=1, dtype=dtype)
    assert all(found.dtype == dtype for found in library.gradients_of(x, y))
    assert str(library.seen[-1]["x"].dtype).rpartition(".")[2] == str(dtype).removeprefix("torch.")
    assert torch.equal(library.multiply(x, y), x * y)


def test_a_promotion_is_not_hidden(library: Library) -> None:
    assert library.bridged(lambda x: x.astype(library.numbers.float32))(drawn(3, dtype=torch.bfloat16)).dtype == torch.float32


@pytest.mark.parametrize("view", [
    lambda x: x.mT, lambda x: x[:, ::2], lambda x: x[1:, 1:], lambda x: x[:1].expand(4, -1), lambda x: x[:0], lambda x: x[0, 0],
], ids=["transposed", "sliced", "offset", "expanded", "empty", "scalar"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_memory_layout_does_not_matter(library: Library, view: Any, dtype: torch.dtype) -> None:
    x, y = view(drawn(4, 6, dtype=dtype)), view(drawn(4, 6, seed=1, dtype=dtype))
    for strided, plain in zip(library.gradients_of(x, y), library.gradients_of(x.contiguous(), y.contiguous()), strict=True):
        assert torch.equal(strided, plain)


def test_upstream_may_be_expanded(library: Library) -> None:
    x = drawn(3, 4).requires_grad_()
    above = torch.tensor(2.0).expand(3, 4)
    assert torch.equal(torch.autograd.grad(library.multiply(x), x, above)[0], torch.full((3, 4), 2.0))


def test_writing_to_a_result_changes_neither_input_nor_gradient(library: Library) -> None:
    x = drawn(64).requires_grad_()
    kept = library.bridged(lambda x: x)(x.detach())
    kept.add_(1)
    assert torch.equal(x, drawn(64)) and torch.equal(kept, drawn(64) + 1)
    out = library.bridged(lambda x: library.numbers.exp(x))(x)  # MLX's own have no signature to read
    (right,) = torch.autograd.grad(out, x, torch.ones(64), retain_graph=True)
    with torch.no_grad():
        out.zero_()
    assert torch.equal(torch.autograd.grad(out, x, torch.ones(64))[0], right)


def test_an_input_overwritten_before_the_backward_is_noticed(library: Library) -> None:
    y = drawn(4).requires_grad_() * 1
    out = library.multiply(y)
    with torch.no_grad():
        y.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_several_outputs_some_of_them_integers(library: Library) -> None:
    def largest(x: Any) -> tuple[Any, Any]:
        return x.max(axis=-1), library.numbers.argmax(x, axis=-1)

    x = drawn(3, 5).requires_grad_()
    value, place = library.bridged(largest)(x)
    assert (value.requires_grad, place.requires_grad) == (True, False) and torch.equal(place.long(), x.argmax(-1))
    (found,) = torch.autograd.grad(value.sum(), x)
    assert torch.equal(found, torch.nn.functional.one_hot(place.long(), 5).float())


def test_gradients_of_gradients_are_refused_not_wrong(library: Library) -> None:
    x = drawn(4).requires_grad_()
    (once,) = torch.autograd.grad((library.multiply(x, x) ** 2).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        once.sum().backward()


def test_claims_are_read_from_the_function(library: Library) -> None:
    def softmax(x: Any) -> Any:
        return x

    assert inspect.signature(library.bridged(softmax)) == inspect.signature(softmax)
    assert not declare("softmax", library.bridged(softmax)).claims("dim")


def test_listing_imports_neither(library: Library) -> None:
    code = f"import sys; from assay import registry; registry.declarations(); print({library.numbers.__name__!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "False\n"


def test_the_example_of_the_documentation_is_right(library: Library) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / f"{library.name}.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    with registry.collecting() as made:
        exec(re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0], names)
    assert [(one.kind, one.name) for one in made] == [("rms_norm", "mine")]
    a, b, above = drawn(2, 3, 5).requires_grad_(), drawn(5, seed=1).requires_grad_(), drawn(2, 3, 5, seed=2)
    out = names["rms_norm"](a, b, eps=1e-5)
    exact = evaluate(registry.forms("rms_norm"), {"x": a, "weight": b, "eps": 1e-5}, "float32", Arithmetic(), upstream=above,
                     wrt=("x", "weight"))
    all_within((out, *torch.autograd.grad(out, (a, b), above)), exact)
