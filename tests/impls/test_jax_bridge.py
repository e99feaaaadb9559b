"""The bridge from JAX: what goes in, what comes out, what autograd gets, what is refused; and JAX's own functions behind it."""
from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest
import torch
from bars import all_within, gives
from torch import Tensor

from assay import registry
from assay.contract.declaration import declare
from assay.impls.jax_bridge import bridged
from assay.numbers.arithmetic import Arithmetic
from assay.numbers.evaluate import evaluate

jax = pytest.importorskip("jax", reason="jax is not installed; the extra `jax` has it")

SEEN: list[dict[str, Any]] = []


@bridged
def multiply(x: Any, y: Any = None, *, mask: Any = None, ids: Any = None, scale: float = 1.0) -> Any:
    """scale·x·y where the mask holds; notes what it was called with."""
    SEEN.append({"x": x, "y": y, "mask": mask, "ids": ids, "scale": scale})
    out = x * scale if y is None else x * y * scale
    return out if mask is None else jax.numpy.where(mask, out, 0)


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def gradients_of(x: Tensor, y: Tensor, **options: Any) -> tuple[Tensor, Tensor, Tensor]:
    x, y = x.detach().requires_grad_(), y.detach().requires_grad_()
    out = multiply(x, y, **options)
    return (out, *torch.autograd.grad(out.sum(), (x, y)))


def test_gradients_reach_every_argument() -> None:
    x, y, mask = drawn(3, 4), drawn(3, 4, seed=1), drawn(3, 4, seed=2) > 0
    out, dx, dy = gradients_of(x, y, mask=mask, scale=2.0)
    for found, right in ((out, x * y * 2), (dx, y * 2), (dy, x * 2)):
        assert torch.equal(found, right * mask)


def test_what_needs_no_gradient_gets_none() -> None:
    x, y = drawn(3).requires_grad_(), drawn(3, seed=1)
    multiply(x, y).sum().backward()
    assert x.grad is not None and torch.equal(x.grad, y) and y.grad is None
    assert not multiply(x.detach(), y).requires_grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_types_are_kept_on_the_way_in_and_out(dtype: torch.dtype) -> None:
    x, y = drawn(99, dtype=dtype), drawn(99, seed=1, dtype=dtype)
    assert all(found.dtype == dtype for found in gradients_of(x, y))
    assert str(SEEN[-1]["x"].dtype) == str(dtype).removeprefix("torch.")
    assert torch.equal(multiply(x, y), x * y)


def test_a_promotion_is_not_hidden() -> None:
    assert bridged(lambda x: x.astype("float32"))(drawn(3, dtype=torch.bfloat16)).dtype == torch.float32


def test_every_argument_keeps_its_nature() -> None:
    multiply(drawn(3), mask=torch.tensor([True, False, True]), ids=torch.tensor([0, -100, 7]), scale=3)
    seen = SEEN[-1]
    assert (str(seen["mask"].dtype), str(seen["ids"].dtype), seen["y"], seen["scale"]) == ("bool", "int32", None, 3)
    assert seen["ids"].tolist() == [0, -100, 7]


@pytest.mark.parametrize("argument", [torch.zeros(2, dtype=torch.float64), torch.tensor([1 << 31])], ids=["float64", "int64"])
def test_what_jax_would_narrow_is_refused(argument: Tensor) -> None:
    with pytest.raises(NotImplementedError, match="needs JAX_ENABLE_X64=1"):
        multiply(drawn(2), ids=argument)
    assert not jax.config.jax_enable_x64


def test_what_it_does_not_narrow_passes() -> None:
    x, y = (drawn(3, seed=seed, dtype=torch.float64).requires_grad_() for seed in (1, 2))
    with jax.enable_x64(True):
        assert torch.autograd.gradcheck(lambda a, b: multiply(a, b, scale=2.0), (x, y))
        assert bridged(lambda x: x)(torch.tensor([1 << 40])).item() == 1 << 40


