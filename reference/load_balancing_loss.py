"""Load-balancing loss: a router is to spread its tokens evenly over the experts."""
from __future__ import annotations

import torch
from torch import Tensor

from assay.numbers.forms import Form
from assay.reference.router import log_sum, softmax


def load_balancing_loss(logits: Tensor, indices: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """E times the sum over experts of the share of tokens that they get, times their mean probability.

    Formula: L = E · Σ_e f_e · P_e; f_e = (tokens t with e among indices_t) / N, P_e = (Σ_t softmax(z_t)_e) / N, over the tokens
    that mask counts. Even routing gives K, all tokens to one expert that is certain gives E.

    logits: (N, E)
    indices: (N, K) integers, the distinct experts of each token
    mask: None, or (N,) bool, True = counted; at least one is
    returns: a scalar

    Raises: ValueError where indices or mask do not have a row a token.
    Source: Fedus et al., "Switch Transformers", section 2.2, equations 4 to 6, arXiv 2101.03961; for K > 1 as Mixtral has it
    (shares are not divided by K).

    >>> load_balancing_loss(torch.zeros(2, 4), torch.tensor([[0, 1], [2, 1]])).item()
    2.0
    """
    probabilities, chosen, count = _counted(logits, indices, mask, softmax(logits))
    shares, means = chosen.sum(0) / count, probabilities.sum(0) / count
    return (shares * means).sum() * logits.shape[-1]


def _counted(logits: Tensor, indices: Tensor, mask: Tensor | None, probabilities: Tensor) -> tuple[Tensor, Tensor, int]:
    """Probabilities and choices (N,E), zero where a token is not counted, and how many are."""
    tokens = logits.shape[0]
    if indices.shape[0] != tokens or (mask is not None and tuple(mask.shape) != (tokens,)):
        raise ValueError(f"indices.shape={tuple(indices.shape)} must have N = {tokens} rows, and mask be ({tokens},), "
                         f"got {tuple(indices.shape)} and {None if mask is None else tuple(mask.shape)}; pass one row a token")
    chosen = torch.zeros_like(logits.detach()).scatter(-1, indices.long(), 1.0)
    if mask is None:
        return probabilities, chosen, tokens
    left_out = ~mask.bool().unsqueeze(-1)
    return probabilities.masked_fill(left_out, 0.0), chosen.masked_fill(left_out, 0.0), int(mask.sum())


def _divided_last(logits: Tensor, indices: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """Counts times sums of probabilities, divided by the square of the tokens at the end."""
    probabilities, chosen, count = _counted(logits, indices, mask, torch.exp(logits - log_sum(logits)))
    return (chosen.sum(0) * probabilities.sum(0)).sum() * (logits.shape[-1] / count**2)


def _mean_of_products(logits: Tensor, indices: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """The mean over experts, times their number squared."""
    probabilities, chosen, count = _counted(logits, indices, mask, softmax(logits))
    products = (chosen.sum(0) / count) * (probabilities.sum(0) / count)
    return products.sum() / logits.shape[-1] * logits.shape[-1] ** 2


def _token_by_token(logits: Tensor, indices: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """The mean over tokens of Σ_e f_e · p_e."""
    probabilities, chosen, count = _counted(logits, indices, mask, softmax(logits))
    return (probabilities * (chosen.sum(0) / count)).sum(-1).sum() / count * logits.shape[-1]


FORMS: tuple[Form, ...] = (
    Form("as written", load_balancing_loss),
    Form("through the logarithm, divided last", _divided_last, usual=True),
    Form("mean over experts, times their number squared", _mean_of_products),
    Form("token by token", _token_by_token),
)
