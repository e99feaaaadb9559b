"""Planted faults of the logits filter, and unusual ways that are right."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from assay.registry import benign, fault

LOW = float("-inf")
NOT_EXPRESSIBLE = {
    "BUG-186": "a filter value of the caller's choice, which the call does not have",
    "BUG-188": "a repetition penalty, which the call does not have",
}
Filter = Callable[[Tensor, float, int | None, float | None], Tensor]


def by_k(z: Tensor, k: int | None) -> Tensor:
    """Top-k, exactly k."""
    if k is None or k >= z.shape[-1]:
        return z
    order = torch.sort(z, dim=-1, descending=True, stable=True).indices[..., :k]
    return z.masked_fill(~torch.zeros_like(z, dtype=torch.bool).scatter(-1, order, True), LOW)


def by_p(z: Tensor, p: float | None, *, late: int = 0, boundary: Callable[[Tensor, float], Tensor] = torch.lt) -> Tensor:
    """Top-p: entries before whose mass is not yet p."""
    if p is None or p >= 1:
        return z
    ordered, order = torch.sort(z, dim=-1, descending=True, stable=True)
    mass = torch.softmax(ordered.double(), -1).cumsum(-1)
    before = torch.cat([torch.zeros_like(mass[..., :1]), mass[..., :-1]], -1)
    keep = boundary(before, p)
    keep[..., :1] = True
    if late:
        keep = torch.cat([torch.ones_like(keep[..., :late]), keep[..., :-late]], -1)
    return z.masked_fill(~torch.zeros_like(keep).scatter(-1, order, keep), LOW)


def refuse(temperature: float, top_k: int | None, top_p: float | None) -> None:
    """What the statements say is refused."""
    if not temperature > 0:
        raise ValueError(f"temperature={temperature} must be above 0, got {temperature}; raise it")
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k={top_k} must be at least 1, got {top_k}; raise it")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"top_p={top_p} must lie in 0 < p ≤ 1, got {top_p}; correct it")


def planted(mark: Callable[..., Any], summary: str, origin: str = "", *, refuses: bool = True,
            **options: Any) -> Callable[[Filter], Filter]:
    """Give a filter `(z, temperature, k, p)` the signature of the kind, under its own name, and register it."""
    def register(wrong: Filter) -> Filter:
        def logits_filter(logits: Tensor, *, temperature: float = 1.0, top_k: int | None = None,
                          top_p: float | None = None) -> Tensor:
            if refuses:
                refuse(temperature, top_k, top_p)
            return wrong(logits, temperature, top_k, top_p)

        logits_filter.__name__ = logits_filter.__qualname__ = wrong.__name__
        logits_filter.__module__, logits_filter.__doc__ = wrong.__module__, summary
        extra = {"origin": origin} if mark is fault else {}
        mark("logits_filter", summary=summary, **extra, **options)(logits_filter)
        return wrong

    return register


@planted(fault, "below a temperature of 1/50 the largest logit alone is kept")
def greedy_when_cold(z: Tensor, t: float, k: int | None, p: float | None) -> Tensor:
    return by_p(by_k(z / t, 1 if t < 0.02 else k), p)


@planted(fault, "a p above 0.99 is taken for no filter")
def nearly_one_keeps_everything(z: Tensor, t: float, k: int | None, p: float | None) -> Tensor:
    return by_p(by_k(z / t, k), None if p is not None and p > 0.99 else p)


@planted(fault, "dropped logits are 1e-10, above every negative logit", "BUG-179")
def dropped_are_small_positive(z: Tensor, t: float, k: int | None, p: float | None) -> Tensor:
    out = by_p(by_k(z / t, k), p)
    return out.masked_fill(torch.isneginf(out), 1e-10)


@planted(fault, "kept logits are cut to 1e4")
def cut_at_ten_thousand(z: Tensor, t: float, k: int | None, p: float | None) -> Tensor:
    return by_p(by_k(z / t, k), p).clamp(max=1e4)


@planted(fault, "dropped logits are −1e4: they keep a probability among very negative ones")
def dropped_are_finite(z: Tensor, t: float, k: int | None, p: float | None) -> Tensor:
    out = by_p(by_k(z / t, k), p)
    return out.masked_fill(torch.isneginf(out), -1e4)


@planted(fault, "dropped logits are 0")
def dropped_are_zero(z: Tensor, t: float, k: int | None, p: float | None) -> Tensor:
    out = by_p(by_k(z / t, k), p)
    return out.masked_fill(torch.isneginf(out), 0.0)


@planted(fault, "the token that crosses p is dropped", "BUG-180")
def crossing_token_dropped(z: Tensor, t: float, k: int | None, p: float | None) -> Tensor:
    z = by_k(z / t, k)
    if p is None or p >= 1:
        return z
    ordered, order = torch.sort(z, dim=-1, descending=True, stable=True)
    keep = torch.softmax(ordered.double(), -1).cumsum(-1) <= p
    keep[..., :1] = True
    return z.masked_fill(~torch.zeros_like(keep).scatter(-1, order, keep), LOW)


@planted(fault, "the same without the guard for the best token: a small p drops everything", "BUG-182")
def small_p_drops_everything(z: Tensor, t: float, k: int | None, p: float | None) -> Tensor:
    z = by_k(z / t, k)
    if p is None or p >= 1:
        return z
    ordered, order = torch.sort(z, -1)
    keep = torch.softmax(ordered, -1).cumsum(-1) > 1 - p
    return z.masked_fill(~torch.zeros_like(keep).scatter(-1, order, keep), LOW)


@planted(fault, "one token more than needed is kept")
def one_token_too_many(z: Tensor, t: float, k: int | None, p: float | None) -> Tensor:
    return by_p(by_k(z / t, k), p, late=1)


@planted(fault, "the keep mask is in sorted order and never scattered back")
def mask_not_scattered_back(z: Tensor, t: float, k: int | None, p: float | None) -> Tensor:
    z = by_k(z / t, k)
    kept = torch.isfinite(by_p(torch.sort(z, -1, descending=True).values, p))
    return z if p is None else z.masked_fill(~kept, LOW)


@planted(fault, "sorted in ascending order: the least likely tokens stay")
def least_likely_kept(z: Tensor, t: float, k: int | None, p: float | None) -> Tensor:
    z = by_k(z / t, k)
    if p is None or p >= 1:
        return z
    upside_down = by_p(torch.where(torch.isneginf(z), z, -z), p)
    return z.masked_fill(torch.isneginf(upside_down), LOW)


@planted(fault, "temperature applied after the filters", "BUG-184")
def temperature_last(z: Tensor, t: float, k: int | None, p: float | None) -> Tensor:
    return by_p(by_k(z, k), p) / t


@planted(fault, "multiplied by the temperature")
def temperature_multiplied(z: Tensor, t: float, k: int | None, p: float | None) -> Tensor:
    return by_p(by_k(z * t, k), p)


@planted(fault, "temperature ignored")
def temperature_ignored(z: Tensor, t: float, k: int | None, p: float | None) -> Tensor:
    return by_p(by_k(z, k), p)


@planted(fault, "the literal text of a note: the kept mass must exceed p where it must reach it")
def exceeds_where_reach_is_declared(z: Tensor, t: float, k: int | None, p: float | None) -> Tensor:
    return by_p(by_k(z / t, k), p, boundary=torch.le)


@planted(fault, "the largest logit is subtracted before the temperature: infinite ones become NaN")
def shifted_before_division(z: Tensor, t: float, k: int | None, p: float | None) -> Tensor:
    scaled = z / t
    top = scaled.amax(-1, keepdim=True) if scaled.shape[-1] else scaled
    return by_p(by_k(scaled - top + top, k), p)


@planted(fault, "order by magnitude: a large negative logit counts as likely")
def ordered_by_magnitude(z: Tensor, t: float, k: int | None, p: float | None) -> Tensor:
    kept = by_p(by_k(z.abs() / t, k), p)
    return (z / t).masked_fill(torch.isneginf(kept), LOW)


@planted(fault, "top-p before top-k")
def top_p_first(z: Tensor, t: float, k: int | None, p: float | None) -> Tensor:
    return by_k(by_p(z / t, p), k)


@planted(fault, "top-p on the probabilities before top-k, not renormalised")
def top_p_not_renormalised(z: Tensor, t: float, k: int | None, p: float | None) -> Tensor:
    z = z / t
    return torch.where(torch.isneginf(by_p(z, p)), torch.full_like(z, LOW), by_k(z, k))


@planted(fault, "top-k ignored when top-p is given")
def top_k_ignored_with_top_p(z: Tensor, t: float, k: int | None, p: float | None) -> Tensor:
    return by_p(by_k(z / t, None if p is not None else k), p)


@planted(fault, "top-k ignored")
def top_k_ignored(z: Tensor, t: float, k: int | None, p: float | None) -> Tensor:
    return by_p(z / t, p)


@planted(fault, "top-p ignored")
def top_p_ignored(z: Tensor, t: float, k: int | None, p: float | None) -> Tensor:
    return by_k(z / t, k)


@planted(fault, "k+1 tokens are kept")
def one_more_than_k(z: Tensor, t: float, k: int | None, p: float | None) -> Tensor:
    return by_p(by_k(z / t, None if k is None else k + 1), p)


@planted(fault, "k−1 tokens are kept")
def one_less_than_k(z: Tensor, t: float, k: int | None, p: float | None) -> Tensor:
    return by_p(by_k(z / t, None if k is None else max(1, k - 1)), p)


@planted(fault, "all that tie with the k-th are kept where exactly k is declared")
def ties_kept(z: Tensor, t: float, k: int | None, p: float | None) -> Tensor:
    z = z / t
    if k is not None and k < z.shape[-1]:
        z = z.masked_fill(z < torch.topk(z, k, -1).values[..., -1:], LOW)
    return by_p(z, p)


@planted(fault, "everything that ties with the k-th is dropped")
def ties_dropped(z: Tensor, t: float, k: int | None, p: float | None) -> Tensor:
    z = z / t
    if k is not None and k < z.shape[-1]:
        z = z.masked_fill(z <= torch.topk(z, k + 1, -1).values[..., -1:], LOW)
    return by_p(z, p)


@planted(fault, "k larger than V is an error")
def large_k_is_error(z: Tensor, t: float, k: int | None, p: float | None) -> Tensor:
    if k is not None:
        torch.topk(z, k, -1)
    return by_p(by_k(z / t, k), p)


@planted(fault, "the threshold of the first row serves for every row")
def threshold_of_first_row(z: Tensor, t: float, k: int | None, p: float | None) -> Tensor:
    z = z / t
    if k is not None and k < z.shape[-1] and z.shape[0]:
        z = z.masked_fill(z < torch.topk(z, k, -1).values[:1, -1:], LOW)
    return by_p(z, p)


@planted(fault, "log-probabilities come back in place of logits")
def log_probabilities(z: Tensor, t: float, k: int | None, p: float | None) -> Tensor:
    return torch.log_softmax(by_p(by_k(z / t, k), p), -1)


@planted(fault, "probabilities come back in place of logits")
def probabilities(z: Tensor, t: float, k: int | None, p: float | None) -> Tensor:
    return torch.softmax(by_p(by_k(z / t, k), p), -1)


@planted(fault, "kept logits are shifted by the row's maximum")
def kept_are_shifted(z: Tensor, t: float, k: int | None, p: float | None) -> Tensor:
    out = by_p(by_k(z / t, k), p)
    return out - out.amax(-1, keepdim=True)


@planted(fault, "at p = 1 the running sum decides: tokens past rounding are dropped")
def whole_mass_by_running_sum(z: Tensor, t: float, k: int | None, p: float | None) -> Tensor:
    return by_p(by_k(z / t, k), 1 - 2**-20 if p == 1 else p)


@planted(fault, "the last token of an odd vocabulary is always dropped")
def last_of_odd_vocabulary_dropped(z: Tensor, t: float, k: int | None, p: float | None) -> Tensor:
    out = by_p(by_k(z / t, k), p)
    n = z.shape[-1]
    last = torch.arange(n, device=z.device) == n - 1
    return out if n % 2 == 0 or n == 1 else out.masked_fill(last, LOW)


@planted(fault, "NaN logits turn every entry −∞ but the first", "BUG-190")
def overflow_falls_back_to_first(z: Tensor, t: float, k: int | None, p: float | None) -> Tensor:
    out = by_p(by_k(z / t, k), p)
    bad = ~torch.isfinite(torch.softmax(torch.exp(z / t), -1)).all(-1, keepdim=True)
    first = torch.arange(z.shape[-1], device=z.device) == 0
    return torch.where(bad & ~first, torch.full_like(out, LOW), out)


@planted(fault, "temperature 0, top_k 0 and top_p above 1 are taken as they come", refuses=False)
def nothing_refused(z: Tensor, t: float, k: int | None, p: float | None) -> Tensor:
    if k is not None and k < 1:
        return torch.full_like(z, LOW)
    return by_p(by_k(z / max(t, 1e-4), k), p)


@planted(fault, "temperature 0 changes nothing where greedy is declared", refuses=False, conventions={"temperature_zero": "greedy"})
def zero_keeps_everything(z: Tensor, t: float, k: int | None, p: float | None) -> Tensor:
    if t < 0:
        refuse(t, k, p)
    return by_p(by_k(z if t == 0 else z / t, k), p)


@planted(benign, "the largest alone at temperature 0, as declared", refuses=False, conventions={"temperature_zero": "greedy"})
def greedy_declared(z: Tensor, t: float, k: int | None, p: float | None) -> Tensor:
    refuse(t if t else 1.0, k, p)
    return by_k(z, 1) if t == 0 else by_p(by_k(z / t, k), p)


_SEEN: dict[tuple[object, ...], Tensor] = {}


@planted(fault, "the kept set is remembered by shape and options")
def kept_set_remembered(z: Tensor, t: float, k: int | None, p: float | None) -> Tensor:
    kept = _SEEN.setdefault((z.shape, t, k, p), torch.isneginf(by_p(by_k(z / t, k), p)))
    return (z / t).masked_fill(kept, LOW)


@planted(benign, "everything decided on one sorted copy")
def one_sort(z: Tensor, t: float, k: int | None, p: float | None) -> Tensor:
    z = z / t
    ordered, order = torch.sort(z, dim=-1, descending=True, stable=True)
    rank = torch.arange(z.shape[-1], device=z.device)
    keep = (rank < (z.shape[-1] if k is None else k)).expand(z.shape)
    if p is not None and p < 1:
        mass = torch.softmax(ordered.masked_fill(~keep, LOW).double(), -1).cumsum(-1)
        keep = keep & (torch.cat([torch.zeros_like(mass[..., :1]), mass[..., :-1]], -1) < p)
    keep = keep | (rank == 0)
    return z.masked_fill(~torch.zeros_like(keep).scatter(-1, order, keep), LOW)


@planted(benign, "top-p from the light end: what carries at most 1 − p is dropped", conventions={"topp_boundary": "reach"})
def from_the_light_end(z: Tensor, t: float, k: int | None, p: float | None) -> Tensor:
    z = by_k(z / t, k)
    if p is None or p >= 1:
        return z
    ordered, order = (x.flip(-1) for x in torch.sort(z, dim=-1, descending=True, stable=True))
    drop = torch.softmax(ordered.double(), -1).cumsum(-1) <= 1 - p
    drop[..., -1:] = False
    return z.masked_fill(torch.zeros_like(drop).scatter(-1, order, drop), LOW)


@planted(benign, "thresholds from torch.topk, all ties kept, as declared", conventions={"topk_ties": "all"})
def ties_declared(z: Tensor, t: float, k: int | None, p: float | None) -> Tensor:
    return ties_kept(z, t, k, p)


@planted(benign, "row by row")
def row_by_row(z: Tensor, t: float, k: int | None, p: float | None) -> Tensor:
    rows = [by_p(by_k(row[None] / t, k), p) for row in z]
    return torch.cat(rows) if rows else z.clone()
