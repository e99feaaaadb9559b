"""Planted faults of the mixture of experts, and unusual ways that are right."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from assay.faults.router import best, refuse
from assay.registry import benign, fault

Shared = tuple[Tensor, Tensor, Tensor]
NOT_EXPRESSIBLE = {
    "BUG-165": "a load-balancing bias, which the call does not have",
    "BUG-166": "groups of experts, which the call does not have",
    "BUG-168": "a load-balancing bias, which the call does not have",
    "BUG-170": "the load-balancing loss is no kind",
    "BUG-172": "a capacity factor, which the call does not have; dropping tokens unasked is planted",
    "BUG-174": "identity experts, which the call does not have",
    "BUG-176": "the load-balancing loss is no kind",
    "BUG-178": "a shared expert fused into the top-k; overwriting the last choice is planted",
}


@dataclass(frozen=True)
class Mixture:
    """Tokens (N,C) and the weights of the experts."""

    t: Tensor
    w_router: Tensor
    w_gate: Tensor
    w_up: Tensor
    w_down: Tensor
    top_k: int
    shared: Shared | None

    def expert(self, e: int, t: Tensor) -> Tensor:
        """One expert on some tokens."""
        return gated(t, self.w_gate[e], self.w_up[e], self.w_down[e])

    @property
    def experts(self) -> int:
        return self.w_router.shape[0]


Wrong = Callable[[Mixture], Tensor]


def gated(t: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor) -> Tensor:
    """(silu(t·w_gateᵀ) ⊙ t·w_upᵀ)·w_downᵀ."""
    return (torch.nn.functional.silu(t @ w_gate.mT) * (t @ w_up.mT)) @ w_down.mT


def dense_weights(m: Mixture) -> Tensor:
    """The router's weights (N,E), zero where not chosen."""
    z = m.t @ m.w_router.mT
    index = best(z, m.top_k)
    return torch.zeros_like(z).scatter(-1, index, torch.softmax(z.gather(-1, index), -1))


def combined(m: Mixture, w: Tensor, expert: Callable[[int, Tensor], Tensor] | None = None) -> Tensor:
    """Σ_e w_e·E_e over the tokens that chose e."""
    out = torch.zeros_like(m.t)
    for e in range(m.experts):
        rows = torch.nonzero(w[:, e].detach() != 0)[:, 0]
        out = out.index_add(0, rows, w[rows, e, None] * (expert or m.expert)(e, m.t[rows]))
    return out


def with_shared(m: Mixture, out: Tensor) -> Tensor:
    """Plus the shared expert."""
    return out if m.shared is None else out + gated(m.t, *m.shared)


def right(m: Mixture) -> Tensor:
    """The right mixture."""
    return with_shared(m, combined(m, dense_weights(m)))


def planted(mark: Callable[..., Any], summary: str, origin: str = "", **options: Any) -> Callable[[Wrong], Wrong]:
    """Give a function of a mixture the signature of the kind, under its own name, and register it."""
    def register(wrong: Wrong) -> Wrong:
        def moe(x: Tensor, w_router: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor, *, top_k: int,
                shared: Shared | None = None) -> Tensor:
            refuse(top_k, w_router.shape[0])
            tokens = x.reshape(-1, x.shape[-1])
            return wrong(Mixture(tokens, w_router, w_gate, w_up, w_down, top_k, shared)).reshape(x.shape)

        moe.__name__ = moe.__qualname__ = wrong.__name__
        moe.__module__, moe.__doc__ = wrong.__module__, summary
        extra = {"origin": origin} if mark is fault else {}
        mark("moe", summary=summary, **extra, **options)(moe)
        return wrong

    return register


@planted(fault, "softmax over all experts, not renormalised", "BUG-162")
def not_renormalised(m: Mixture) -> Tensor:
    z = m.t @ m.w_router.mT
    keep = dense_weights(m) != 0
    return with_shared(m, combined(m, torch.softmax(z, -1) * keep))


