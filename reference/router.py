"""Router of a mixture of experts: which experts a token goes to, and with what weights."""
from __future__ import annotations

import torch
from torch import Tensor

from assay.numbers.bound import freely_chosen
from assay.numbers.forms import Form

ROUTERS = ("softmax_of_topk", "topk_of_softmax", "sigmoid")


def router(
    x: Tensor, w_router: Tensor, *, top_k: int, router: str = "softmax_of_topk", indices: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Choose the top_k experts of highest score for every token, and weigh them.

    Formula: z = x · w_routerᵀ; S = indices of the top_k largest z; weights = softmax(z_S).

    x: (N, C)
    w_router: (E, C)
    indices: None, or (N, K) int64: the choice that is weighed in place of the formula's own
    returns: weights (N, K), indices (N, K) int64, best first

    Conventions: ties go to the lower index; router "softmax_of_topk" (softmax over the chosen: the same as softmax
    over all,
    renormalised over the chosen), "topk_of_softmax" (softmax over all, not renormalised), "sigmoid" (each chosen
    score's
    sigmoid, not renormalised).
    Raises: ValueError where top_k lies outside 1 … E, or router is unknown.
    Source: Shazeer et al., "Outrageously Large Neural Networks", section 2.1, arXiv 1701.06538; Jiang et al.,
    "Mixtral of
    Experts", section 2.1, arXiv 2401.04088.

    >>> weights, indices = router(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0], [1.0, 0.0], [1.0, 5.0]]), top_k=2)
    >>> weights.tolist(), indices.tolist()
    ([[0.5, 0.5]], [[1, 2]])
    """
    scores, indices = _routed(x, w_router, top_k, router, indices)
    if router == "softmax_of_topk":
        return softmax(scores.gather(-1, indices)), indices
    if router == "topk_of_softmax":
        return softmax(scores).gather(-1, indices), indices
    return torch.sigmoid(scores.gather(-1, indices)), indices


def _routed(
    x: Tensor, w_router: Tensor, top_k: int, router: str, given: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Scores (N,E) and the indices of the top_k highest (N,K), or those given."""
    experts = w_router.shape[0]
    if not 1 <= top_k <= experts:
        raise ValueError(f"top_k={top_k} must lie in 1 … E = {experts}, got {top_k}; choose at least one expert and at most all")
    if router not in ROUTERS:
        raise ValueError(f"router={router!r} must be one of {ROUTERS}, got {router!r}; choose one of them")
    scores = x @ w_router.transpose(0, 1)
    if given is not None:
        return scores, given
    return scores, torch.sort(scores.detach(), dim=-1, descending=True, stable=True).indices[..., :top_k]


def softmax(z: Tensor) -> Tensor:
    """Softmax over the last axis, the row's maximum subtracted."""
    e = torch.exp(z - freely_chosen(z.amax(-1, keepdim=True)))
    return e / e.sum(-1, keepdim=True)


def log_sum(z: Tensor) -> Tensor:
    """The logarithm of the sum of exponentials over the last axis (kept), the row's maximum taken out."""
    top = freely_chosen(z.amax(-1, keepdim=True))
    return top + torch.log(torch.exp(z - top).sum(-1, keepdim=True))


def _renormalised(
    x: Tensor, w_router: Tensor, *, top_k: int, router: str = "softmax_of_topk", indices: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Softmax over all experts, then the chosen ones divided by their sum."""
    scores, indices = _routed(x, w_router, top_k, router, indices)
    kept = softmax(scores).gather(-1, indices)
    return kept / kept.sum(-1, keepdim=True), indices


def _through_logarithm(
    x: Tensor, w_router: Tensor, *, top_k: int, router: str = "softmax_of_topk", indices: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """exp(z − logsumexp(z))."""
    scores, indices = _routed(x, w_router, top_k, router, indices)
    chosen = scores.gather(-1, indices)
    return torch.exp(chosen - log_sum(chosen if router == "softmax_of_topk" else scores)), indices


def _plain_sigmoid(
    x: Tensor, w_router: Tensor, *, top_k: int, router: str = "sigmoid", indices: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """1 / (1 + e^(−z)) as it stands."""
    scores, indices = _routed(x, w_router, top_k, router, indices)
    return 1 / (1 + torch.exp(-scores.gather(-1, indices))), indices


def deciders(x: Tensor, w_router: Tensor, *, router: str = "softmax_of_topk") -> tuple[Tensor, ...]:
    """The numbers (N,E) by which implementations choose: scores, or what rises with them (probabilities, sigmoids)."""
    scores = x @ w_router.transpose(0, 1)
    return (scores, torch.sigmoid(scores)) if router == "sigmoid" else (scores, softmax(scores))


DECIDERS: tuple[Form, ...] = (Form("scores and what rises with them", deciders),)
FORMS: tuple[Form, ...] = (
    Form("as written", router),
    Form("softmax over all, renormalised", _renormalised, usual=True,
         applies=lambda a: a.get("router", ROUTERS[0]) == ROUTERS[0]),
    Form("through the logarithm of the sum", _through_logarithm, applies=lambda a: a.get("router") != "sigmoid"),
    Form("sigmoid as one quotient", _plain_sigmoid, applies=lambda a: a.get("router") == "sigmoid"),
)
