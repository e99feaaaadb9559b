"""Planted faults of what a library's model has besides the call: its loss, saving, several kernels. And a model with all of it."""
from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from assay.faults.causal_lm import Model
from assay.registry import benign, fault

OFFERS = ("loss", "saving", "kernels")
OPTIONS: dict[str, Any] = {"dtypes": ("float32",), "offers": OFFERS}


class Whole(Model):
    """A right model with a loss, saving and a second kernel; faults override a method."""

    def loss(self, ids: Tensor, labels: Tensor) -> Tensor:
        """Next-token loss; labels of -100 are left out."""
        return cross_entropy(self(ids)[:, :-1].flatten(0, 1), labels[:, 1:].flatten())

    def saved(self) -> Whole:
        """A copy made of what is saved."""
        return copy.deepcopy(self)

    def reloaded(self, ids: Tensor) -> Tensor:
        """Logits after saving and loading."""
        return self.saved()(ids)

    def through(self, ids: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """Logits with another kernel: here there is one."""
        return self(ids, mask=mask)


@benign("causal_lm", **OPTIONS)
def with_loss_and_saving(*, seed: int) -> Whole:
    """A model that offers its loss, saving and a second kernel, all right."""
    return Whole(seed)


@fault("causal_lm", **OPTIONS)
def loss_not_shifted(*, seed: int) -> Whole:
    """The loss scores every position against its own token."""
    class Faulty(Whole):
        def loss(self, ids: Tensor, labels: Tensor) -> Tensor:
            return cross_entropy(self(ids).flatten(0, 1), labels.flatten())
    return Faulty(seed)


@fault("causal_lm", **OPTIONS)
def loss_counts_ignored(*, seed: int) -> Whole:
    """The mean of the loss is over all positions, those left out too."""
    class Faulty(Whole):
        def loss(self, ids: Tensor, labels: Tensor) -> Tensor:
            return cross_entropy(self(ids)[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="sum") / labels[:, 1:].numel()
    return Faulty(seed)


@fault("causal_lm", **OPTIONS)
def table_lost_on_saving(*, seed: int) -> Whole:
    """The unembedding is left out of what is saved, and drawn again."""
    class Faulty(Whole):
        def saved(self) -> Whole:
            made = copy.deepcopy(self)
            made.unembed = torch.randn(made.unembed.shape, generator=torch.Generator().manual_seed(1))
            return made
    return Faulty(seed)


@fault("causal_lm", **OPTIONS)
def kernel_without_causal_mask(*, seed: int) -> Whole:
    """With the second kernel a query sees later keys: tokens in reverse stand for them."""
    class Faulty(Whole):
        def through(self, ids: Tensor, *, mask: Tensor | None = None) -> Tensor:
            seen = self(ids, mask=mask)
            return seen + 0.1 * self(ids.flip(1)).flip(1)
    return Faulty(seed)
