"""Planted faults in one part of a model that hands its parts over; and a right model that does."""
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from assay.parts import record
from assay.registry import benign, fault

OPTIONS: dict[str, Any] = {"dtypes": ("float32",), "offers": ("parts",), "lacks": ("cache", "mask", "refused_ids")}


class RMSNorm(nn.Module):
    """Root-mean-square norm whose weight is an offset from one."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.eps, self.weight = 1e-6, nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        """x (…, C)."""
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + self.eps) * (1 + self.weight)


class Gated(nn.Module):
    """A gated feed-forward network."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.act = nn.SiLU()
        self.gate, self.up, self.down = (nn.Linear(*shape, bias=False) for shape in ((width, 24), (width, 24), (24, width)))

    def forward(self, x: Tensor) -> Tensor:
        """x (…, C)."""
        return self.down(silu(self.gate(x)) * self.up(x))


class Parted(nn.Module):
    """Two layers: the mean of all tokens so far, and a feed-forward network. Causal, without a cache."""

    vocab_size, max_length, width = 23, None, 16

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(self.vocab_size, self.width)
        self.norms = nn.ModuleList(RMSNorm(self.width) for _ in range(2))
        self.mixers = nn.ModuleList(Gated(self.width) for _ in range(2))
        self.unembed = nn.Linear(self.width, self.vocab_size, bias=False)
        source = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for weight in self.parameters():
                weight.copy_(torch.randn(weight.shape, generator=source) / weight.shape[-1] ** 0.5)

    def get_output_embeddings(self) -> nn.Module:
        """The head."""
        return self.unembed

    def forward(self, ids: Tensor) -> Tensor:
        """Logits of all positions."""
        x = self.embed(ids)
        for norm, mixer in zip(self.norms, self.mixers, strict=True):
            count = torch.arange(1, ids.shape[1] + 1, device=ids.device).unsqueeze(-1)
            x = x + mixer(norm(x.cumsum(1) / count))
        return self.unembed(x)

    def parts(self, ids: Tensor, *, skip: int = 0) -> tuple[Any, ...]:
        """Its modules in one pass."""
        return record(self, lambda: self(ids), skip)


@benign("causal_lm", **OPTIONS)
def with_parts(*, seed: int) -> Parted:
    """A model that hands over its parts, all right."""
    return Parted(seed)


@fault("causal_lm", **OPTIONS)
def norm_of_second_layer_centred(*, seed: int) -> Parted:
    """The norm of the second layer takes the mean off."""
    class Centred(RMSNorm):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x - x.mean(-1, keepdim=True))

    Centred.__name__ = RMSNorm.__name__
    made = Parted(seed)
    weight, made.norms[1] = made.norms[1].weight, Centred(Parted.width)
    made.norms[1].weight = weight
    return made


@fault("causal_lm", **OPTIONS)
def gate_of_second_layer_unactivated(*, seed: int) -> Parted:
    """The feed-forward network of the second layer activates the branch that should be plain."""
    class Swapped(Gated):
        def forward(self, x: Tensor) -> Tensor:
            return self.down(self.gate(x) * silu(self.up(x)))

    Swapped.__name__ = Gated.__name__
    made = Parted(seed)
    weights, made.mixers[1] = made.mixers[1].state_dict(), Swapped(Parted.width)
    made.mixers[1].load_state_dict(weights)
    return made


@fault("causal_lm", **OPTIONS)
def norms_without_a_root(*, seed: int) -> Parted:
    """The norms of all layers divide by the mean square, not by its root."""
    class Squared(RMSNorm):
        def forward(self, x: Tensor) -> Tensor:
            return x / ((x * x).mean(-1, keepdim=True) + self.eps) * (1 + self.weight)

    Squared.__name__ = RMSNorm.__name__
    made = Parted(seed)
    for place, right in enumerate(list(made.norms)):
        made.norms[place] = Squared(Parted.width)
        made.norms[place].weight = right.weight
    return made