@planted(fault, "raw scores weigh the experts", "BUG-163")
def raw_scores_as_weights(m: Mixture) -> Tensor:
    return with_shared(m, combined(m, (m.t @ m.w_router.mT) * (dense_weights(m) != 0)))


@planted(fault, "sigmoid weights", "BUG-164")
def sigmoid_weights(m: Mixture) -> Tensor:
    return with_shared(m, combined(m, torch.sigmoid(m.t @ m.w_router.mT) * (dense_weights(m) != 0)))


@planted(fault, "softmax over the chosen where that over all is declared", "BUG-161", conventions={"router": "topk_of_softmax"})
def renormalised_against_declaration(m: Mixture) -> Tensor:
    return right(m)


@planted(fault, "outputs of the chosen experts summed without weights")
def unweighted(m: Mixture) -> Tensor:
    w = dense_weights(m)
    return with_shared(m, combined(m, (w != 0).to(w.dtype)))


@planted(fault, "all experts are mixed, top_k ignored")
def dense_mixture(m: Mixture) -> Tensor:
    return with_shared(m, combined(m, torch.softmax(m.t @ m.w_router.mT, -1)))


@planted(fault, "ten experts whatever top_k says", "BUG-160")
def ten_experts(m: Mixture) -> Tensor:
    more = Mixture(m.t, m.w_router, m.w_gate, m.w_up, m.w_down, min(10, m.experts), m.shared)
    return right(more)


@planted(fault, "the best expert alone")
def best_expert_alone(m: Mixture) -> Tensor:
    one = Mixture(m.t, m.w_router, m.w_gate, m.w_up, m.w_down, 1, m.shared)
    return right(one)


@planted(fault, "the lowest scores are chosen")
def lowest_chosen(m: Mixture) -> Tensor:
    z = m.t @ m.w_router.mT
    index = best(-z, m.top_k)
    w = torch.zeros_like(z).scatter(-1, index, torch.softmax(z.gather(-1, index), -1))
    return with_shared(m, combined(m, w))


@planted(fault, "weights and experts out of step: the second choice gets the first one's weight")
def weights_reversed(m: Mixture) -> Tensor:
    z = m.t @ m.w_router.mT
    index = best(z, m.top_k)
    w = torch.zeros_like(z).scatter(-1, index, torch.softmax(z.gather(-1, index), -1).flip(-1))
    return with_shared(m, combined(m, w))


@planted(fault, "gate and up swapped in the experts", "BUG-157")
def gate_and_up_swapped(m: Mixture) -> Tensor:
    return with_shared(m, combined(m, dense_weights(m), lambda e, t: gated(t, m.w_up[e], m.w_gate[e], m.w_down[e])))


@planted(fault, "experts gated with GELU")
def gelu_experts(m: Mixture) -> Tensor:
    def expert(e: int, t: Tensor) -> Tensor:
        return (torch.nn.functional.gelu(t @ m.w_gate[e].mT) * (t @ m.w_up[e].mT)) @ m.w_down[e].mT

    return with_shared(m, combined(m, dense_weights(m), expert))


@planted(fault, "the weight multiplies the expert's input, not its output")
def weight_on_input(m: Mixture) -> Tensor:
    w = dense_weights(m)
    out = torch.zeros_like(m.t)
    for e in range(m.experts):
        chosen = (w[:, e] != 0).to(w.dtype)
        out = out + chosen[:, None] * m.expert(e, m.t * w[:, e, None])
    return with_shared(m, out)


@planted(fault, "the literal text of a note: each expert's output is summed over the tokens that chose it")
def summed_over_tokens(m: Mixture) -> Tensor:
    w = dense_weights(m)
    chosen = (w.detach() != 0).to(w.dtype)
    total = torch.stack([(chosen[:, e, None] * m.expert(e, m.t)).sum(0) for e in range(m.experts)])
    return with_shared(m, w @ total)


