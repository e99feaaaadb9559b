"""Planted faults of the load-balancing loss, and unusual ways that are right."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from assay.faults.planting import bent, planter
from assay.registry import benign, fault


@dataclass(frozen=True)
class Call:
    """One call."""

    logits: Tensor
    indices: Tensor
    mask: Tensor | None

    @property
    def keep(self) -> Tensor:
        """1 for tokens that count (N,1)."""
        full = torch.ones(len(self.logits), dtype=torch.bool) if self.mask is None else self.mask
        return full[:, None].to(self.logits.dtype)

    @property
    def experts(self) -> int:
        return self.logits.shape[-1]

    @property
    def chosen(self) -> Tensor:
        """1 where a token goes (N,E)."""
        return torch.zeros_like(self.logits.detach()).scatter(-1, self.indices, 1.0)


Way = Callable[[Call], Tensor]


def balance(c: Call, *, p: Tensor | None = None, chosen: Tensor | None = None, keep_p: Tensor | None = None,
            keep_f: Tensor | None = None) -> Tensor:
    """The right loss, with parts replaced."""
    p, chosen = torch.softmax(c.logits, -1) if p is None else p, c.chosen if chosen is None else chosen
    keep_p, keep_f = c.keep if keep_p is None else keep_p, c.keep if keep_f is None else keep_f
    shares, means = (chosen * keep_f).sum(0) / keep_f.sum(), (p * keep_p).sum(0) / keep_p.sum()
    return (shares * means).sum() * c.experts


def signed(way: Way) -> Callable[..., Tensor]:
    """A way with the signature of the kind."""
    def load_balancing_loss(logits: Tensor, indices: Tensor, *, mask: Tensor | None = None) -> Tensor:
        return way(Call(logits, indices, mask))

    return load_balancing_loss


planted = planter("load_balancing_loss", signed)


@planted(fault, "probabilities are summed over the tokens, not averaged")
def sum_over_tokens(c: Call) -> Tensor:
    return balance(c) * c.keep.sum()


@planted(fault, "softmax over the tokens")
def softmax_over_tokens(c: Call) -> Tensor:
    return balance(c, p=torch.softmax(c.logits, 0))


@planted(fault, "probabilities renormalised over the chosen experts")
def probabilities_of_the_chosen(c: Call) -> Tensor:
    p = torch.softmax(c.logits, -1) * c.chosen
    return balance(c, p=p / p.sum(-1, keepdim=True))


@planted(fault, "shares are divided by the number of choices: they sum to 1")
def divided_by_top_k(c: Call) -> Tensor:
    return balance(c) / c.indices.shape[1]


@planted(fault, "not multiplied by the number of experts")
def experts_left_out(c: Call) -> Tensor:
    return balance(c) / c.experts


@planted(fault, "multiplied by the number of experts twice")
def experts_squared(c: Call) -> Tensor:
    return balance(c) * c.experts


@planted(fault, "only the first choice of a token counts")
def first_choice_alone_counted(c: Call) -> Tensor:
    return balance(replace(c, indices=c.indices[:, :1]))


@planted(fault, "the mask is ignored")
def mask_ignored(c: Call) -> Tensor:
    return balance(replace(c, mask=None))


@planted(fault, "the mask counts the tokens that it hides")
def mask_inverted(c: Call) -> Tensor:
    return balance(c if c.mask is None or bool(c.mask.all()) else replace(c, mask=~c.mask))


@planted(fault, "padding counts among the choices")
def mask_ignored_in_the_counts(c: Call) -> Tensor:
    return balance(c, keep_f=torch.ones_like(c.keep))


@planted(fault, "padding counts among the probabilities")
def mask_ignored_in_the_probabilities(c: Call) -> Tensor:
    return balance(c, keep_p=torch.ones_like(c.keep))


@planted(fault, "sums over the counted tokens are divided by all")
def divided_by_all_tokens(c: Call) -> Tensor:
    return balance(c) * (c.keep.sum() / len(c.logits))


@planted(fault, "mean probabilities in place of the shares as well")
def probabilities_twice(c: Call) -> Tensor:
    return balance(c, chosen=torch.softmax(c.logits, -1).detach())


@planted(fault, "shares in place of the mean probabilities as well")
def counts_twice(c: Call) -> Tensor:
    return balance(c, p=c.chosen / c.indices.shape[1] + 0 * torch.softmax(c.logits, -1))


@planted(fault, "logits in place of probabilities")
def raw_logits(c: Call) -> Tensor:
    return balance(c, p=c.logits)


@planted(fault, "no maximum is subtracted in the softmax")
def no_shift(c: Call) -> Tensor:
    e = torch.exp(c.logits)
    return balance(c, p=e / e.sum(-1, keepdim=True))


@planted(fault, "the last token is left out where there are several")
def last_token_left_out(c: Call) -> Tensor:
    last = torch.arange(len(c.logits)) < max(1, len(c.logits) - 1)
    keep = last if c.mask is None else c.mask & last
    return balance(replace(c, mask=keep if bool(keep.any()) else c.mask))


@planted(fault, "the last expert is left out where there are several")
def last_expert_left_out(c: Call) -> Tensor:
    first = (torch.arange(c.experts) < max(1, c.experts - 1)).to(c.logits.dtype)
    return balance(c, chosen=c.chosen * first)


@planted(fault, "negated: it rewards imbalance")
def negated(c: Call) -> Tensor:
    return -balance(c)


@planted(fault, "zero")
def zeros(c: Call) -> Tensor:
    return balance(c) * 0


@planted(fault, "the probabilities are detached: nothing is learned")
def gradient_detached(c: Call) -> Tensor:
    return balance(c).detach() + 0 * c.logits.clamp(-1, 1).sum()


@planted(fault, "only the first token gets a gradient")
def gradient_of_one_token(c: Call) -> Tensor:
    first = (torch.arange(len(c.logits)) == 0)[:, None]
    return balance(replace(c, logits=torch.where(first, c.logits, c.logits.detach())))


@planted(fault, "the softmax's gradient without the row sum")
def gradient_without_row_sum(c: Call) -> Tensor:
    p = torch.softmax(c.logits.detach(), -1)
    through = p * (1 + c.logits - c.logits.detach())
    return balance(c, p=through)


@planted(fault, "the gradient is not divided by the tokens")
def gradient_not_averaged(c: Call) -> Tensor:
    return balance(replace(c, logits=bent(c.logits, lambda g: g * max(2, int(c.keep.sum())))))


@planted(fault, "a straight-through gradient reaches the logits by the counts")
def gradient_through_counts(c: Call) -> Tensor:
    return balance(c, chosen=c.chosen + (c.logits - c.logits.detach()))


@planted(fault, "tokens that are not counted get a gradient")
def gradient_reaches_padding(c: Call) -> Tensor:
    whole = balance(replace(c, mask=None))
    return balance(c).detach() + (whole - whole.detach()) if c.mask is not None else balance(c)


@planted(benign, "expert by expert")
def expert_by_expert(c: Call) -> Tensor:
    p, count = torch.log_softmax(c.logits, -1).exp(), c.keep.sum()
    products = []
    for e in range(c.experts):
        share = ((c.indices == e).any(-1, keepdim=True).to(p.dtype) * c.keep).sum() / count
        products.append(share * ((p[:, e:e + 1] * c.keep).sum() / count))
    return torch.stack(products).sum() * c.experts


@planted(benign, "in float32, counts by bincount, divided last", arithmetic={"internal": "float32"})
def by_bincount(c: Call) -> Tensor:
    z = c.logits.to(torch.promote_types(c.logits.dtype, torch.float32))
    keep = c.keep[:, 0].bool()
    counts = torch.bincount(c.indices[keep].flatten(), minlength=c.experts).to(z.dtype)
    return ((torch.softmax(z, -1)[keep].sum(0) * counts).sum() * c.experts / int(keep.sum()) ** 2).to(c.logits.dtype)