@pytest.mark.parametrize("view", [
    lambda x: x.mT, lambda x: x[:, ::2], lambda x: x[1:, 1:], lambda x: x[:1].expand(4, -1), lambda x: x[:0], lambda x: x[0, 0],
], ids=["transposed", "sliced", "offset", "expanded", "empty", "scalar"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_memory_layout_does_not_matter(view: Any, dtype: torch.dtype) -> None:
    x, y = view(drawn(4, 6, dtype=dtype)), view(drawn(4, 6, seed=1, dtype=dtype))
    for strided, plain in zip(gradients_of(x, y), gradients_of(x.contiguous(), y.contiguous()), strict=True):
        assert torch.equal(strided, plain)


def test_upstream_may_be_expanded() -> None:
    x = drawn(3, 4).requires_grad_()
    above = torch.tensor(2.0).expand(3, 4)
    assert torch.equal(torch.autograd.grad(multiply(x), x, above)[0], torch.full((3, 4), 2.0))


def test_writing_to_a_result_changes_neither_input_nor_gradient() -> None:
    x = drawn(64).requires_grad_()
    kept = bridged(lambda x: x)(x.detach())
    kept.add_(1)
    assert torch.equal(x, drawn(64)) and torch.equal(kept, drawn(64) + 1)
    out = bridged(jax.numpy.exp)(x)
    (right,) = torch.autograd.grad(out, x, torch.ones(64), retain_graph=True)
    with torch.no_grad():
        out.zero_()
    assert torch.equal(torch.autograd.grad(out, x, torch.ones(64))[0], right)


def test_an_input_overwritten_before_the_backward_is_noticed() -> None:
    y = drawn(4).requires_grad_() * 1
    out = multiply(y)
    with torch.no_grad():
        y.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@pytest.mark.parametrize("jit", [False, True])
def test_several_outputs_some_of_them_integers(jit: bool) -> None:
    def largest(x: Any) -> tuple[Any, Any]:
        return x.max(axis=-1), x.argmax(axis=-1)

    x = drawn(3, 5).requires_grad_()
    value, place = bridged(largest, jit=jit)(x)
    assert (value.requires_grad, place.requires_grad) == (True, False) and torch.equal(place, x.argmax(-1))
    (found,) = torch.autograd.grad(value.sum(), x)
    assert torch.equal(found, torch.nn.functional.one_hot(place.long(), 5).float())


def test_gradients_of_gradients_are_refused_not_wrong() -> None:
    x = drawn(4).requires_grad_()
    (once,) = torch.autograd.grad((multiply(x, x) ** 2).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        once.sum().backward()


def test_options_are_static_where_it_compiles() -> None:
    seen: list[Any] = []

    @bridged(jit=True)
    def either(x: Any, *, negated: bool = False, other: Any = None) -> Any:
        seen.append((negated, other))
        return -x if negated else x

    x = drawn(3)
    assert torch.equal(either(x, negated=True), -x) and torch.equal(either(x), x) and torch.equal(either(x, negated=True), -x)
    assert seen == [(True, None), (False, None)]  # traced once each


def test_claims_are_read_from_the_function() -> None:
    def softmax(x: Any) -> Any:
        return x

    assert inspect.signature(bridged(softmax)) == inspect.signature(softmax)
    assert not declare("softmax", bridged(softmax)).claims("dim")


def test_listing_imports_no_jax() -> None:
    code = "import sys; from assay import registry; registry.declarations(); print('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "False\n"


def called(**options: Any) -> dict[str, Any]:
    """Equal scores: each query gives the mean of the values 1, 10, 100 that it sees."""
    v = torch.tensor([[1.0], [10.0], [100.0]]).expand(1, 1, 3, 1)
    return {"q": torch.zeros(1, 1, 3, 1), "k": torch.zeros(1, 1, 3, 1), "v": v, **options}


def attention(**options: Any) -> Tensor:
    found: Tensor = registry.get("attention", "jax-dot-product-attention")(**called(**options))
    return found


def seen(wanted: Tensor, **options: Any) -> None:
    gives(attention(**options), wanted, "attention", {**called(**options), "empty_row": "mean"})


def column(*values: float) -> Tensor:
    """(1,1,T,1) in float64."""
    return torch.tensor(values, dtype=torch.float64)[None, None, :, None]


def test_a_mask_says_what_is_kept() -> None:
    assert attention(mask=torch.eye(3, dtype=torch.bool)).flatten().tolist() == [1, 10, 100]
    seen(column(37, 37, 37), mask=torch.zeros(3, 3, dtype=torch.bool))


def test_the_finding_stands_or_the_declaration_is_stale() -> None:
    """`lacks={"empty_rows"}` rests on it."""
    page = Path(__file__).resolve().parents[2] / "reports" / "findings" / "jax_hidden_keys.py"
    with pytest.raises(SystemExit) as ended:
        run_path(str(page))
    assert ended.value.code == 1


def test_causality_and_windows_count_from_the_first_token() -> None:
    seen(column(1, 5.5, 37), causal=True)
    seen(column(1, 5.5, 55), window=2)
    assert attention(q=torch.zeros(1, 1, 1, 1), causal=True).item() == 1


def test_heads_come_before_tokens_and_neighbours_share_a_key_head() -> None:
    v = torch.arange(12.0).reshape(1, 2, 3, 2)  # (B, G, Tk, D)
    mean = v.double().mean(2, keepdim=True).repeat_interleave(2, 1)
    seen(mean, q=torch.zeros(1, 4, 2, 2), k=torch.zeros(1, 2, 3, 2), v=v)


@pytest.mark.parametrize(("kind", "name", "function", "call"), [
    ("softmax", "jax-softmax", "softmax", {"x": drawn(2, 3, 7)}),
    ("attention", "jax-dot-product-attention", "dot_product_attention", {name: drawn(1, 1, 3, 7) for name in "qkv"}),
    ("layer_norm", "jax-standardize", "standardize", {"x": drawn(2, 7), "weight": drawn(7), "bias": drawn(7), "eps": 1e-5}),
    ("feed_forward", "jax-feed-forward", "gelu", {"x": drawn(2, 7), "w_in": drawn(3, 7), "b_in": None, "w_out": drawn(7, 3),
                                                 "b_out": None, "activation": "gelu"}),
], ids=["softmax", "attention", "layer_norm", "feed_forward"])
def test_the_library_ran(kind: str, name: str, function: str, call: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    own = getattr(jax.nn, function)

    def noted(*arguments: Any, **options: Any) -> Any:
        called.append(function)
        return own(*arguments, **options)

    monkeypatch.setattr(jax.nn, function, noted)
    jax.clear_caches()
    registry.get(kind, name)(**call)
    assert called == [function]


def test_the_example_of_the_documentation_is_right() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "jax.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    with registry.collecting() as made:
        exec(re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0], names)
    assert [(one.kind, one.name) for one in made] == [("rms_norm", "mine")]
    a, b, above = drawn(2, 3, 5).requires_grad_(), drawn(5, seed=1).requires_grad_(), drawn(2, 3, 5, seed=2)
    out = names["rms_norm"](a, b, eps=1e-5)
    exact = evaluate(registry.forms("rms_norm"), {"x": a, "weight": b, "eps": 1e-5}, "float32", Arithmetic(), upstream=above,
                     wrt=("x", "weight"))
    all_within((out, *torch.autograd.grad(out, (a, b), above)), exact)
