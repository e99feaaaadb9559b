"""Planted faults of the mixture of experts with limited capacity, and unusual ways that are right."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from assay.faults.moe import gated
from assay.faults.planting import plant_outputs, planter
from assay.faults.router import best, refuse
from assay.registry import benign, fault


@dataclass(frozen=True)
class Queue:
    """Tokens (N,C) in their order, the experts, and how many tokens each takes. rows: how many rows the tokens came in."""

    t: Tensor
    w_router: Tensor
    w_gate: Tensor
    w_up: Tensor
    w_down: Tensor
    top_k: int
    capacity: int
    priority: str
    rows: int

    @property
    def experts(self) -> int:
        return self.w_router.shape[0]

    @property
    def scores(self) -> Tensor:
        return self.t @ self.w_router.mT

    @property
    def choice(self) -> Tensor:
        """The experts of each token (N,K), best first."""
        return best(self.scores, self.top_k)

    @property
    def weights(self) -> Tensor:
        """The weight of each choice (N,K)."""
        return torch.softmax(self.scores.gather(-1, self.choice), -1)

    def expert(self, e: int, t: Tensor) -> Tensor:
        return gated(t, self.w_gate[e], self.w_up[e], self.w_down[e])


Way = Callable[[Queue], Tensor]


def places(index: Tensor, experts: int, priority: str) -> Tensor:
    """How many choices of the same expert come before each one (N,K)."""
    queue = index if priority == "token" else index.mT
    chosen = torch.nn.functional.one_hot(queue.reshape(-1), experts)
    before = (chosen.cumsum(0) - chosen).gather(-1, queue.reshape(-1, 1)).reshape(queue.shape)
    return before if priority == "token" else before.mT


def kept(m: Queue) -> Tensor:
    """Which choices find room (N,K)."""
    return places(m.choice, m.experts, m.priority) < m.capacity


def mixed(m: Queue, keep: Tensor | None = None, weights: Tensor | None = None, choice: Tensor | None = None,
          expert: Callable[[int, Tensor], Tensor] | None = None) -> Tensor:
    """The right mixture, with parts replaced."""
    keep, index = kept(m) if keep is None else keep, m.choice if choice is None else choice
    w, out = m.weights if weights is None else weights, torch.zeros_like(m.t)
    for e in range(m.experts):
        row, slot = torch.nonzero((index == e) & keep, as_tuple=True)
        out = out.index_add(0, row, w[row, slot, None] * (expert or m.expert)(e, m.t[row]))
    return out


def signed(way: Way) -> Callable[..., Tensor]:
    """A way with the signature of the kind."""
    def capacity_moe(x: Tensor, w_router: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor, *, top_k: int, capacity: int,
                     priority: str = "token") -> Tensor:
        refuse(top_k, w_router.shape[0])
        tokens = x.reshape(-1, x.shape[-1])
        return way(Queue(tokens, w_router, w_gate, w_up, w_down, top_k, capacity, priority, x.shape[0])).reshape(x.shape)

    return capacity_moe


planted = planter("capacity_moe", signed)


@planted(fault, "no token is ever turned away")
def capacity_ignored(m: Queue) -> Tensor:
    return mixed(m, torch.ones_like(kept(m)))


@planted(fault, "an expert takes one token more")
def one_too_many(m: Queue) -> Tensor:
    return mixed(replace(m, capacity=m.capacity + 1))


@planted(fault, "an expert takes one token fewer")
def one_too_few(m: Queue) -> Tensor:
    return mixed(replace(m, capacity=m.capacity - 1))


@planted(fault, "the capacity is meant for one choice and multiplied by top_k")
def capacity_times_top_k(m: Queue) -> Tensor:
    return mixed(replace(m, capacity=m.capacity * m.top_k))


@planted(fault, "the last tokens are kept, not the first")
def last_tokens_kept(m: Queue) -> Tensor:
    return mixed(m, places(m.choice.flip(0), m.experts, m.priority).flip(0) < m.capacity)


@planted(fault, "tokens of highest weight are kept, not the first")
def heaviest_tokens_kept(m: Queue) -> Tensor:
    order = torch.argsort(torch.softmax(m.scores, -1).amax(-1), descending=True, stable=True)
    place = torch.empty_like(m.choice)
    place[order] = places(m.choice[order], m.experts, m.priority)
    return mixed(m, place < m.capacity)


@planted(fault, "each row of the batch has the whole capacity for itself")
def capacity_per_row(m: Queue) -> Tensor:
    if not m.rows or not m.choice.numel():
        return mixed(m)
    return mixed(m, torch.cat([places(part, m.experts, m.priority) for part in m.choice.chunk(m.rows)]) < m.capacity)


@planted(fault, "the tokens queue column by column: first tokens of all rows, then second ones")
def queue_by_column(m: Queue) -> Tensor:
    order = torch.arange(len(m.t)).reshape(max(1, m.rows), -1).mT.reshape(-1) if m.rows else torch.arange(0)
    place = torch.empty_like(m.choice)
    place[order] = places(m.choice[order], m.experts, m.priority)
    return mixed(m, place < m.capacity)


@planted(fault, "one capacity for all experts together")
def capacity_shared_by_experts(m: Queue) -> Tensor:
    return mixed(m, places(torch.zeros_like(m.choice), m.experts, m.priority) < m.capacity)


@planted(fault, "each rank of choice has a capacity of its own")
def capacity_per_choice(m: Queue) -> Tensor:
    columns = [places(m.choice[:, j:j + 1], m.experts, "token") for j in range(m.top_k)]
    return mixed(m, torch.cat(columns, -1) < m.capacity)


@planted(fault, "always in the tokens' order, whatever priority says")
def always_by_token(m: Queue) -> Tensor:
    return mixed(replace(m, priority="token"))


@planted(fault, "always first choices first, whatever priority says")
def always_by_choice(m: Queue) -> Tensor:
    return mixed(replace(m, priority="choice"))


@planted(fault, "by rank of choice, the last rank first")
def last_choices_first(m: Queue) -> Tensor:
    if m.priority == "token":
        return mixed(m)
    return mixed(m, places(m.choice.flip(-1), m.experts, "choice").flip(-1) < m.capacity)


@planted(fault, "the last expert has no limit")
def last_expert_unlimited(m: Queue) -> Tensor:
    return mixed(m, kept(m) | (m.choice == m.experts - 1))


@planted(fault, "weights of the kept choices are made to sum to 1 again")
def renormalised_after_dropping(m: Queue) -> Tensor:
    w = m.weights * kept(m)
    return mixed(m, weights=w / w.sum(-1, keepdim=True).clamp_min(1e-6))


@planted(fault, "a token that one of its experts turns away is left out by all")
def whole_token_dropped(m: Queue) -> Tensor:
    return mixed(m, kept(m) & kept(m).all(-1, keepdim=True))


@planted(fault, "a token that all its experts turn away passes as it is: the residual is inside")
def dropped_token_passes(m: Queue) -> Tensor:
    return mixed(m) + m.t * ~kept(m).any(-1, keepdim=True)


@planted(fault, "a choice that is turned away goes to the next expert")
def overflow_to_the_next_expert(m: Queue) -> Tensor:
    index, keep = m.choice, kept(m)
    return mixed(m, torch.ones_like(keep), choice=torch.where(keep, index, (index + 1) % m.experts))


@planted(fault, "what is turned away is written over the last place: the expert sees the sum of them")
def overflow_into_the_last_place(m: Queue) -> Tensor:
    index, place, keep, w, out = m.choice, places(m.choice, m.experts, m.priority), kept(m), m.weights, torch.zeros_like(m.t)
    for e in range(m.experts):
        row, slot = torch.nonzero(index == e, as_tuple=True)
        at = place[row, slot].clamp(max=m.capacity - 1)
        sent = m.t.new_zeros(min(m.capacity, len(m.t) + 1), m.t.shape[1]).index_add(0, at, m.t[row])
        row, slot = torch.nonzero((index == e) & keep, as_tuple=True)
        out = out.index_add(0, row, w[row, slot, None] * m.expert(e, sent)[place[row, slot]])
    return out


@planted(fault, "turned away, but its weight goes to the expert's last token")
def weight_of_the_dropped_goes_to_the_last(m: Queue) -> Tensor:
    index, place, w = m.choice, places(m.choice, m.experts, m.priority), m.weights
    total = torch.zeros(m.experts, dtype=w.dtype).index_add(0, index[~kept(m)], w[~kept(m)])
    return mixed(m, weights=w + total[index] * (place == m.capacity - 1))


@planted(fault, "softmax over all experts, not renormalised over the chosen")
def not_renormalised(m: Queue) -> Tensor:
    return mixed(m, weights=torch.softmax(m.scores, -1).gather(-1, m.choice))


@planted(fault, "sigmoid weights")
def sigmoid_weights(m: Queue) -> Tensor:
    return mixed(m, weights=torch.sigmoid(m.scores.gather(-1, m.choice)))


@planted(fault, "outputs of the experts summed without weights")
def unweighted(m: Queue) -> Tensor:
    return mixed(m, weights=torch.ones_like(m.weights))


@planted(fault, "the weight enters twice")
def weight_squared(m: Queue) -> Tensor:
    return mixed(m, weights=m.weights * m.weights)


@planted(fault, "the lowest scores are chosen")
def lowest_chosen(m: Queue) -> Tensor:
    index = best(-m.scores, m.top_k)
    w = torch.softmax(m.scores.gather(-1, index), -1)
    return mixed(m, places(index, m.experts, m.priority) < m.capacity, w, index)


@planted(fault, "gate and up swapped in the experts")
def gate_and_up_swapped(m: Queue) -> Tensor:
    return mixed(m, expert=lambda e, t: gated(t, m.w_up[e], m.w_gate[e], m.w_down[e]))


@planted(fault, "the weights of the last expert are never read: the one before serves for it")
def last_expert_not_read(m: Queue) -> Tensor:
    return mixed(m, expert=lambda e, t: m.expert(min(e, max(0, m.experts - 2)), t))


@planted(fault, "an expert of fewer than two tokens is skipped")
def lonely_token_skipped(m: Queue) -> Tensor:
    held = torch.nn.functional.one_hot(m.choice, m.experts).mul(kept(m)[..., None]).sum((0, 1))
    return mixed(m, kept(m) & (held[m.choice] != 1))


plant_outputs(planted, mixed)


@planted(fault, "the router gets no gradient")
def router_detached(m: Queue) -> Tensor:
    return mixed(m, weights=m.weights.detach()) + 0 * m.w_router.clamp(-1, 1).sum()


@planted(fault, "tokens get no gradient through the router")
def router_input_detached(m: Queue) -> Tensor:
    return mixed(m, weights=replace(m, t=m.t.detach()).weights)


@planted(fault, "choices that were turned away get the gradient of those that were kept")
def gradient_of_the_dropped(m: Queue) -> Tensor:
    out, whole = mixed(m), mixed(m, torch.ones_like(kept(m)))
    return out.detach() + whole - whole.detach()


@planted(fault, "the experts' gradient misses the router's weight")
def expert_gradient_unweighted(m: Queue) -> Tensor:
    out, plain = mixed(m), mixed(m, weights=torch.ones_like(m.weights))
    alone = mixed(m, expert=lambda e, t: m.expert(e, t).detach()) - out.detach()
    return out.detach() + (plain - plain.detach()) + alone


@planted(fault, "the router's gradient is that of weights renormalised over the kept")
def router_gradient_renormalised(m: Queue) -> Tensor:
    w = m.weights
    over = w * kept(m) / (w * kept(m)).sum(-1, keepdim=True).clamp_min(1e-6)
    return mixed(m, weights=w.detach() + over - over.detach())


@planted(fault, "the last expert gets no gradient")
def last_expert_detached(m: Queue) -> Tensor:
    return mixed(m, expert=lambda e, t: m.expert(e, t).detach() if e == m.experts - 1 else m.expert(e, t)) + 0 * sum(
        w[-1].clamp(-1, 1).sum() for w in (m.w_gate, m.w_up, m.w_down))


@planted(benign, "GShard's dispatch and combine: one product with a mask over (token, expert, place)")
def dispatch_and_combine(m: Queue) -> Tensor:
    room = min(m.capacity, max(1, m.choice.numel()))
    place = places(m.choice, m.experts, m.priority)
    chosen = torch.nn.functional.one_hot(m.choice, m.experts).to(m.t.dtype) * kept(m)[..., None]
    at = torch.nn.functional.one_hot(place.clamp(max=room - 1), room).to(m.t.dtype)
    combine = torch.einsum("nk,nke,nkp->nep", m.weights, chosen, at)
    sent = torch.einsum("nep,nc->epc", (combine.detach() != 0).to(m.t.dtype), m.t)
    own = torch.stack([m.expert(e, sent[e]) for e in range(m.experts)])
    return torch.einsum("nep,epc->nc", combine, own)


@planted(benign, "copies sorted by expert, each segment cut at its capacity")
def sorted_and_cut(m: Queue) -> Tensor:
    queue, w = (m.choice, m.weights) if m.priority == "token" else (m.choice.mT, m.weights.mT)
    token = torch.arange(len(m.t))[:, None].expand(m.choice.shape)
    token = (token if m.priority == "token" else token.mT).reshape(-1)
    order = torch.argsort(queue.reshape(-1), stable=True)
    out, start = torch.zeros_like(m.t), 0
    for e, size in enumerate(torch.bincount(queue.reshape(-1), minlength=m.experts).tolist()):
        mine = order[start:start + min(size, m.capacity)]
        out = out.index_add(0, token[mine], w.reshape(-1)[mine, None] * m.expert(e, m.t[token[mine]]))
        start += size
    return out


@planted(benign, "weights multiply before the down projection, experts in reverse order")
def weights_before_down(m: Queue) -> Tensor:
    keep, index, w, out = kept(m), m.choice, m.weights, torch.zeros_like(m.t)
    for e in reversed(range(m.experts)):
        row, slot = torch.nonzero((index == e) & keep, as_tuple=True)
        t = m.t[row]
        hidden = torch.nn.functional.silu(t @ m.w_gate[e].mT) * (t @ m.w_up[e].mT)
        out = out.index_add(0, row, (hidden * w[row, slot, None]) @ m.w_down[e].mT)
    return out


@planted(benign, "every expert computes every token, and a mask takes what it keeps")
def dense_and_masked(m: Queue) -> Tensor:
    w = torch.zeros_like(m.scores).scatter(-1, m.choice, m.weights * kept(m))
    return sum((w[:, e, None] * m.expert(e, m.t) for e in range(m.experts)), torch.zeros_like(m.t))


@planted(benign, "one token after another, each expert with a counter")
def counted_one_by_one(m: Queue) -> Tensor:
    free, keep = [m.capacity] * m.experts, torch.zeros_like(m.choice, dtype=torch.bool)
    rows, ranks = range(len(m.t)), range(m.top_k)
    for n, j in ((n, j) for n in rows for j in ranks) if m.priority == "token" else ((n, j) for j in ranks for n in rows):
        e = int(m.choice[n, j])
        keep[n, j] = free[e] > 0
        free[e] -= 1
    return mixed(m, keep)
