"""Planted faults of blockwise attention, and unusual ways that are right."""
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from assay.faults.attention_parts import heads, tampered
from assay.registry import benign, fault

NOT_EXPRESSIBLE = {
    "BUG-084": "a softcap, which the call does not have: see attention",
    "BUG-091": "a compiler; its effect, wrong ∂k and ∂v under a mask, is planted for attention",
    "BUG-101": "dropout, which the call does not have",
}
INFINITY = float("inf")
Result = tuple[Tensor, Tensor]
Part = tuple[Tensor, Tensor, Tensor]  # output not yet divided, maximum, sum


@dataclass(frozen=True)
class Call:
    """One call; `absorb`, `finish` and `visible` are the parts that faults change."""

    q: Tensor
    k: Tensor
    v: Tensor
    block_q: int
    block_k: int
    causal: bool
    mask: Tensor | None
    scale: float

    def visible(self, i: Tensor, j: Tensor) -> Tensor:
        """Which keys j the queries i see."""
        keep = torch.ones(len(i), len(j), dtype=torch.bool, device=i.device)
        if self.causal:
            keep = j[None, :] <= i[:, None] + self.k.shape[2] - self.q.shape[2]
        full = self.q.shape[:3] + self.k.shape[2:3]
        return keep if self.mask is None else keep & self.mask.bool().expand(full)[:, :, i][..., j]

    def scores(self, i: Tensor, j: Tensor) -> Tensor:
        """Scores of a tile, −∞ where nothing is seen."""
        s = (self.q[:, :, i] @ heads(self.k[:, :, j], self.q).mT) * self.scale
        return s.masked_fill(~self.visible(i, j), -INFINITY)


Absorb = Callable[[Part, Tensor, Tensor], Part]
Way = Callable[[Call], Result]


def absorb(part: Part, s: Tensor, values: Tensor) -> Part:
    """The right online update."""
    out, top, total = part
    new = torch.maximum(top, s.detach().amax(-1))
    shift = new.masked_fill(torch.isneginf(new), 0.0)
    old, p = torch.exp(top - shift), torch.exp(s - shift[..., None])
    return out * old[..., None] + p @ values, new, total * old + p.sum(-1)


def finish(part: Part) -> Result:
    """The right end."""
    out, top, total = part
    seen = ~torch.isneginf(top)
    total = torch.where(seen, total, torch.ones_like(total))
    return out / total[..., None], torch.where(seen, top + torch.log(total), torch.full_like(top, -INFINITY))


def tiled(c: Call, absorb: Absorb = absorb, finish: Callable[[Part], Result] = finish, *, keys: int | None = None,
          backward: bool = False) -> Result:
    """The tiled algorithm over replaceable parts; `keys`: how many are read; `backward`: key tiles in reverse order."""
    length = c.k.shape[2] if keys is None else keys
    results = []
    for i in torch.arange(c.q.shape[2], device=c.q.device).split(c.block_q):
        top = torch.full((*c.q.shape[:2], len(i)), -INFINITY, dtype=c.q.dtype, device=c.q.device)
        part = (torch.zeros(*top.shape, c.v.shape[-1]).to(top), top, torch.zeros_like(top))
        tiles = torch.arange(length, device=c.q.device).split(c.block_k) if length else ()
        for j in reversed(tiles) if backward else tiles:
            part = absorb(part, c.scores(i, j), heads(c.v[:, :, j], c.q))
        results.append(finish(part))
    return torch.cat([r[0] for r in results], 2), torch.cat([r[1] for r in results], 2)


