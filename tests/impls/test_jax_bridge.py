"""The bridge from JAX beyond test_array_bridges.py: what it refuses and compiles, and JAX's own functions behind it."""
from __future__ import annotations

from pathlib import Path
from runpy import run_path
from typing import Any

import pytest
import torch
from arrays import drawn, multiplying
from bars import gives
from torch import Tensor

from assay import registry
from assay.impls.jax_bridge import bridged

jax = pytest.importorskip("jax", reason="jax is not installed; the extra `jax` has it")

SEEN: list[dict[str, Any]] = []


multiply = multiplying(bridged, lambda mask, x: jax.numpy.where(mask, x, 0), SEEN)


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


@pytest.mark.parametrize("jit", [False, True])
def test_several_outputs_some_of_them_integers(jit: bool) -> None:
    def largest(x: Any) -> tuple[Any, Any]:
        return x.max(axis=-1), x.argmax(axis=-1)

    x = drawn(3, 5).requires_grad_()
    value, place = bridged(largest, jit=jit)(x)
    assert (value.requires_grad, place.requires_grad) == (True, False) and torch.equal(place, x.argmax(-1))
    (found,) = torch.autograd.grad(value.sum(), x)
    assert torch.equal(found, torch.nn.functional.one_hot(place.long(), 5).float())


def test_options_are_static_where_it_compiles() -> None:
    seen: list[Any] = []

    @bridged(jit=True)
    def either(x: Any, *, negated: bool = False, other: Any = None) -> Any:
        seen.append((negated, other))
        return -x if negated else x

    x = drawn(3)
    assert torch.equal(either(x, negated=True), -x) and torch.equal(either(x), x) and torch.equal(either(x, negated=True), -x)
    assert seen == [(True, None), (False, None)]  # traced once each


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
