"""The bridge from MLX: what goes in, what comes out, what autograd gets, what is refused; and MLX's own functions behind it."""
from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from bars import all_within, formula, within
from torch import Tensor

from assay import registry
from assay.contract.declaration import declare
from assay.impls.mlx_bridge import bridged
from assay.numbers.arithmetic import Arithmetic
from assay.numbers.evaluate import evaluate

mx = pytest.importorskip("mlx.core", reason="mlx is not installed; the extra `mlx` has it")

SEEN: list[dict[str, Any]] = []


@bridged
def multiply(x: Any, y: Any = None, *, mask: Any = None, ids: Any = None, scale: float = 1.0) -> Any:
    """scale·x·y where the mask holds; notes what it was called with."""
    SEEN.append({"x": x, "y": y, "mask": mask, "ids": ids, "scale": scale})
    out = x * scale if y is None else x * y * scale
    return out if mask is None else mx.where(mask, out, mx.zeros_like(out))


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
    assert torch.equal(multiply(x, y), x * y)
    assert bridged(lambda x: x.astype(mx.float32))(x).dtype == torch.float32, "a promotion is not hidden"


def test_every_argument_keeps_its_nature() -> None:
    multiply(drawn(3), mask=torch.tensor([True, False, True]), ids=torch.tensor([0, -100, 1 << 40]), scale=3)
    seen = SEEN[-1]
    assert (seen["mask"].dtype, seen["ids"].dtype, seen["y"], seen["scale"]) == (mx.bool_, mx.int64, None, 3)
    assert seen["ids"].tolist() == [0, -100, 1 << 40]


def test_what_mlx_would_narrow_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="float32 or narrower"):
        multiply(drawn(2, dtype=torch.float64))


@pytest.mark.parametrize("view", [
    lambda x: x.mT, lambda x: x[:, ::2], lambda x: x[1:, 1:], lambda x: x[:1].expand(4, -1), lambda x: x[:0], lambda x: x[0, 0],
], ids=["transposed", "sliced", "offset", "expanded", "empty", "scalar"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_memory_layout_does_not_matter(view: Any, dtype: torch.dtype) -> None:
    x, y = view(drawn(4, 6, dtype=dtype)), view(drawn(4, 6, seed=1, dtype=dtype))
    for strided, plain in zip(gradients_of(x, y), gradients_of(x.contiguous(), y.contiguous()), strict=True):
        assert torch.equal(strided, plain)


def test_writing_to_a_result_changes_neither_input_nor_gradient() -> None:
    x = drawn(64).requires_grad_()
    kept = bridged(lambda x: x)(x.detach())
    kept.add_(1)
    assert torch.equal(x, drawn(64)) and torch.equal(kept, drawn(64) + 1)
    out = bridged(lambda x: mx.exp(x))(x)  # MLX's own have no signature to read
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


def test_several_outputs_some_of_them_integers() -> None:
    def largest(x: Any) -> tuple[Any, Any]:
        return x.max(axis=-1), mx.argmax(x, axis=-1)

    x = drawn(3, 5).requires_grad_()
    value, place = bridged(largest)(x)
    assert (value.requires_grad, place.requires_grad) == (True, False) and torch.equal(place.long(), x.argmax(-1))
    (found,) = torch.autograd.grad(value.sum(), x)
    assert torch.equal(found, torch.nn.functional.one_hot(place.long(), 5).float())


def test_claims_are_read_from_the_function() -> None:
    def softmax(x: Any) -> Any:
        return x

    assert inspect.signature(bridged(softmax)) == inspect.signature(softmax)
    assert not declare("softmax", bridged(softmax)).claims("dim")


def test_listing_imports_no_mlx() -> None:
    code = "import sys; from assay import registry; registry.declarations(); print('mlx.core' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "False\n"


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


def test_the_example_of_the_documentation_is_right() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "mlx.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    with registry.collecting() as made:
        exec(re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0], names)
    assert [(one.kind, one.name) for one in made] == [("rms_norm", "mine")]
    a, b, above = drawn(2, 3, 5).requires_grad_(), drawn(5, seed=1).requires_grad_(), drawn(2, 3, 5, seed=2)
    out = names["rms_norm"](a, b, eps=1e-5)
    exact = evaluate(registry.forms("rms_norm"), {"x": a, "weight": b, "eps": 1e-5}, "float32", Arithmetic(), upstream=above,
                     wrt=("x", "weight"))
    all_within((out, *torch.autograd.grad(out, (a, b), above)), exact)
