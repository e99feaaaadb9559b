"""Statements about depth that no implementation can be asked alone: PRE-3, DN-2, SWA-3, RES-3 and COST-1 on the references."""
from __future__ import annotations

import math

import torch
from torch import Tensor

from assay.reference.attention import attention
from assay.reference.block import block
from assay.reference.layer_norm import layer_norm

WIDTH, HEADS, TOKENS = 16, 2, 6


def drawn(source: torch.Generator, *shape: int, gain: float = 1.0) -> Tensor:
    return gain * torch.randn(shape, generator=source, dtype=torch.float64) / math.sqrt(shape[-1])


def layers(depth: int, source: torch.Generator, gain: float = 1.0) -> list[dict[str, Tensor]]:
    ones = torch.ones(WIDTH, dtype=torch.float64)
    return [{"norm1.weight": ones, "norm2.weight": ones, "attn.w_q": drawn(source, WIDTH, WIDTH),
             "attn.w_k": drawn(source, WIDTH, WIDTH),
             "attn.w_v": drawn(source, WIDTH, WIDTH, gain=gain), "attn.w_o": drawn(source, WIDTH, WIDTH, gain=gain),
             "ffn.w_in": drawn(source, 4 * WIDTH, WIDTH, gain=gain), "ffn.w_out": drawn(source, WIDTH, 4 * WIDTH, gain=gain)}
            for _ in range(depth)]


def through(x: Tensor, stack: list[dict[str, Tensor]], placement: str) -> Tensor:
    for params in stack:
        x = block(x, params, num_heads=HEADS, placement=placement, norm="layer", ffn="mlp", activation="relu", causal=False)
    return x


def _gradient_norms(depth: int, placement: str) -> Tensor:
    source = torch.Generator().manual_seed(depth)
    stack = layers(depth, source)
    weights = [params["ffn.w_out"].requires_grad_() for params in stack]
    out = through(torch.randn(2, TOKENS, WIDTH, generator=source, dtype=torch.float64), stack, placement)
    if placement == "pre":
        out = layer_norm(out, torch.ones(WIDTH).double(), torch.zeros(WIDTH).double(), eps=1e-6)
    loss = (out * torch.randn(out.shape, generator=source, dtype=torch.float64)).sum()
    return torch.stack([g.norm() for g in torch.autograd.grad(loss, weights)])


def test_pre_3_last_gradient_keeps_in_post_norm_and_falls_in_pre_norm() -> None:
    """PRE-3: the last FFN matrix's gradient falls as about 1/√L in pre-norm, not in post-norm; last/first is larger there."""
    shallow, deep = 2, 32
    pre = [_gradient_norms(depth, "pre") for depth in (shallow, deep)]
    post = [_gradient_norms(depth, "post") for depth in (shallow, deep)]
    assert 0.5 < float(pre[1][-1] / pre[0][-1]) * math.sqrt(deep / shallow) < 2
    assert float(post[1][-1] / post[0][-1]) > 0.5
    ratios = [float((after[-1] / after[0]) / (before[-1] / before[0])) for after, before in zip(post, pre, strict=True)]
    assert ratios[1] > 1
    assert ratios[1] > ratios[0]


def test_pre_2_the_pre_norm_stream_grows_and_post_norm_stays_at_one() -> None:
    """PRE-2: the stream's RMS grows about as √L in pre-norm; post-norm output has RMS 1 at every depth."""
    source = torch.Generator().manual_seed(0)
    stack = layers(32, source)
    x = torch.randn(2, TOKENS, WIDTH, generator=source, dtype=torch.float64)
    sizes = [float(through(x, stack[:depth], "pre").square().mean().sqrt()) for depth in (2, 8, 32)]
    assert sizes[0] < sizes[1] < sizes[2]
    assert 0.5 < sizes[2] / sizes[1] / math.sqrt(32 / 8) < 2
    for depth in (1, 8, 32):
        assert torch.allclose(through(x, stack[:depth], "post").square().mean(-1), torch.ones(2, TOKENS, dtype=torch.float64),
                              atol=1e-3)


