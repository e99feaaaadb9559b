"""References of group A against torch's own functions in float64, their gradients, refusals and doctests."""
from __future__ import annotations

import doctest
import inspect
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from group_a_probes import PROBES, Draw, Example
from torch import Tensor

from assay import registry
from assay.contract.kinds import kind as kind_named
from assay.reference import alibi as alibi_module
from assay.reference import rotary as rotary_module
from assay.reference.alibi import alibi
from assay.reference.batch_norm import batch_norm
from assay.reference.dropout import dropout
from assay.reference.embedding import embedding
from assay.reference.feed_forward import feed_forward
from assay.reference.gated_feed_forward import gated_feed_forward
from assay.reference.input_embedding import input_embedding
from assay.reference.layer_norm import layer_norm
from assay.reference.patchify import patchify
from assay.reference.residual import residual
from assay.reference.rms_norm import rms_norm
from assay.reference.rotary import rotary
from assay.reference.sinusoidal import sinusoidal
from assay.reference.unembedding import unembedding

KINDS = (*PROBES, "dropout")
WIDE = torch.float64
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu, "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu,
}


def close(left: Tensor, right: Tensor, addends: int) -> bool:
    """Equal but for rounding.

    Each of two evaluations of a few sums of that many addends errs by about addends · u times the size of its terms;
    the inputs here are of order 1 to 10, so 100 · addends · u covers the terms of any step.
    """
    allowed = 100 * addends * torch.finfo(WIDE).eps * right.abs().max().clamp(min=1)
    return left.shape == right.shape and bool(((left - right).abs() <= allowed).all())


def _draw(seed: int) -> Draw:
    return Draw(seed, WIDE)


def test_norms_are_torchs() -> None:
    d = _draw(0)
    x, w, b = d.normal(4, 3, 11, scale=3, shift=2), d.normal(11), d.normal(11)
    assert close(layer_norm(x, w, b, eps=0.1), F.layer_norm(x, (11,), w, b, 0.1), 11)
    assert close(rms_norm(x, w, eps=0.1), F.rms_norm(x, (11,), w, 0.1), 11)


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_is_torchs(training: bool) -> None:
    d = _draw(1)
    x, w, b, m, v = d.normal(9, 5), d.normal(5), d.normal(5), d.normal(5), d.normal(5).abs()
    ours = batch_norm(x, w, b, m, v, training=training, momentum=0.3, eps=0.1)
    m2, v2 = m.clone(), v.clone()
    y = F.batch_norm(x, m2, v2, w, b, training, 0.3, 0.1)
    assert all(close(left, right, 9) for left, right in zip(ours, (y, m2, v2), strict=True))


def test_batch_norm_conventions() -> None:
    x, one, zero = torch.tensor([[1.0], [5.0]], dtype=WIDE), torch.ones(1, dtype=WIDE), torch.zeros(1, dtype=WIDE)
    _, mean, var = batch_norm(
        x, one, zero, zero, one, training=True, momentum=0.75, eps=0.0, bn_momentum="old", bn_variance="biased")
    assert (mean.item(), var.item()) == (0.25 * 3, 0.75 + 0.25 * 4)


@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_feed_forwards_are_torchs(activation: str) -> None:
    d, act = _draw(2), ACTIVATIONS[activation]
    x, w1, b1, w2, b2, up = d.normal(2, 3, 5), d.normal(7, 5), d.normal(7), d.normal(5, 7), d.normal(5), d.normal(7, 5)
    assert close(feed_forward(x, w1, b1, w2, b2, activation=activation), F.linear(act(F.linear(x, w1, b1)), w2, b2), 12)
    gated = F.linear(act(F.linear(x, w1)) * F.linear(x, up), w2)
    assert close(gated_feed_forward(x, w1, up, w2, activation=activation), gated, 12)