@planted(fault, "the weight enters twice")
def weight_squared(m: Mixture) -> Tensor:
    w = dense_weights(m)
    return with_shared(m, combined(m, w * w))


@planted(fault, "the shared expert is left out")
def shared_left_out(m: Mixture) -> Tensor:
    return combined(m, dense_weights(m))


@planted(fault, "the shared expert is weighted by the best score")
def shared_weighted(m: Mixture) -> Tensor:
    out, w = combined(m, dense_weights(m)), dense_weights(m)
    return out if m.shared is None else out + w.amax(-1, keepdim=True) * gated(m.t, *m.shared)


@planted(fault, "the shared expert is added once for each chosen expert")
def shared_added_for_each(m: Mixture) -> Tensor:
    out = combined(m, dense_weights(m))
    return out if m.shared is None else out + m.top_k * gated(m.t, *m.shared)


@planted(fault, "the shared expert takes the place of the last choice", "BUG-178")
def shared_replaces_last_choice(m: Mixture) -> Tensor:
    if m.shared is None or m.top_k == 1:
        return right(m)
    w = dense_weights(m)
    lowest = torch.where(w == 0, torch.full_like(w, 2), w).argmin(-1, keepdim=True)
    return with_shared(m, combined(m, w.scatter(-1, lowest, 0.0)))


@planted(fault, "the residual is added inside")
def residual_inside(m: Mixture) -> Tensor:
    return right(m) + m.t