def planted(mark: Callable[..., Any], summary: str, origin: str = "", **options: Any) -> Callable[[Way], Way]:
    """Give a way to attend the signature of the kind, under its own name, and register it."""
    def register(wrong: Way) -> Way:
        def blockwise_attention(q: Tensor, k: Tensor, v: Tensor, *, block_q: int, block_k: int, causal: bool = False,
                                mask: Tensor | None = None, scale: float | None = None) -> Result:
            return wrong(Call(q, k, v, block_q, block_k, causal, mask, q.shape[-1] ** -0.5 if scale is None else scale))

        blockwise_attention.__name__ = blockwise_attention.__qualname__ = wrong.__name__
        blockwise_attention.__module__, blockwise_attention.__doc__ = wrong.__module__, summary
        extra = {"origin": origin} if mark is fault else {}
        mark("blockwise_attention", summary=summary, **extra, **options)(blockwise_attention)
        return wrong

    return register


@planted(fault, "the output is not rescaled when the maximum moves")
def output_not_rescaled(c: Call) -> Result:
    def wrong(part: Part, s: Tensor, values: Tensor) -> Part:
        _, top, total = absorb(part, s, values)
        shift = top.masked_fill(torch.isneginf(top), 0.0)
        return part[0] + torch.exp(s - shift[..., None]) @ values, top, total

    return tiled(c, wrong)


@planted(fault, "the sum is not rescaled when the maximum moves")
def sum_not_rescaled(c: Call) -> Result:
    def wrong(part: Part, s: Tensor, values: Tensor) -> Part:
        out, top, _ = absorb(part, s, values)
        shift = top.masked_fill(torch.isneginf(top), 0.0)
        return out, top, part[2] + torch.exp(s - shift[..., None]).sum(-1)

    return tiled(c, wrong)


@planted(fault, "tiles are averaged with equal weights")
def tiles_averaged(c: Call) -> Result:
    out, lse = tiled(c)
    n = c.k.shape[2]
    if n <= c.block_k:
        return out, lse
    i = torch.arange(c.q.shape[2], device=c.q.device)
    parts = [torch.softmax(c.scores(i, j), -1).nan_to_num(0) @ heads(c.v[:, :, j], c.q)
             for j in torch.arange(n, device=c.q.device).split(c.block_k)]
    return torch.stack(parts).mean(0), lse


@planted(fault, "the running maximum starts at 0: rows of very negative scores underflow")
def maximum_starts_at_zero(c: Call) -> Result:
    def wrong(part: Part, s: Tensor, values: Tensor) -> Part:
        return absorb((part[0], part[1].clamp(min=0), part[2]), s, values)

    def end(part: Part) -> Result:
        return finish((part[0], part[1].masked_fill(part[2] == 0, -INFINITY), part[2]))

    return tiled(c, wrong, end)


@planted(fault, "no maximum subtracted: large scores overflow")
def no_shift(c: Call) -> Result:
    def wrong(part: Part, s: Tensor, values: Tensor) -> Part:
        p = torch.exp(s)
        return part[0] + p @ values, torch.zeros_like(part[1]), part[2] + p.sum(-1)

    return tiled(c, wrong, lambda part: finish((part[0], part[1].masked_fill(part[2] == 0, -INFINITY), part[2])))


@planted(fault, "the last tile's tail beyond Tk takes part with score 0", "BUG-083")
def tail_unmasked(c: Call) -> Result:
    out, lse = tiled(c)
    ghosts = -c.k.shape[2] % c.block_k
    if not ghosts:
        return out, lse
    whole = torch.logaddexp(lse, torch.full_like(lse, math.log(ghosts)))
    return out * torch.exp(lse - whole)[..., None], whole


@planted(fault, "keys beyond the last full tile are dropped", "BUG-090")
def last_tile_dropped(c: Call) -> Result:
    n = c.k.shape[2]
    return tiled(c, keys=n - n % c.block_k if n >= c.block_k else n)


@planted(fault, "the first tile alone is read")
def first_tile_alone(c: Call) -> Result:
    return tiled(c, keys=min(c.k.shape[2], c.block_k))


@planted(fault, "lse in base 2", "BUG-080")
def lse_in_base_two(c: Call) -> Result:
    out, lse = tiled(c)
    return out, lse / math.log(2)