def test_embeddings_are_exact() -> None:
    d = _draw(3)
    ids, table, pos = d.ids(7, 2, 4), d.normal(7, 3), d.normal(4, 3)
    assert torch.equal(embedding(ids, table), F.embedding(ids, table))
    assert torch.equal(input_embedding(ids, table, pos), F.embedding(ids, table) + pos)  # one addition: rounded alike


def test_unembedding_is_norm_and_product() -> None:
    d = _draw(4)
    h, w, b, out = d.normal(2, 6), d.normal(6), d.normal(6), d.normal(9, 6)
    assert close(unembedding(h, w, out, eps=1e-3), F.rms_norm(h, (6,), w, 1e-3) @ out.T, 6)
    assert close(unembedding(h, w, out, eps=1e-3, b_norm=b, norm="layer"), F.layer_norm(h, (6,), w, b, 1e-3) @ out.T, 6)
    assert close(unembedding(h, None, out, eps=1e-3, norm=None), h @ out.T, 6)


def test_patchify_is_a_bijection_in_the_stated_order() -> None:
    image = torch.arange(2 * 3 * 4 * 6, dtype=WIDE).reshape(2, 3, 4, 6)
    y = patchify(image, patch_size=2)
    assert y.shape == (2, 6, 12)
    for b, k, r, c in ((0, 0, 0, 0), (1, 2, 3, 5), (0, 1, 2, 1)):
        assert y[b, (r // 2) * 3 + c // 2, ((r % 2) * 2 + c % 2) * 3 + k] == image[b, k, r, c]


def test_sinusoidal_and_rotary_are_one_rotation() -> None:
    """PE of position p is (0, 1) pairs turned by −p: sine and cosine of one angle."""
    p = torch.tensor([0, 1, 5, 100])
    base_vector = torch.tensor([0.0, 1.0], dtype=WIDE).repeat(4).expand(1, 1, 4, 8)
    assert close(rotary(base_vector, -p)[0, 0], sinusoidal(p, 8, dtype=WIDE), 100)


def test_rotary_is_complex_multiplication() -> None:
    x, p = _draw(5).normal(2, 3, 4, 8), torch.tensor([[0, 1, 2, 900], [-3, 7, 7, 5]])
    theta = 10000.0 ** (-torch.arange(0, 8, 2, dtype=WIDE) / 8)
    turns = torch.polar(torch.ones(2, 1, 4, 4, dtype=WIDE), (p[..., None] * theta).unsqueeze(1))
    expected = torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (4, 2))) * turns).flatten(-2)
    assert close(rotary(x, p), expected, 1000)  # the angle of position 900 errs by 900 u
    mixed = torch.cat((x[..., 0::2], x[..., 1::2]), dim=-1)
    half = rotary(mixed, p, pairing="half")
    assert torch.equal(torch.stack(half.chunk(2, -1), dim=-1).flatten(-2), rotary(x, p))
    assert torch.equal(rotary(x, p, rotary_dim=4)[..., 4:], x[..., 4:])


def _theta(dim: int = 64, **scaling: Any) -> Tensor:
    return rotary_module.frequencies(torch.arange(4), dim, 10000.0, scaling or None, WIDE, rotary_module._as_power)


def test_scaled_frequencies() -> None:
    """YARN-1: the ends of every scaling, and s = 1 is RoPE."""
    plain = _theta()
    assert torch.equal(_theta(type="linear", factor=4.0), plain / 4)
    ntk = _theta(type="ntk", factor=4.0)
    assert ntk[0] == 1 and close(ntk[-1:] * 4, plain[-1:], 1)
    turns = 4096 * plain / (2 * torch.pi)
    yarn = _theta(type="yarn", factor=4.0, original_length=4096)
    assert torch.equal(yarn[turns > 32], plain[turns > 32]) and torch.equal(yarn[turns < 1], (plain / 4)[turns < 1])
    llama = _theta(type="llama3", factor=8.0, original_length=4096, low_freq_factor=1.0, high_freq_factor=4.0)
    assert torch.equal(llama[turns > 4], plain[turns > 4]) and torch.equal(llama[turns < 1], (plain / 8)[turns < 1])
    for kind in ("linear", "ntk", "yarn"):
        assert close(_theta(type=kind, factor=1.0, original_length=4096), plain, 1)


