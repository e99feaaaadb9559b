"""Errata of the notes: the literal text fails where the normative reading holds, and the specification tells them apart."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay import registry
from assay.reference.attention import attention
from assay.reference.encoder import encoder
from assay.run.catalogue import held_by
from assay.run.judge import Settings
from assay.run.judging import Bench
from assay.run.plan import Selection, make_plan

Array = NDArray[Any]
Swap = Callable[[Array], Array]
SHOWN = {  # erratum -> property that holds it, planted fault that is the literal text
    "E8": ("attention/output_is_the_formula", "attention/square_keys_left_untransposed"),
    "E24": ("attention/scores_of_rank_one_give_weights_of_full_rank", "attention/uniform_weights"),
    "E33": ("encoder/every_position_depends_on_every_real_one", "encoder/causal"),
}


@pytest.mark.parametrize("erratum", SHOWN)
def test_the_property_that_holds_an_erratum_fails_on_its_literal_text(erratum: str) -> None:
    property_id, fault_id = SHOWN[erratum]
    assert property_id in held_by()[erratum]
    literal = next(fault.declaration for fault in registry.faults() if fault.id == fault_id)
    right = next(made for made in registry.declarations(literal.kind) if made.name == "reference")
    for declaration, status in ((literal, "fail"), (right, "pass")):
        plan = make_plan([declaration], registry.properties(literal.kind),
                         Selection(only=(property_id,), dtypes=("float32",)))
        bench = Bench([{"isolated": False, "declared": [declaration]}], Settings(profile="quick", shrink_tries=0), None)
        assert [bench.run(case)["status"] for case in plan.cases] == [status]


# ------------------------------------------------------------------------------------------------ E8: transpose in NumPy
def literal_swap(x: Array) -> Array:
    return x.transpose(-2, -1)


def normative_swap(x: Array) -> Array:
    return np.swapaxes(x, -2, -1)


def forward(q: Array, k: Array, v: Array, swap: Swap) -> tuple[Array, Array]:
    """S3's NumPy attention and its weights, but for the swap."""
    s = q @ swap(k) / np.sqrt(q.shape[-1])
    e = np.exp(s - s.max(axis=-1, keepdims=True))
    weights = e / e.sum(axis=-1, keepdims=True)
    return weights @ v, weights


def backward(above: Array, weights: Array, q: Array, k: Array, v: Array, swap: Swap) -> tuple[Array, Array, Array]:
    """S3's NumPy backward, but for the swap."""
    grad_a = above @ swap(v)
    grad_s = weights * (grad_a - (grad_a * weights).sum(-1, keepdims=True))
    return grad_s @ k / np.sqrt(q.shape[-1]), swap(grad_s) @ q / np.sqrt(q.shape[-1]), swap(weights) @ above


def arrays(*shape: int) -> list[Array]:
    source = np.random.default_rng(8)
    return [source.standard_normal(shape) for _ in range(4)]


def test_e8_the_literal_transpose_leaves_a_matrix_as_it_is() -> None:
    x = np.arange(6.0).reshape(2, 3)
    assert np.array_equal(literal_swap(x), x)
    assert np.array_equal(normative_swap(x), x.T)


@pytest.mark.parametrize("shape", [(8, 64), (2, 4, 8, 8)], ids=["the note's own sizes", "batch and heads"])
def test_e8_the_literal_code_raises(shape: tuple[int, ...]) -> None:
    q, k, v, _ = arrays(*shape)
    with pytest.raises(ValueError):  # NumPy's own words: of matmul for two axes, of transpose for four
        forward(q, k, v, literal_swap)


def test_e8_the_literal_code_is_silently_wrong_on_squares_and_the_normative_is_the_formula() -> None:
    q, k, v, above = arrays(5, 5)
    tensors = [torch.from_numpy(x)[None, None].requires_grad_() for x in (q, k, v)]
    out = attention(*tensors)
    wanted = torch.autograd.grad(out, tensors, torch.from_numpy(above)[None, None])
    for swap, right in ((normative_swap, True), (literal_swap, False)):
        found, weights = forward(q, k, v, swap)
        gradients = backward(above, weights, q, k, v, swap)
        assert torch.allclose(torch.from_numpy(found), out[0, 0]) == right
        for ours, theirs in zip(gradients, wanted, strict=True):
            assert torch.allclose(torch.from_numpy(ours), theirs[0, 0]) == right