@planted(fault, "lse without the maximum")
def lse_without_maximum(c: Call) -> Result:
    out, lse = tiled(c)
    i, j = (torch.arange(n, device=c.q.device) for n in (c.q.shape[2], c.k.shape[2]))
    top = c.scores(i, j).amax(-1) if len(j) else torch.zeros_like(lse)
    return out, torch.where(torch.isneginf(lse), lse, lse - top.masked_fill(torch.isneginf(top), 0.0))


@planted(fault, "the sum in place of its logarithm")
def sum_in_place_of_lse(c: Call) -> Result:
    out, lse = tiled(c)
    return out, torch.exp(lse)


@planted(fault, "lse is the maximum alone")
def lse_is_maximum(c: Call) -> Result:
    return tiled(c, finish=lambda part: (finish(part)[0], part[1]))


@planted(fault, "a row without keys has lse +∞", "BUG-082")
def empty_lse_positive(c: Call) -> Result:
    out, lse = tiled(c)
    return out, lse.masked_fill(torch.isneginf(lse), INFINITY)


@planted(fault, "a row without keys has lse 0")
def empty_lse_zero(c: Call) -> Result:
    out, lse = tiled(c)
    return out, lse.masked_fill(torch.isneginf(lse), 0.0)


@planted(fault, "a row without keys is NaN: −∞ − −∞", "BUG-081")
def empty_row_is_nan(c: Call) -> Result:
    out, lse = tiled(c)
    empty = torch.isneginf(lse)
    return out.masked_fill(empty[..., None], float("nan")), lse.masked_fill(empty, float("nan"))


@planted(fault, "a tile without keys for a row turns the row NaN", "BUG-081")
def empty_tile_is_nan(c: Call) -> Result:
    def wrong(part: Part, s: Tensor, values: Tensor) -> Part:
        out, top, total = part
        new = torch.maximum(top, s.detach().amax(-1))
        old, p = torch.exp(top - new), torch.exp(s - new[..., None])
        return out * old[..., None] + p @ values, new, total * old + p.sum(-1)

    return tiled(c, wrong)


@planted(fault, "the diagonal tile is not masked: causal by whole tiles")
def causal_by_tiles(c: Call) -> Result:
    if not c.causal:
        return tiled(c)
    i = torch.arange(c.q.shape[2], device=c.q.device)[:, None] + c.k.shape[2] - c.q.shape[2]
    j = torch.arange(c.k.shape[2], device=c.q.device)[None, :]
    keep = j // c.block_k <= i // c.block_k
    return tiled(replace(c, causal=False, mask=keep if c.mask is None else c.mask.bool() & keep))


def _masked(c: Call, keep: Tensor) -> Result:
    return tiled(replace(c, causal=False, mask=keep if c.mask is None else c.mask.bool() & keep))


@planted(fault, "causal ignored")
def causal_ignored(c: Call) -> Result:
    return tiled(replace(c, causal=False))


@planted(fault, "causal aligned at the top left without saying so", "BUG-024")
def causal_top_left(c: Call) -> Result:
    keep = torch.ones(c.q.shape[2], c.k.shape[2], dtype=torch.bool, device=c.q.device).tril()
    return _masked(c, keep) if c.causal else tiled(c)


@planted(fault, "causal without the diagonal", "BUG-020")
def causal_strict(c: Call) -> Result:
    keep = torch.ones(c.q.shape[2], c.k.shape[2], dtype=torch.bool, device=c.q.device)
    return _masked(c, keep.tril(c.k.shape[2] - c.q.shape[2] - 1)) if c.causal else tiled(c)


@planted(fault, "mask ignored")
def mask_ignored(c: Call) -> Result:
    return tiled(replace(c, mask=None))


@planted(fault, "mask inverted", "BUG-017")
def mask_inverted(c: Call) -> Result:
    return tiled(c if c.mask is None else replace(c, mask=~c.mask.bool()))


@planted(fault, "causal ignored when a mask is given", "BUG-029")
def causal_ignored_with_mask(c: Call) -> Result:
    return tiled(c if c.mask is None else replace(c, causal=False))