@planted(fault, "tokens beyond an even share of each expert are dropped unasked", "BUG-172")
def tokens_dropped(m: Mixture) -> Tensor:
    w = dense_weights(m)
    room = -(-m.t.shape[0] * m.top_k // m.experts)
    place = (w != 0).long().cumsum(0)
    return with_shared(m, combined(m, w * (place <= room)))


@planted(fault, "the last token is not routed when their number is odd")
def last_odd_token_dropped(m: Mixture) -> Tensor:
    n = m.t.shape[0]
    if n % 2 == 0 or n == 1:
        return right(m)
    keep = (torch.arange(n, device=m.t.device) < n - 1).to(m.t.dtype)
    return with_shared(m, combined(m, dense_weights(m) * keep[:, None]))


@planted(fault, "tokens are scattered back in the order of the experts")
def order_not_restored(m: Mixture) -> Tensor:
    out = combined(m, dense_weights(m))
    return with_shared(m, out[torch.argsort(best(m.t @ m.w_router.mT, 1)[:, 0], stable=True)])


@planted(fault, "the choice is made for the mean token, for all tokens")
def routed_by_mean_token(m: Mixture) -> Tensor:
    if m.t.shape[0] == 0:
        return right(m)
    z = m.t @ m.w_router.mT
    index = best(z.mean(0, keepdim=True), m.top_k).expand(m.t.shape[0], m.top_k)
    w = torch.zeros_like(z).scatter(-1, index, torch.softmax(z.gather(-1, index), -1))
    return with_shared(m, combined(m, w))


@planted(fault, "tokens are scored after centring over the batch")
def scores_depend_on_batch(m: Mixture) -> Tensor:
    centred = m.t - m.t.mean(0, keepdim=True) if m.t.shape[0] > 1 else m.t
    w = dense_weights(Mixture(centred, m.w_router, m.w_gate, m.w_up, m.w_down, m.top_k, m.shared))
    return with_shared(m, combined(m, w))


@planted(fault, "the weights of the last expert are never read: the one before serves for it")
def last_expert_not_read(m: Mixture) -> Tensor:
    return with_shared(m, combined(m, dense_weights(m), lambda e, t: m.expert(min(e, max(0, m.experts - 2)), t)))


@planted(fault, "an expert of fewer than two tokens is skipped")
def lonely_token_skipped(m: Mixture) -> Tensor:
    w = dense_weights(m)
    return with_shared(m, combined(m, w * ((w != 0).sum(0) != 1)))


@planted(fault, "a trace of every expert is mixed in")
def unchosen_leak(m: Mixture) -> Tensor:
    w = dense_weights(m)
    return with_shared(m, combined(m, torch.where(w == 0, torch.full_like(w, 1e-3), w)))


@planted(fault, "the router gets no gradient")
def router_detached(m: Mixture) -> Tensor:
    return with_shared(m, combined(m, dense_weights(m).detach())) + 0 * m.w_router.sum()


@planted(fault, "tokens get no gradient through the router")
def router_input_detached(m: Mixture) -> Tensor:
    w = dense_weights(Mixture(m.t.detach(), m.w_router, m.w_gate, m.w_up, m.w_down, m.top_k, m.shared))
    return with_shared(m, combined(m, w))


@planted(fault, "the experts' gradient misses the router's weight")
def expert_gradient_unweighted(m: Mixture) -> Tensor:
    w = dense_weights(m)
    out = combined(m, w)
    plain = combined(m, (w != 0).to(w.dtype))
    weights_alone = combined(m, w, lambda e, t: m.expert(e, t).detach()) - out.detach()
    return with_shared(m, out.detach() + (plain - plain.detach()) + weights_alone)


@planted(fault, "gradient reaches the scores of experts that were not chosen")
def gradient_of_dense_softmax(m: Mixture) -> Tensor:
    w, dense = dense_weights(m).detach(), torch.softmax(m.t @ m.w_router.mT, -1)
    return with_shared(m, combined(m, w + (dense - dense.detach()) * (w != 0)))


@planted(fault, "every expert computes every token: right values, E times the work")
def every_expert_computes_all(m: Mixture) -> Tensor:
    w = dense_weights(m)
    return with_shared(m, sum((w[:, e, None] * m.expert(e, m.t) for e in range(m.experts)), torch.zeros_like(m.t)))


@planted(benign, "token copies sorted by expert, one product a segment")
def sorted_segments(m: Mixture) -> Tensor:
    z = m.t @ m.w_router.mT
    index = best(z, m.top_k)
    g, owner = torch.softmax(z.gather(-1, index), -1).reshape(-1), index.reshape(-1)
    order = torch.argsort(owner, stable=True)
    token, sizes = order // m.top_k, torch.bincount(owner, minlength=m.experts).tolist()
    parts = [m.expert(e, rows) for e, rows in enumerate(m.t[token].split(sizes))]
    return with_shared(m, torch.zeros_like(m.t).index_add(0, token, torch.cat(parts) * g[order, None]))


@planted(benign, "weights multiply before the down projection")
def weights_before_down(m: Mixture) -> Tensor:
    w, out = dense_weights(m), torch.zeros_like(m.t)
    for e in range(m.experts):
        rows = torch.nonzero(w[:, e].detach() != 0)[:, 0]
        t = m.t[rows]
        hidden = torch.nn.functional.silu(t @ m.w_gate[e].mT) * (t @ m.w_up[e].mT)
        out = out.index_add(0, rows, (hidden * w[rows, e, None]) @ m.w_down[e].mT)
    return with_shared(m, out)


@planted(benign, "the shared expert first, experts in reverse order")
def shared_first(m: Mixture) -> Tensor:
    w = dense_weights(m)
    out = torch.zeros_like(m.t) if m.shared is None else gated(m.t, *m.shared)
    for e in reversed(range(m.experts)):
        rows = torch.nonzero(w[:, e].detach() != 0)[:, 0]
        out = out.index_add(0, rows, w[rows, e, None] * m.expert(e, m.t[rows]))
    return out


@planted(benign, "gate and up as one fused product")
def fused_gate_and_up(m: Mixture) -> Tensor:
    def expert(e: int, t: Tensor) -> Tensor:
        gate, up = (t @ torch.cat([m.w_gate[e], m.w_up[e]]).mT).chunk(2, -1)
        return (torch.nn.functional.silu(gate) * up) @ m.w_down[e].mT

    return with_shared(m, combined(m, dense_weights(m), expert))
