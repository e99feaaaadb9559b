"""Planted faults of masking for masked language modelling, and unusual ways that are right."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from assay.registry import benign, fault

NOT_EXPRESSIBLE = {"BUG-201": "the loss over no label lies in cross_entropy"}
IGNORED = -100
Masked = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Call:
    """One call."""

    ids: Tensor
    special: Tensor
    mask_id: int
    vocab_size: int
    p: float
    generator: torch.Generator

    def uniform(self) -> Tensor:
        """Numbers in 0 … 1, one a token."""
        return torch.rand(self.ids.shape, generator=self.generator, dtype=torch.float64).to(self.ids.device)

    def choice(self, p: float | None = None) -> Tensor:
        """Ordinary tokens, each with probability p."""
        return ~self.special.bool() & (self.uniform() < (self.p if p is None else p))


Way = Callable[[Call], Masked]


def hidden(c: Call, chosen: Tensor) -> Masked:
    """Chosen ids hidden, their labels kept."""
    return torch.where(chosen, c.mask_id, c.ids), torch.where(chosen, c.ids, IGNORED)


def planted(mark: Callable[..., Any], summary: str, origin: str = "", **options: Any) -> Callable[[Way], Way]:
    """Give a way of masking the signature of the kind, under its own name, and register it."""
    def register(wrong: Way) -> Way:
        def mlm_mask(ids: Tensor, special: Tensor, *, mask_id: int, vocab_size: int, p: float = 0.15, seed: int) -> Masked:
            return wrong(Call(ids, special, mask_id, vocab_size, p, torch.Generator().manual_seed(seed)))

        mlm_mask.__name__ = mlm_mask.__qualname__ = wrong.__name__
        mlm_mask.__module__, mlm_mask.__doc__ = wrong.__module__, summary
        mark("mlm_mask", summary=summary, **({"origin": origin} if mark is fault else {}), **options)(mlm_mask)
        return wrong

    return register


@planted(fault, "padding and special tokens are chosen too", "BUG-206")
def special_chosen(c: Call) -> Masked:
    return hidden(c, c.uniform() < c.p)


@planted(fault, "the special flags are read the wrong way round", "BUG-203")
def special_inverted(c: Call) -> Masked:
    return hidden(c, c.special.bool() & (c.uniform() < c.p))


@planted(fault, "the last special token of a row is not protected", "BUG-203")
def last_special_unprotected(c: Call) -> Masked:
    last = torch.arange(c.ids.shape[-1], device=c.ids.device) == c.ids.shape[-1] - 1
    return hidden(c, (~c.special.bool() | last) & (c.uniform() < c.p))


@planted(fault, "chosen at 15 % whatever p says")
def rate_fixed(c: Call) -> Masked:
    return hidden(c, c.choice(0.15))


@planted(fault, "chosen at 0.9·p")
def rate_too_low(c: Call) -> Masked:
    return hidden(c, c.choice(0.9 * c.p))


@planted(fault, "everything is chosen")
def everything_chosen(c: Call) -> Masked:
    return hidden(c, ~c.special.bool())


@planted(fault, "nothing is chosen")
def nothing_chosen(c: Call) -> Masked:
    return hidden(c, torch.zeros_like(c.special.bool()))


@planted(fault, "the last position is never chosen")
def last_position_never_chosen(c: Call) -> Masked:
    last = torch.arange(c.ids.shape[-1], device=c.ids.device) == c.ids.shape[-1] - 1
    return hidden(c, c.choice() & ~last)


@planted(fault, "early positions are favoured")
def early_positions_favoured(c: Call) -> Masked:
    n = max(1, c.ids.shape[-1] - 1)
    slope = 1.5 - torch.arange(c.ids.shape[-1], device=c.ids.device) / n
    return hidden(c, ~c.special.bool() & (c.uniform() < c.p * slope))


@planted(fault, "all rows share one pattern")
def rows_share_pattern(c: Call) -> Masked:
    row = c.uniform().reshape(-1, c.ids.shape[-1])[:1] if c.ids.numel() else c.uniform()
    return hidden(c, ~c.special.bool() & (row.expand(c.ids.shape) < c.p))


@planted(fault, "chosen in runs of two")
def chosen_in_runs(c: Call) -> Masked:
    u = c.uniform()
    return hidden(c, ~c.special.bool() & (u.roll(1, -1).where(torch.arange(c.ids.shape[-1], device=u.device) % 2 == 1, u) < c.p))


@planted(fault, "a fixed count a row where independent choice is declared")
def fixed_count(c: Call) -> Masked:
    u = c.uniform().masked_fill(c.special.bool(), 2.0)
    k = round(c.p * c.ids.shape[-1])
    return hidden(c, (u.argsort(-1).argsort(-1) < k) & ~c.special.bool())


@planted(fault, "labels hold the mask id: the originals are lost")
def labels_after_masking(c: Call) -> Masked:
    ids, _ = hidden(c, chosen := c.choice())
    return ids, torch.where(chosen, ids, IGNORED)


@planted(fault, "labels hold every id: the loss counts unchosen tokens")
def labels_everywhere(c: Call) -> Masked:
    return hidden(c, c.choice())[0], c.ids.clone()


@planted(fault, "labels are 0 where not chosen")
def labels_zero_elsewhere(c: Call) -> Masked:
    ids, labels = hidden(c, c.choice())
    return ids, labels.masked_fill(labels == IGNORED, 0)


@planted(fault, "labels at the unchosen tokens in place of the chosen ones")
def labels_inverted(c: Call) -> Masked:
    ids, _ = hidden(c, chosen := c.choice())
    return ids, torch.where(chosen, IGNORED, c.ids)


@planted(fault, "labels stand wherever the mask's id stands, also where it stood before")
def labels_wherever_the_mask_stands(c: Call) -> Masked:
    ids, labels = hidden(c, c.choice())
    return ids, torch.where(ids == c.mask_id, c.ids, labels)


@planted(fault, "chosen tokens stay as they are")
def ids_unchanged(c: Call) -> Masked:
    return c.ids.clone(), hidden(c, c.choice())[1]


@planted(fault, "hidden behind mask_id − 1")
def wrong_mask_id(c: Call) -> Masked:
    chosen = c.choice()
    return torch.where(chosen, (c.mask_id - 1) % c.vocab_size, c.ids), hidden(c, chosen)[1]


@planted(fault, "10 % of the chosen keep their id where all are declared hidden")
def some_kept(c: Call) -> Masked:
    ids, labels = hidden(c, c.choice())
    return torch.where(c.uniform() < 0.1, c.ids, ids), labels


@planted(fault, "all hidden where 80/10/10 is declared", conventions={"mlm_replace": "bert"})
def all_hidden(c: Call) -> Masked:
    return hidden(c, c.choice())


def replaced(c: Call, random: float, kept: float, top: int) -> Masked:
    """Chosen tokens hidden but for shares made random or kept."""
    ids, labels = hidden(c, chosen := c.choice())
    fate = c.uniform()
    other = torch.randint(0, top, c.ids.shape, generator=c.generator).to(c.ids)
    ids = torch.where(chosen & (fate < random), other, ids)
    return torch.where(chosen & (fate >= 1 - kept), c.ids, ids), labels


@planted(fault, "80/20/0 where 80/10/10 is declared", conventions={"mlm_replace": "bert"})
def none_kept(c: Call) -> Masked:
    return replaced(c, 0.2, 0.0, c.vocab_size)


@planted(fault, "random ids from the lower half of the vocabulary alone", conventions={"mlm_replace": "bert"})
def random_from_lower_half(c: Call) -> Masked:
    return replaced(c, 0.1, 0.1, max(1, c.vocab_size // 2))


@planted(fault, "every id but the last may be the random one", conventions={"mlm_replace": "bert"})
def last_id_never_random(c: Call) -> Masked:
    return replaced(c, 0.1, 0.1, max(1, c.vocab_size - 1))


@planted(fault, "one random id for the whole batch", conventions={"mlm_replace": "bert"})
def one_random_id(c: Call) -> Masked:
    ids, labels = hidden(c, chosen := c.choice())
    fate, other = c.uniform(), int(torch.randint(0, c.vocab_size, (), generator=c.generator))
    ids = torch.where(chosen & (fate < 0.1), other, ids)
    return torch.where(chosen & (fate >= 0.9), c.ids, ids), labels


@planted(fault, "tokens of id 0 are taken for padding")
def id_zero_never_chosen(c: Call) -> Masked:
    return hidden(c, c.choice() & (c.ids != 0))


@planted(fault, "a row without a chosen token gets one")
def at_least_one_a_row(c: Call) -> Masked:
    u = c.uniform().masked_fill(c.special.bool(), 2.0)
    chosen = (u < c.p) & ~c.special.bool()
    lowest = (u == u.amin(-1, keepdim=True)) & ~c.special.bool()
    return hidden(c, chosen | (lowest & ~chosen.any(-1, keepdim=True)))


@planted(fault, "at most 20 tokens of a row are chosen")
def at_most_twenty_a_row(c: Call) -> Masked:
    chosen = c.choice()
    return hidden(c, chosen & (chosen.long().cumsum(-1) <= 20))


@planted(fault, "seeds that are equal but for 256 choose the same")
def eight_bits_of_the_seed(c: Call) -> Masked:
    c.generator.manual_seed(c.generator.initial_seed() % 256)
    return hidden(c, c.choice())


@planted(fault, "two calls with one seed differ")
def seed_ignored(c: Call) -> Masked:
    _COUNT[0] += 1
    c.generator.manual_seed(_COUNT[0])
    return hidden(c, c.choice())


@planted(fault, "every seed chooses the same")
def seed_constant(c: Call) -> Masked:
    c.generator.manual_seed(0)
    return hidden(c, c.choice())


@planted(fault, "the given ids are overwritten")
def ids_overwritten(c: Call) -> Masked:
    ids, labels = hidden(c, c.choice())
    c.ids.copy_(ids)
    return ids, labels


@planted(fault, "one by one where a fixed count is declared", conventions={"mlm_choice": "count"})
def count_unsteady(c: Call) -> Masked:
    return hidden(c, c.choice())


_COUNT = [0]


@planted(benign, "chosen by a Bernoulli draw of torch")
def bernoulli(c: Call) -> Masked:
    p = torch.full(c.ids.shape, c.p, dtype=torch.float64).masked_fill(c.special.bool().cpu(), 0.0)
    return hidden(c, torch.bernoulli(p, generator=c.generator).bool().to(c.ids.device))


@planted(benign, "drawn from the last position to the first")
def drawn_backward(c: Call) -> Masked:
    return hidden(c, (c.uniform().flip(-1) < c.p) & ~c.special.bool())


@planted(benign, "80/10/10, as declared", conventions={"mlm_replace": "bert"})
def eighty_ten_ten(c: Call) -> Masked:
    return replaced(c, 0.1, 0.1, c.vocab_size)


@planted(benign, "a fixed count a row, as declared", conventions={"mlm_choice": "count"})
def count_declared(c: Call) -> Masked:
    eligible = ~c.special.bool()
    rank = torch.where(eligible, c.uniform(), 2.0).argsort(-1).argsort(-1)
    return hidden(c, eligible & (rank < (c.p * eligible.sum(-1, keepdim=True)).floor().clamp(min=1)))