def _deepnorm_step(depth: int, alpha: float, beta: float) -> float:
    """How far the output moves by one step of plain SGD, relative to its size, in layers LN(alpha·x + f(x))."""
    source = torch.Generator().manual_seed(1)
    zero, one = torch.zeros(WIDTH).double(), torch.ones(WIDTH).double()
    weights = [[drawn(source, WIDTH, WIDTH, gain=beta).requires_grad_() for _ in range(2)] for _ in range(2 * depth)]
    x = torch.randn(8, WIDTH, generator=source, dtype=torch.float64)
    target = torch.randn(8, WIDTH, generator=source, dtype=torch.float64)

    def run(held: list[list[Tensor]]) -> Tensor:
        h = x
        for first, second in held:
            h = layer_norm(alpha * h + torch.relu(h @ first.T) @ second.T, one, zero, eps=1e-6)
        return h

    before = run(weights)
    flat = [w for pair in weights for w in pair]
    found = torch.autograd.grad((before * target).mean(), flat)
    moved = [w.detach() - 1e-2 * g for w, g in zip(flat, found, strict=True)]
    after = run([moved[i : i + 2] for i in range(0, len(moved), 2)])
    return float((after - before).detach().norm() / before.detach().norm())


def test_dn_2_an_update_does_not_grow_with_depth_under_deepnorm() -> None:
    """DN-2: α = (2N)^¼, β = (8N)^−¼: one step moves the output by an amount that does not grow with depth."""
    moves = [_deepnorm_step(n, (2 * n) ** 0.25, (8 * n) ** -0.25) for n in (6, 24, 96)]
    assert max(moves) <= 2 * min(moves)
    assert max(moves) < _deepnorm_step(96, 1.0, 1.0)


def test_swa_3_receptive_field_is_min_of_t_and_layers_times_window() -> None:
    """SWA-3: after L layers position t depends on exactly min(t+1, L·(w−1)+1) tokens."""
    length, window = 12, 3
    for depth in (1, 2, 3):
        x = torch.randn(1, 1, length, 4, generator=torch.Generator().manual_seed(depth), dtype=torch.float64).requires_grad_()
        h = x
        for _ in range(depth):
            h = h + attention(h, h, h, causal=True, window=window, scale=0.1)
        for t in (0, 4, 11):
            (gradient,) = torch.autograd.grad(h[0, 0, t].sum(), x, retain_graph=True)
            reached = (gradient[0, 0] != 0).any(-1)
            count = min(t + 1, depth * (window - 1) + 1)
            assert reached.tolist() == [t - count < i <= t for i in range(length)]


def test_res_3_gradient_dies_without_residuals_and_lives_with_them() -> None:
    """RES-3: through layers of gain g < 1 the gradient falls as g^L without residuals and keeps half its norm with them."""
    source = torch.Generator().manual_seed(3)
    gain, depth = 0.1, 48
    weights = [drawn(source, WIDTH, WIDTH) for _ in range(depth)]
    weights = [gain * w / torch.linalg.matrix_norm(w, 2) for w in weights]
    for residual in (True, False):
        x = torch.randn(WIDTH, generator=source, dtype=torch.float64).requires_grad_()
        h = x
        for w in weights:
            h = h + w @ h if residual else w @ h
        above = torch.randn(WIDTH, generator=source, dtype=torch.float64)
        (gradient,) = torch.autograd.grad((h * above).sum(), x)
        share = float(gradient.norm() / above.norm())
        assert share >= 0.5 if residual else share <= gain**depth * (1 + 1e-9)


def test_cost_1_parameters_of_gpt_3() -> None:
    """COST-1: 12·L·C² and the rest make GPT-3's 174,604,259,328 parameters, 0.23 % under the published 175.0 billion."""
    width, depth, words, positions = 12288, 96, 50257, 2048
    matrices = depth * (4 * width * width + 2 * width * 4 * width)
    small = depth * ((4 + 1 + 4 + 4) * width) + 2 * width  # attention's biases, the FFN's two, two norms; the final norm
    assert matrices == 173_946_175_488
    assert small == 15_360_000
    assert matrices + small + words * width + positions * width == 174_604_259_328