@planted(fault, "scale ignored", "BUG-013")
def scale_ignored(c: Call) -> Result:
    return tiled(replace(c, scale=c.q.shape[-1] ** -0.5))


@planted(fault, "scores divided by D", "BUG-009")
def scale_one_over_d(c: Call) -> Result:
    return tiled(replace(c, scale=c.scale * c.q.shape[-1] ** -0.5))


@planted(fault, "key/value heads tiled in place of repeated in blocks")
def grouped_heads_tiled(c: Call) -> Result:
    index = torch.arange(c.q.shape[1], device=c.q.device) % c.k.shape[1]
    return tiled(replace(c, k=c.k[:, index], v=c.v[:, index]))


@planted(fault, "the last query tile, when not full, is never computed")
def last_query_tile_left_out(c: Call) -> Result:
    out, lse = tiled(c)
    n = c.q.shape[2]
    if n % c.block_q == 0 or n < c.block_q:
        return out, lse
    done = torch.arange(n, device=c.q.device) < n - n % c.block_q
    return out * done[:, None], torch.where(done, lse, torch.zeros_like(lse))


@planted(fault, "the output is divided at every tile and again at the end")
def divided_twice(c: Call) -> Result:
    out, lse = tiled(c)
    return (out if c.k.shape[2] <= c.block_k else out * 0.5), lse


@planted(fault, "all scores are formed at once: T² memory")
def whole_matrix(c: Call) -> Result:
    whole = replace(c, block_q=max(1, c.q.shape[2]), block_k=max(1, c.k.shape[2]))
    return tiled(whole)


@planted(fault, "every tile's scores are kept and joined before use: T² memory")
def tiles_joined(c: Call) -> Result:
    i = torch.arange(c.q.shape[2], device=c.q.device)
    tiles = [c.scores(i, j) for j in torch.arange(c.k.shape[2], device=c.q.device).split(c.block_k)] if c.k.shape[2] else []
    if not tiles:
        return tiled(c)
    joined = torch.cat(tiles, -1)
    zero = (joined.masked_fill(torch.isneginf(joined), 0.0) * 0).sum(-1)
    out, lse = tiled(c)
    return out + zero[..., None], lse + zero


@planted(fault, "all queries are multiplied with the keys for every tile of queries")
def all_queries_for_every_tile(c: Call) -> Result:
    results = []
    for i in torch.arange(c.q.shape[2], device=c.q.device).split(c.block_q):
        out, lse = tiled(replace(c, block_q=max(1, c.q.shape[2])))
        results.append((out[:, :, i], lse[:, :, i]))
    return torch.cat([r[0] for r in results], 2), torch.cat([r[1] for r in results], 2)


@planted(fault, "tiles of one query: keys are read once for each of them")
def keys_read_for_every_query(c: Call) -> Result:
    return tiled(replace(c, block_q=1))