# ------------------------------------------------------------------------------------------------ E24: what tends to rank 1
TOKENS, WIDTH, LAYERS = 8, 32, 8


def stacked(heads: int, residual: bool) -> tuple[list[float], list[int]]:
    """Differences of the tokens after each layer of attention alone, relative to their size; smallest rank of the layer's
    softmax matrices."""
    source = torch.Generator().manual_seed(24)
    x = torch.randn(1, TOKENS, WIDTH, generator=source, dtype=torch.float64)
    differences, ranks = [], []
    for _ in range(LAYERS):
        q, k, v, mix = (x @ torch.randn(WIDTH, WIDTH, generator=source, dtype=torch.float64) / WIDTH**0.5 for _ in range(4))
        del mix  # drawn so that every number of heads sees the same weights
        q, k, v = (one.unflatten(-1, (heads, -1)).transpose(1, 2) for one in (q, k, v))
        ranks.append(int(torch.linalg.matrix_rank(weights_of(q, k)).min()))
        mixed = attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + mixed if residual else mixed
        differences.append(float((x - x.mean(1, keepdim=True)).norm() / x.norm()))
    return differences, ranks


def weights_of(q: Tensor, k: Tensor) -> Tensor:
    """Softmax matrices (1,H,T,T), read with the identity as values."""
    return attention(q, k, torch.eye(TOKENS, dtype=q.dtype).expand(*q.shape[:2], TOKENS, TOKENS))


def test_e24_the_output_tends_to_rank_one_and_the_matrices_do_not_and_heads_do_not_help() -> None:
    ends = []
    for heads in (1, 4, 16):
        differences, ranks = stacked(heads, residual=False)
        assert differences[-1] < 1e-3 * differences[0]  # the tokens have become alike: the output is one row over and over
        assert ranks[0] == TOKENS  # literal text: 1 ("the matrix's rank"), or at most D = C/H (2 for 16 heads)
        ends.append(np.log(differences[-1] / differences[0]))
    assert max(ends) - min(ends) < 0.5 * abs(np.mean(ends))  # literal text: sixteen heads ease it; the rate is the same


def test_e24_residuals_slow_it() -> None:
    alone, carried = (stacked(4, residual)[0] for residual in (False, True))
    assert carried[-1] > 100 * alone[-1]


# ------------------------------------------------------------------------------------------------ E33: who reads whom
def reads(causal_mask: bool) -> Tensor:
    """(T,T): whether output i of an encoder layer depends on input j."""
    source = torch.Generator().manual_seed(33)
    width, tokens = 4, 5
    shapes = {"norm1.weight": (width,), "norm2.weight": (width,), **{f"attn.w_{name}": (width, width) for name in "qkvo"},
              "ffn.w_gate": (6, width), "ffn.w_up": (6, width), "ffn.w_down": (width, 6)}
    params = {name: torch.randn(shape, generator=source, dtype=torch.float64) for name, shape in shapes.items()}
    x = torch.randn(1, tokens, width, generator=source, dtype=torch.float64, requires_grad=True)
    preceding = torch.ones(1, tokens, tokens, dtype=torch.bool).tril()
    out = encoder(x, [params], num_heads=2, mask=preceding if causal_mask else None)
    rows = [torch.autograd.grad(out[0, i].sum(), x, retain_graph=True)[0][0] for i in range(tokens)]
    return torch.stack([(row != 0).any(-1) for row in rows])


def test_e33_preceding_tokens_alone_is_the_causal_case_and_full_attention_reads_all() -> None:
    literal = torch.ones(5, 5, dtype=torch.bool).tril()
    assert torch.equal(reads(causal_mask=True), literal)
    assert reads(causal_mask=False).all()