def test_attention_factors() -> None:
    given = {"type": "yarn", "factor": 8.0, "original_length": 64}
    assert rotary_module.attention_factor(given) == 0.1 * math.log(8) + 1
    assert rotary_module.attention_factor({**given, "type": "longrope"}) == math.sqrt(1 + math.log(8) / math.log(64))
    assert rotary_module.attention_factor({**given, "attention_factor": 1.25}) == 1.25


def test_alibi_slopes() -> None:
    assert alibi_module.slopes(8).tolist() == [2.0**-h for h in range(1, 9)]
    assert alibi_module.slopes(3).tolist() == [2.0**-4, 2.0**-8, 2.0**-2]
    rows = alibi(2, 3, 3) - alibi(2, 3, 3, alibi_row_shift="per_row")
    assert torch.equal(rows.tril().diagonal(dim1=1, dim2=2)[..., 1:2, None].expand(2, 1, 2), rows[:, 1:2, :2])


def test_residual_placements() -> None:
    x = torch.tensor([3.0, 1.0], dtype=WIDE)
    double, plus = (lambda t: 2 * t), (lambda t: t + 1)
    assert residual(x, double, (plus, lambda t: t * 10), placement="sandwich").tolist() == [83.0, 41.0]
    assert residual(x, double, plus, placement="deepnorm", alpha=3.0).tolist() == [16.0, 6.0]


def test_dropout() -> None:
    x = torch.ones(10000, dtype=WIDE, requires_grad=True)
    y = dropout(x, p=0.25, training=True, seed=1)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(gradient, y) and sorted(set(y.tolist())) == [0.0, 1 / 0.75]
    # 6 standard deviations of the count of zeros: a fixed seed, so it holds always or never.
    assert abs((y == 0).sum().item() - 2500) < 6 * (10000 * 0.25 * 0.75) ** 0.5
    assert torch.equal(dropout(x, p=1.0, training=True, seed=1), torch.zeros_like(x))


@pytest.mark.parametrize("kind", KINDS)
def test_doctests(kind: str) -> None:
    assert doctest.testmod(registry.reference(kind)).failed == 0


def _call_with(kind: str, example: Example) -> tuple[Callable[..., Tensor], list[Tensor]]:
    names = [n for n in kind_named(kind).differentiable if isinstance(example.get(n), Tensor)]
    function = getattr(registry.reference(kind), kind)

    def call(*leaves: Tensor) -> Tensor:
        y = function(**{**example, **dict(zip(names, leaves, strict=True))})
        return y[0] if isinstance(y, tuple) else y

    return call, [example[n].detach().clone().requires_grad_() for n in names]


def _legitimate(kind: str) -> list[Example]:
    found = []
    for probe in PROBES[kind]:
        example = probe(WIDE)
        small = all(v.numel() <= 200 for v in example.values() if isinstance(v, Tensor))
        tame = all(v.abs().max() < 50 for v in example.values() if isinstance(v, Tensor) and v.is_floating_point())
        try:
            getattr(registry.reference(kind), kind)(**example)
        except ValueError:
            continue
        # Differences in steps of 1e-6 need inputs of order 1 and an eps far above their square.
        floats = [v for v in example.values() if isinstance(v, Tensor) and v.is_floating_point()]
        if small and tame and example.get("eps", 1) >= 1e-5 and min(v.abs().max().item() for v in floats) > 0.01:
            found.append(example)
    return found[:3]


@pytest.mark.parametrize("kind", [k for k in PROBES if kind_named(k).differentiable])
def test_gradients_are_those_of_the_formula(kind: str) -> None:
    examples = _legitimate(kind)
    assert examples
    for example in examples:
        call, leaves = _call_with(kind, example)
        assert torch.autograd.gradcheck(call, leaves, fast_mode=True)


