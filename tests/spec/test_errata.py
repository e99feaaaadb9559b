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
from assay.impls import hf_causal_lm
from assay.numbers.arithmetic import Arithmetic
from assay.numbers.bound import Bounded
from assay.numbers.evaluate import evaluate
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


def within(found: Tensor, exact: Bounded) -> bool:
    """Every element within its bar."""
    return bool(((found.double() - exact.value).abs() <= exact.bar).all())


def exactly(kind: str, **arguments: Any) -> Bounded:
    """The output of the kind's formula in float32, with the bars of its forms."""
    found: Bounded = evaluate(registry.forms(kind), arguments, "float32", Arithmetic()).outputs[0]
    return found


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
    q, k, v, above = (x.astype(np.float32) for x in arrays(5, 5))
    tensors = [torch.from_numpy(x)[None, None] for x in (q, k, v, above)]
    exact = evaluate(registry.forms("attention"), dict(zip("qkv", tensors, strict=False)), "float32", Arithmetic(),
                     upstream=tensors[3], wrt=("q", "k", "v"))
    wanted = (exact.outputs[0], *exact.gradients.values())
    for swap, right in ((normative_swap, True), (literal_swap, False)):
        found, weights = forward(q, k, v, swap)
        for ours, theirs in zip((found, *backward(above, weights, q, k, v, swap)), wanted, strict=True):
            assert within(torch.from_numpy(ours)[None, None], theirs) == right


# ------------------------------------------------------------------------------------------------ E17: what GPT-2 is
def gpt2() -> Any:
    """A small one of the library, its weights drawn."""
    return hf_causal_lm.tiny("gpt2", hf_causal_lm.model_class("GPT2LMHeadModel"), 17)


def layer_of(model: Any) -> tuple[Any, Tensor]:
    """Its first layer, and tokens (B,T,C) to send through it."""
    drawn = torch.randn(2, 5, model.config.n_embd, generator=torch.Generator().manual_seed(17))
    return model.transformer.h[0], drawn


def test_e17_gpt2_learns_a_table_of_positions() -> None:
    """The logits hang on the rows of the places that there are, and a gradient reaches those alone."""
    model, ids = gpt2(), torch.tensor([[5, 6, 7, 8]])
    table = model.transformer.wpe.weight
    assert table.requires_grad and tuple(table.shape) == (model.config.n_positions, model.config.n_embd)
    logits = model(ids).logits
    (slope,) = torch.autograd.grad(logits[0, -1].logsumexp(0), table)
    assert (slope != 0).any(-1).tolist() == [place < ids.shape[1] for place in range(model.config.n_positions)]
    with torch.no_grad():
        table.copy_(table.flip(0))
        assert not torch.equal(model(ids).logits, logits)


def test_e17_attention_of_gpt2_turns_nothing() -> None:
    """A layer by itself: the causal mask comes from the model around it."""
    layer, x = layer_of(gpt2())
    fused, out = layer.attn.c_attn, layer.attn.c_proj  # (in, out), where the formula has (out, in)
    given = {"x": x, "w_o": out.weight.detach().mT, "b_o": out.bias.detach(), "num_heads": layer.attn.num_heads}
    for name, weight, bias in zip("qkv", fused.weight.detach().mT.chunk(3), fused.bias.detach().chunk(3), strict=True):
        given |= {f"w_{name}": weight, f"b_{name}": bias}
    with torch.no_grad():
        found = layer.attn(x)[0]
    assert within(found, exactly("multi_head_attention", **given))
    assert not within(found, exactly("multi_head_attention", **given, positions=torch.arange(x.shape[1])))  # literal text: RoPE


def test_e17_the_network_of_gpt2_is_plain_with_gelu_tanh() -> None:
    layer, x = layer_of(gpt2())
    up, down = layer.mlp.c_fc, layer.mlp.c_proj
    weights = {"w_in": up.weight.detach().mT, "b_in": up.bias.detach(), "w_out": down.weight.detach().mT,
               "b_out": down.bias.detach()}
    with torch.no_grad():
        found = layer.mlp(x)
    assert within(found, exactly("feed_forward", x=x, **weights, activation="gelu_tanh"))
    for other in ("gelu", "relu", "silu"):
        assert not within(found, exactly("feed_forward", x=x, **weights, activation=other))
    half = len(weights["w_in"]) // 2  # literal text: SwiGLU; of the matrices that there are, one half gates the other
    gate, value = weights["w_in"].split(half)
    literal = exactly("gated_feed_forward", x=x, w_gate=gate, w_up=value, w_down=weights["w_out"][:, :half], activation="silu")
    assert not within(found, literal)


def test_e17_the_norm_of_gpt2_is_layer_norm() -> None:
    layer, x = layer_of(gpt2())
    weight, bias, eps = layer.ln_1.weight.detach(), layer.ln_1.bias.detach(), layer.ln_1.eps
    with torch.no_grad():
        found = layer.ln_1(x)
    assert within(found, exactly("layer_norm", x=x, weight=weight, bias=bias, eps=eps))
    assert not within(found, exactly("rms_norm", x=x, weight=weight, eps=eps))


# ------------------------------------------------------------------------------------------------ E24: what tends to rank 1
TOKENS, WIDTH, LAYERS = 8, 32, 8
ALIKE = 2 * TOKENS * torch.finfo(torch.float64).eps  # of sums over the tokens: what rounding leaves of equal rows


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
    needed = {}
    for heads in (1, 4, 16):
        differences, ranks = stacked(heads, residual=False)
        assert differences[-1] <= ALIKE < differences[0]  # the output is one row over and over
        assert ranks[0] == TOKENS  # literal text: 1 ("the matrix's rank"), or at most D = C/H (2 for 16 heads)
        needed[heads] = next(depth for depth, one in enumerate(differences) if one <= ALIKE)
    assert needed[16] <= needed[4] <= needed[1]  # literal text: sixteen heads multiply the rank by 16, and ease it


def test_e24_residuals_slow_it() -> None:
    """More is left after all layers than attention alone leaves after two."""
    alone, carried = (stacked(4, residual)[0] for residual in (False, True))
    assert carried[-1] > alone[1]


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
