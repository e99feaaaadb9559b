"""Planted faults of the sampler, and unusual ways that are right."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from assay.registry import benign, fault

NOT_EXPRESSIBLE = {"BUG-190": "NaN logits are outside the call; falling back to token 0 is planted for overflowing ones"}
Draw = Callable[[Tensor, torch.Generator, int], Tensor]


def masses(logits: Tensor) -> Tensor:
    """Probabilities in float64."""
    return torch.softmax(logits.detach().double(), -1)


def drawn(p: Tensor, generator: torch.Generator, n: int) -> Tensor:
    """n indices with those probabilities, by inversion."""
    mass = p.cumsum(-1)
    u = torch.rand(n, generator=generator, dtype=torch.float64).to(p.device) * mass[-1]
    return torch.searchsorted(mass, u, right=True).clamp(max=int(torch.nonzero(p)[-1, 0]))


def planted(mark: Callable[..., Any], summary: str, origin: str = "") -> Callable[[Draw], Draw]:
    """Give a way of drawing the signature of the kind, under its own name, and register it."""
    def register(wrong: Draw) -> Draw:
        def sampler(logits: Tensor, *, seed: int, num_samples: int) -> Tensor:
            return wrong(logits, torch.Generator().manual_seed(seed), num_samples)

        sampler.__name__ = sampler.__qualname__ = wrong.__name__
        sampler.__module__, sampler.__doc__ = wrong.__module__, summary
        mark("sampler", summary=summary, **({"origin": origin} if mark is fault else {}))(sampler)
        return wrong

    return register


@planted(fault, "the last token is never drawn")
def last_token_ignored(z: Tensor, g: torch.Generator, n: int) -> Tensor:
    return drawn(masses(z[:-1] if len(z) > 1 and bool(torch.isfinite(z[:-1]).any()) else z), g, n)


@planted(fault, "the first token is drawn 5 % too often")
def first_token_favoured(z: Tensor, g: torch.Generator, n: int) -> Tensor:
    p = masses(z)
    first = torch.arange(len(p), device=p.device) == 0
    return drawn(torch.where(first & (p > 0), p * 1.05 + 0.05 * (1 - p), p * 0.95), g, n)


@planted(fault, "probabilities drawn at temperature 1.1")
def temperature_slightly_off(z: Tensor, g: torch.Generator, n: int) -> Tensor:
    return drawn(masses(z / 1.1), g, n)


@planted(fault, "every token equally likely")
def uniform(z: Tensor, g: torch.Generator, n: int) -> Tensor:
    return drawn((masses(z) > 0).double(), g, n)


@planted(fault, "always the most likely token")
def greedy(z: Tensor, g: torch.Generator, n: int) -> Tensor:
    return z.argmax().expand(n).clone()


@planted(fault, "logits taken as probabilities after a shift")
def linear_in_logits(z: Tensor, g: torch.Generator, n: int) -> Tensor:
    finite = torch.where(torch.isfinite(z), z, z[torch.isfinite(z)].min()).double()
    p = (finite - finite.min() + 1e-3) * (masses(z) > 0)
    return drawn(p / p.sum(), g, n)


@planted(fault, "a token of probability 0 is drawn now and then")
def impossible_token_drawn(z: Tensor, g: torch.Generator, n: int) -> Tensor:
    return drawn(masses(z) + 1e-3, g, n)


@planted(fault, "draws fall on the boundary's wrong side: index one too high")
def index_one_too_high(z: Tensor, g: torch.Generator, n: int) -> Tensor:
    return (drawn(masses(z), g, n) + 1) % len(z)


@planted(fault, "the seed is ignored: two calls differ")
def seed_ignored(z: Tensor, g: torch.Generator, n: int) -> Tensor:
    _COUNT[0] += 1
    return drawn(masses(z), torch.Generator().manual_seed(_COUNT[0]), n)


@planted(fault, "seeds that are equal but for 256 give the same draws")
def eight_bits_of_the_seed(z: Tensor, g: torch.Generator, n: int) -> Tensor:
    return drawn(masses(z), torch.Generator().manual_seed(g.initial_seed() % 256), n)


@planted(fault, "draw i is the first of seed + i: the next seed gives the same draws, moved by one")
def a_seed_for_each_draw(z: Tensor, g: torch.Generator, n: int) -> Tensor:
    number = torch.arange(n) + g.initial_seed()
    for _ in range(2):
        number = (number ^ (number >> 16)) * 0x45D9F3B & 0xFFFFFFFF
    mass = masses(z).cumsum(-1)
    u = (number ^ (number >> 16)).to(mass.device).double() / 2**32 * mass[-1]
    return torch.searchsorted(mass, u, right=True).clamp(max=int(torch.nonzero(masses(z))[-1, 0]))


@planted(fault, "numbers evenly spread over 0 … 1 and shuffled: counts are all but the expected ones")
def counts_without_chance(z: Tensor, g: torch.Generator, n: int) -> Tensor:
    mass = masses(z).cumsum(-1)
    u = (torch.arange(n) + torch.rand(1, generator=g, dtype=torch.float64)) / n
    u = u[torch.randperm(n, generator=g)].to(mass.device) * mass[-1]
    return torch.searchsorted(mass, u, right=True).clamp(max=int(torch.nonzero(masses(z))[-1, 0]))


@planted(fault, "the hundred most likely tokens alone are candidates")
def best_hundred_alone(z: Tensor, g: torch.Generator, n: int) -> Tensor:
    kept = torch.sort(z, descending=True, stable=True).indices[:100]
    return drawn(masses(torch.full_like(z, float("-inf")).scatter(0, kept, z[kept])), g, n)


@planted(fault, "ids beyond a block of 256 are never drawn")
def beyond_256_never_drawn(z: Tensor, g: torch.Generator, n: int) -> Tensor:
    return drawn(masses(z[:256] if bool(torch.isfinite(z[:256]).any()) else z), g, n)


@planted(fault, "every seed gives the same draws")
def seed_constant(z: Tensor, g: torch.Generator, n: int) -> Tensor:
    return drawn(masses(z), torch.Generator().manual_seed(0), n)


@planted(fault, "one draw repeated")
def one_draw_repeated(z: Tensor, g: torch.Generator, n: int) -> Tensor:
    return drawn(masses(z), g, 1).expand(n).clone()


@planted(fault, "drawn without replacement")
def without_replacement(z: Tensor, g: torch.Generator, n: int) -> Tensor:
    p = masses(z)
    once = torch.multinomial(p.float(), min(n, int((p.float() > 0).sum())), replacement=False, generator=g)
    return once.repeat(-(-n // len(once)))[:n]


@planted(fault, "neighbouring draws go in pairs")
def draws_in_pairs(z: Tensor, g: torch.Generator, n: int) -> Tensor:
    return drawn(masses(z), g, -(-n // 2)).repeat_interleave(2)[:n]


@planted(fault, "draws come back sorted")
def draws_sorted(z: Tensor, g: torch.Generator, n: int) -> Tensor:
    return drawn(masses(z), g, n).sort().values


@planted(fault, "uniform numbers on a grid of 16: rare tokens are never drawn")
def coarse_uniform_numbers(z: Tensor, g: torch.Generator, n: int) -> Tensor:
    mass = masses(z).cumsum(-1)
    u = torch.randint(0, 16, (n,), generator=g).to(mass.device) / 16
    return torch.searchsorted(mass, u.double(), right=True).clamp(max=len(z) - 1)


@planted(fault, "overflowing logits fall back to token 0", "BUG-190")
def falls_back_to_first(z: Tensor, g: torch.Generator, n: int) -> Tensor:
    e = torch.exp(z.detach().float())
    return drawn(masses(z), g, n) if bool(torch.isfinite(e).all()) else torch.zeros(n, dtype=torch.int64, device=z.device)


@planted(fault, "one sample fewer than asked")
def one_sample_fewer(z: Tensor, g: torch.Generator, n: int) -> Tensor:
    return drawn(masses(z), g, n)[: max(1, n - 1)]


@planted(fault, "ids as 32-bit integers")
def narrow_ids(z: Tensor, g: torch.Generator, n: int) -> Tensor:
    return drawn(masses(z), g, n).int()


_COUNT = [0]


@planted(benign, "Gumbel noise and the largest entry")
def gumbel(z: Tensor, g: torch.Generator, n: int) -> Tensor:
    u = torch.rand((n, len(z)), generator=g, dtype=torch.float64).clamp(min=1e-300)
    return (z.detach().double() - torch.log(-torch.log(u)).to(z.device)).argmax(-1)


@planted(benign, "exponential clocks: the first to ring")
def exponential_clocks(z: Tensor, g: torch.Generator, n: int) -> Tensor:
    e = torch.empty((n, len(z)), dtype=torch.float64).exponential_(generator=g).to(z.device)
    return (masses(z) / e).argmax(-1)


@planted(benign, "inversion over tokens in reverse order")
def reversed_inversion(z: Tensor, g: torch.Generator, n: int) -> Tensor:
    return len(z) - 1 - drawn(masses(z).flip(-1), g, n)


@planted(benign, "torch.multinomial in float64")
def multinomial(z: Tensor, g: torch.Generator, n: int) -> Tensor:
    return torch.multinomial(masses(z).cpu(), n, replacement=True, generator=g).to(z.device)