@pytest.mark.parametrize("kind", list(PROBES))
def test_forms_are_one_function(kind: str) -> None:
    """Every form, and its own backward, gives in float64 what the reference gives."""
    for example, form in ((e, f) for e in map(lambda p: p(WIDE), PROBES[kind][:6]) for f in registry.forms(kind)):
        function = getattr(registry.reference(kind), kind)
        if form.applies is not None and not form.applies(example):
            continue
        wide = {"dtype": WIDE} if "dtype" in inspect.signature(function).parameters else {}
        try:
            exact = function(**example, **wide)
        except ValueError:
            continue
        got = form.forward(**example, **wide)
        pairs = zip(exact, got, strict=True) if isinstance(exact, tuple) else [(exact, got)]
        size = max((v.abs().max().item() for v in example.values() if isinstance(v, Tensor) and v.numel()), default=1)
        assert all(close(right, left, 1000 + int(size)) for left, right in pairs), form.name
        if form.backward is not None:
            _check_backward(kind, form.backward, example, int(size))


def _check_backward(kind: str, backward: Callable[..., Any], example: Example, size: int) -> None:
    call, leaves = _call_with(kind, example)
    names = [n for n in kind_named(kind).differentiable if isinstance(example.get(n), Tensor)]
    y = call(*leaves)
    upstream = _draw(7).normal(*y.shape)
    gradients = backward(upstream, names, **example)
    for name, right in zip(names, torch.autograd.grad(y, leaves, upstream), strict=True):
        # ∂x goes with 1/√eps, and its polynomial form with the size of x besides.
        assert close(gradients[name], right, 1000 * (1 + size) * int(example.get("eps", 1) ** -0.5)), name


REFUSED: list[tuple[Callable[..., Any], dict[str, Any], str]] = [
    (sinusoidal, {"positions": torch.arange(2), "dim": 5}, "dim=5"),
    (input_embedding,
     {"ids": torch.zeros(1, 4, dtype=torch.long), "w_token": torch.ones(2, 1), "w_pos": torch.ones(3, 1)},
     "positions=3"),
    (embedding, {"ids": torch.tensor([-1]), "weight": torch.ones(2, 1)}, "ids=-1"),
    (embedding, {"ids": torch.tensor([2]), "weight": torch.ones(2, 1)}, "ids=2"),
    (patchify, {"image": torch.ones(1, 1, 4, 5), "patch_size": 2}, "patch_size=2"),
    (rotary, {"x": torch.ones(1, 1, 2, 4), "positions": torch.arange(2), "pairing": "third"}, "pairing="),
    (rotary, {"x": torch.ones(1, 1, 2, 4), "positions": torch.arange(2), "rotary_dim": 3}, "rotary_dim=3"),
    (rotary, {"x": torch.ones(1, 1, 2, 4), "positions": torch.arange(3)}, "positions.shape="),
    (rotary, {"x": torch.ones(1, 1, 2, 4), "positions": torch.arange(2), "scaling": {"type": "yarn", "factor": 2.0}},
     "original_length"),
    (dropout, {"x": torch.ones(1), "p": 1.5, "training": True, "seed": 0}, "p=1.5"),
    (alibi, {"num_heads": 0, "q_len": 1, "k_len": 1}, "num_heads=0"),
]


@pytest.mark.parametrize(("function", "arguments", "says"), REFUSED)
def test_refusals_are_one_clear_line(function: Callable[..., Any], arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError) as raised:
        function(**arguments)
    message = str(raised.value)
    assert says in message and "; " in message and "\n" not in message


@pytest.mark.parametrize("kind", list(PROBES))
def test_reference_keeps_the_type(kind: str) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        y = getattr(registry.reference(kind), kind)(**PROBES[kind][0](dtype))
        expected = torch.float32 if kind in ("sinusoidal", "alibi") else dtype
        assert (y[0] if isinstance(y, tuple) else y).dtype == expected