class _WholeBackward(torch.autograd.Function):
    """The tiled forward; backward through all scores at once."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, c: Call) -> Result:
        ctx.save_for_backward(q, k, v)
        ctx.call = c
        return tiled(replace(c, q=q, k=k, v=v))

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        inputs = [x.detach().requires_grad_() for x in ctx.saved_tensors]
        with torch.enable_grad():
            q, k, v = inputs
            out = whole_matrix(replace(ctx.call, q=q, k=k, v=v))
        return (*torch.autograd.grad(out, inputs, upstream, allow_unused=True), None)


@planted(fault, "backward forms all scores at once: T² memory")
def backward_of_the_whole_matrix(c: Call) -> Result:
    result: Result = _WholeBackward.apply(c.q, c.k, c.v, c)  # type: ignore[no-untyped-call]
    return result


@planted(fault, "backward ignores causal", "BUG-087")
def gradient_not_causal(c: Call) -> Result:
    out, lse = tiled(c)
    free, free_lse = tiled(replace(c, causal=False))
    finite = torch.isfinite(lse) & torch.isfinite(free_lse)
    return (out.detach() + (free - free.detach()),
            torch.where(finite, lse.detach() + (free_lse - free_lse.detach()), lse.detach()))


@planted(fault, "∂k misses the scale")
def gradient_of_keys_unscaled(c: Call) -> Result:
    return tiled(replace(c, k=tampered(c.k, lambda g: g / c.scale)))


@planted(fault, "∂v of the last tile is dropped")
def gradient_of_last_tile_dropped(c: Call) -> Result:
    n = c.k.shape[2]
    kept = (torch.arange(n, device=c.q.device) < (n - 1) // c.block_k * c.block_k)[:, None]
    return tiled(c if n <= c.block_k else replace(c, v=tampered(c.v, lambda g: g * kept)))


@planted(fault, "the gradient that comes through lse is ignored")
def gradient_of_lse_ignored(c: Call) -> Result:
    out, lse = tiled(c)
    return out, lse.detach()


@planted(fault, "∂q is that of the last key tile alone: overwritten, not accumulated")
def gradient_of_queries_overwritten(c: Call) -> Result:
    return tiled(replace(c, q=tampered(c.q, lambda g: g if c.k.shape[2] <= c.block_k else g * 0.5)))


@planted(fault, "each sample reads the values of its neighbour")
def values_of_next_sample(c: Call) -> Result:
    return tiled(replace(c, v=c.v.roll(1, 0)))


@planted(benign, "key tiles from the last to the first")
def tiles_backward(c: Call) -> Result:
    return tiled(c, backward=True)


@planted(benign, "powers of two inside")
def powers_of_two(c: Call) -> Result:
    turn = math.log2(math.e)

    def base_two(part: Part, s: Tensor, values: Tensor) -> Part:
        out, top, total = part
        s = s * turn
        new = torch.maximum(top, s.detach().amax(-1))
        shift = new.masked_fill(torch.isneginf(new), 0.0)
        old, p = torch.exp2(top - shift), torch.exp2(s - shift[..., None])
        return out * old[..., None] + p @ values, new, total * old + p.sum(-1)

    def end(part: Part) -> Result:
        return finish((part[0], part[1] / turn, part[2]))

    return tiled(c, base_two, end)


@planted(benign, "queries and keys each times the root of the scale, as torch's own attention is written out")
def scaled_on_both_sides(c: Call) -> Result:
    root = math.sqrt(abs(c.scale))
    return tiled(replace(c, q=c.q * math.copysign(root, c.scale), k=c.k * root, scale=1.0))


@planted(benign, "each tile on its own, partial results merged by their maxima at the end")
def merged_partials(c: Call) -> Result:
    tiles = torch.arange(c.k.shape[2], device=c.q.device).split(c.block_k) if c.k.shape[2] else ()
    if not len(tiles):
        return tiled(c)
    results = [finish(_merged([_partial(c, i, j) for j in tiles]))
               for i in torch.arange(c.q.shape[2], device=c.q.device).split(c.block_q)]
    return torch.cat([r[0] for r in results], 2), torch.cat([r[1] for r in results], 2)


def _partial(c: Call, i: Tensor, j: Tensor) -> Part:
    """One tile on its own."""
    s = c.scores(i, j)
    top = s.detach().amax(-1)
    top = top.masked_fill(torch.isneginf(top), 0.0)
    e = torch.exp(s - top[..., None])
    return e @ heads(c.v[:, :, j], c.q), top, e.sum(-1)


def _merged(parts: list[Part]) -> Part:
    """Parts over different keys as one."""
    peak = torch.stack([top.masked_fill(total == 0, -INFINITY) for _, top, total in parts]).amax(0)
    shift = peak.masked_fill(torch.isneginf(peak), 0.0)
    weights = [torch.where(total == 0, torch.zeros_like(shift), torch.exp(top - shift)) for _, top, total in parts]
    outs = [w[..., None] * out for w, (out, _, _) in zip(weights, parts, strict=True)]
    totals = [w * total for w, (_, _, total) in zip(weights, parts, strict=True)]
    return torch.stack(outs).sum(0), peak, torch.stack(totals).sum(0)
