"""Logits filter: temperature, then top-k, then top-p on what top-k left."""
from __future__ import annotations

import torch
from torch import Tensor

from assay.numbers.bound import freely_chosen
from assay.numbers.forms import Form

INFINITY = float("inf")


def logits_filter(
    logits: Tensor, *, temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None,
    topk_ties: str = "exactly_k", topp_boundary: str = "reach", temperature_zero: str = "refused",
) -> Tensor:
    """Divide the logits by the temperature and set to −∞ what top-k and top-p drop.

    Formula: z = logits / temperature; top-k keeps the k largest z; with p = softmax(z) over those, sorted from the
    largest,
    top-p keeps entry j iff p_1 + … + p_{j−1} < top_p.

    logits: (N, V)
    returns: (N, V), kept entries z, dropped entries −∞

    Conventions: topk_ties "exactly_k" (the lower index wins) or "all" (everything equal to the k-th stays);
    topp_boundary
    "reach" (stop when the sum reaches top_p) or "exceed" (when it exceeds it); temperature_zero "refused" or "greedy"
    (the
    largest logits alone stay, as they are). top_p = 1 keeps all by rule.
    Raises: ValueError where temperature < 0 (or = 0, unless greedy), top_k < 1, or top_p lies outside 0 < top_p ≤ 1.
    Source: Fan et al., "Hierarchical Neural Story Generation", section 5.4 (top-k), arXiv 1805.04833; Holtzman et
    al., "The
    Curious Case of Neural Text Degeneration", section 3.1 (top-p), arXiv 1904.09751.

    >>> logits_filter(torch.tensor([[1.0, 3.0, 2.0]]), temperature=2.0, top_k=2).tolist()
    [[-inf, 1.5, 1.0]]
    >>> logits_filter(torch.tensor([[0.5, 0.41, 0.09]]).log(), top_p=0.9).exp().tolist()[0][2]
    0.0
    """
    _check(temperature, top_k, top_p, topk_ties, topp_boundary, temperature_zero)
    if temperature == 0:
        return _keep(logits, logits == logits.amax(-1, keepdim=True))
    z = logits / temperature
    if top_k is not None and top_k < z.shape[-1]:
        z = _keep(z, among_top_k(logits, top_k, topk_ties))
    if top_p is not None and top_p < 1:
        z = _keep(z, among_top_p(z, top_p, topp_boundary))
    return z


def among_top_k(z: Tensor, k: int, ties: str) -> Tensor:
    """Which entries are among the k largest of their row."""
    z = z.detach()
    order = torch.sort(z, dim=-1, descending=True, stable=True).indices[..., :k]
    if ties == "all":
        return z >= z.gather(-1, order[..., -1:])
    return torch.zeros(z.shape, dtype=torch.bool, device=z.device).scatter(-1, order, True)


def among_top_p(z: Tensor, p: float, boundary: str) -> Tensor:
    """Which entries come before the running sum of probabilities has reached (or exceeded) p."""
    z = z.detach()
    order = torch.sort(z, dim=-1, descending=True, stable=True).indices
    e = torch.exp(z - z.amax(-1, keepdim=True)).gather(-1, order)
    mass = torch.cumsum(e / e.sum(-1, keepdim=True), -1)[..., :-1]
    stays = mass < p if boundary == "reach" else mass <= p
    first = torch.ones((*z.shape[:-1], 1), dtype=torch.bool, device=z.device)
    return torch.zeros(z.shape, dtype=torch.bool, device=z.device).scatter(-1, order, torch.cat([first, stays], -1))


def _keep(z: Tensor, kept: Tensor) -> Tensor:
    return torch.where(kept, z, torch.full_like(z, -INFINITY))


def _check(temperature: float, top_k: int | None, top_p: float | None, topk_ties: str, topp_boundary: str,
           temperature_zero: str) -> None:
    lowest = "≥ 0" if temperature_zero == "greedy" else "> 0"
    if not (temperature > 0 or (temperature == 0 and temperature_zero == "greedy")) or temperature == INFINITY:
        raise ValueError(f"temperature={temperature} must be {lowest} and finite, got {temperature}; choose one above 0")
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k={top_k} must be at least 1, got {top_k}; pass None to keep all")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"top_p={top_p} must lie in 0 < top_p ≤ 1, got {top_p}; pass 1 or None to keep all")
    _one_of("topk_ties", topk_ties, ("exactly_k", "all"))
    _one_of("topp_boundary", topp_boundary, ("reach", "exceed"))
    _one_of("temperature_zero", temperature_zero, ("refused", "greedy"))


def _one_of(name: str, value: str, values: tuple[str, ...]) -> None:
    if value not in values:
        raise ValueError(f"{name}={value!r} must be one of {values}, got {value!r}; choose one of them")


def _by_reciprocal(
    logits: Tensor, *, temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None,
    topk_ties: str = "exactly_k", topp_boundary: str = "reach", temperature_zero: str = "refused",
) -> Tensor:
    """logits · (1/temperature), the reciprocal rounded to the logits' type."""
    options = {"topk_ties": topk_ties, "topp_boundary": topp_boundary, "temperature_zero": temperature_zero}
    kept = logits_filter(logits, temperature=temperature, top_k=top_k, top_p=top_p, **options)
    if temperature == 0:
        return kept
    factor = 1 / torch.full((), temperature, dtype=logits.dtype, device=logits.device)
    return _keep(logits * factor, ~torch.isneginf(kept))


def deciders(logits: Tensor, *, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """The numbers (N,V) by which implementations rank entries besides the logits: scaled logits, and probabilities."""
    z = logits / temperature
    return z, _softmax(z)


def excess(ordered: Tensor, *, temperature: float, top_p: float) -> Tensor:
    """By how much the running sum of probabilities, from the largest on, exceeds top_p. ordered: (N,V), largest first."""
    return torch.cumsum(_softmax(ordered / temperature), -1) - top_p


def excess_from_light_end(ordered: Tensor, *, temperature: float, top_p: float) -> Tensor:
    """The same, from what the entries after it leave: 1 − top_p less their sum."""
    p = _softmax(ordered / temperature)
    after = torch.cumsum(p.flip(-1), -1).flip(-1)[..., 1:]
    rest = torch.cat([after, torch.zeros_like(p[..., :1])], -1)
    return (1 - top_p) - rest


def _softmax(z: Tensor) -> Tensor:
    e = torch.exp(z - freely_chosen(z.amax(-1, keepdim=True)))
    return e / e.sum(-1, keepdim=True)


DECIDERS: tuple[Form, ...] = (Form("scaled logits and probabilities", deciders),)
EXCESS: tuple[Form, ...] = (Form("from the heavy end", excess), Form("from the light end", excess_from_light_end))
FORMS: tuple[Form, ...] = (Form("divided", logits_filter), Form("times the reciprocal", _by_reciprocal, usual=True))
