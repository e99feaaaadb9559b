"""Planted faults of image classifiers: patches, positions, images of a batch, state, and what a library's model has besides."""
from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from assay.faults import factories
from assay.parts import record
from assay.registry import benign, fault

CHANNELS, SIDE, PATCH, WIDTH, HEADS, CLASSES = 3, 8, 4, 16, 2, 5


class Layer(nn.Module):
    """Pre-norm self-attention and a feed-forward network."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """x (B,T,C)."""
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(self.attend(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of all heads."""
        return scaled_dot_product_attention(q, k, v)


class Model(nn.Module):
    """A right model of two layers, with a loss, saving, a second kernel and its parts; faults override a method."""

    image_shape, num_classes, layer = (CHANNELS, SIDE, SIDE), CLASSES, Layer

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.patch, self.head = nn.Conv2d(CHANNELS, WIDTH, PATCH, PATCH), nn.Linear(WIDTH, CLASSES)
        self.positions = nn.Parameter(torch.empty((SIDE // PATCH) ** 2, WIDTH))
        self.layers, self.norm = nn.ModuleList(self.layer() for _ in range(2)), nn.LayerNorm(WIDTH)
        source = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for weight in self.parameters():
                noise = torch.randn(weight.shape, generator=source)
                weight.copy_(1 + 0.1 * noise if weight.dim() == 1 else noise / weight[0].numel() ** 0.5)
        self.eval()

    def forward(self, image: Tensor) -> Tensor:
        """Logits (B,K) of images (B,Ci,Hi,Wi)."""
        x = self.placed(self.patches(image))
        for layer in self.layers:
            x = layer(x)
        return self.score(self.norm(self.pooled(x)))

    def patches(self, image: Tensor) -> Tensor:
        """One vector a patch (B,N,C)."""
        out: Tensor = self.patch(image).flatten(2).transpose(1, 2)
        return out

    def placed(self, x: Tensor) -> Tensor:
        """The patches with their positions."""
        return x + self.positions

    def pooled(self, x: Tensor) -> Tensor:
        """One vector an image."""
        return x.mean(1)

    def score(self, h: Tensor) -> Tensor:
        """Logits."""
        out: Tensor = self.head(h)
        return out

    def loss(self, image: Tensor, labels: Tensor) -> Tensor:
        """Mean over the images."""
        return cross_entropy(self(image), labels)

    def reloaded(self, image: Tensor) -> Tensor:
        """Logits after saving and loading."""
        out: Tensor = self.saved()(image)
        return out

    def saved(self) -> Model:
        """A copy made of what is saved."""
        return copy.deepcopy(self)

    def through(self, image: Tensor) -> Tensor:
        """Logits with another kernel."""
        return self.written()(image)

    def written(self) -> Model:
        """The same weights with attention written out."""
        other = copy.deepcopy(self)
        for layer in other.layers:
            layer.attend = _by_softmax
        return other

    def parts(self, image: Tensor, *, skip: int = 0) -> tuple[Any, ...]:
        """What the modules of one pass received and gave."""
        return record(self, lambda: self(image), skip)


def _by_softmax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1) @ v


OPTIONS: dict[str, Any] = {"dtypes": ("float32",), "offers": ("loss", "saving", "kernels", "parts")}


def planted(mark: Callable[..., Any], summary: str, **extra: Any) -> Callable[[type[Model]], type[Model]]:
    """A model of this kind, with all that a library's has."""
    return factories.planted("image_classifier", mark, summary, **{**OPTIONS, **extra})


# ------------------------------------------------------------------------------------------------ from pixels to logits
@planted(fault, "the last class is never scored: NaN")
class LastClassUnscored(Model):
    def score(self, h: Tensor) -> Tensor:
        return nn.functional.pad(super().score(h)[:, :-1], (0, 1), value=float("nan"))


@planted(fault, "logits are centred over the batch")
class ImagesMixed(Model):
    def score(self, h: Tensor) -> Tensor:
        logits = super().score(h)
        return logits - logits.mean(0, keepdim=True)


@planted(fault, "patches are normalised by the first image's mean")
class FirstImageForAll(Model):
    def patches(self, image: Tensor) -> Tensor:
        x = super().patches(image)
        return x - x[:1].mean()


@planted(fault, "the last patch is dropped, as if a class token stood there")
class LastPatchDropped(Model):
    def placed(self, x: Tensor) -> Tensor:
        return super().placed(x)[:, :-1]


@planted(fault, "positions are not added")
class PositionsForgotten(Model):
    def placed(self, x: Tensor) -> Tensor:
        return x + 0 * self.positions


@planted(fault, "no gradient passes the head")
class HeadDetached(Model):
    def score(self, h: Tensor) -> Tensor:
        return super().score(h.detach())


# ------------------------------------------------------------------------------------------------ state
@planted(fault, "dropout is left on in evaluation")
class DropoutLeftOn(Model):
    def pooled(self, x: Tensor) -> Tensor:
        source = torch.Generator().manual_seed(self.drawn())
        return super().pooled(x * (torch.rand(x.shape, generator=source) > 0.1))

    def drawn(self) -> int:
        """Another seed in every call."""
        self.calls = getattr(self, "calls", 0) + 1
        return self.calls


@planted(fault, "running statistics go on in evaluation")
class StatisticsUpdated(Model):
    def patches(self, image: Tensor) -> Tensor:
        x = super().patches(image)
        self.seen = 0.9 * getattr(self, "seen", torch.zeros(WIDTH)) + 0.1 * x.detach().mean((0, 1))
        return x - self.seen


@planted(fault, "images are normalised in place")
class ImageNormalisedInPlace(Model):
    def forward(self, image: Tensor) -> Tensor:
        with torch.no_grad():
            image.sub_(0.5).div_(0.5)
        return super().forward(image)


@planted(fault, "pixels are read in the order of memory")
class StridesIgnored(Model):
    def patches(self, image: Tensor) -> Tensor:
        return super().patches(torch.as_strided(image, image.shape, torch.empty(image.shape).stride(), image.storage_offset()))


@planted(fault, "the seed is ignored")
class SeedIgnored(Model):
    made = 0

    def __init__(self, seed: int) -> None:
        SeedIgnored.made += 1
        super().__init__(SeedIgnored.made)


@planted(fault, "a copy draws its weights again")
class CopyDrawnAgain(Model):
    def __deepcopy__(self, memo: dict[int, Any]) -> Model:
        return Model(99)


# ------------------------------------------------------------------------------------------------ what a library's model has
@planted(fault, "the loss is summed over the images")
class LossSummed(Model):
    def loss(self, image: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(self(image), labels, reduction="sum")


@planted(fault, "the head is not saved: what is loaded has a new one")
class HeadLostOnSaving(Model):
    def saved(self) -> Model:
        other = copy.deepcopy(self)
        other.head = Model(99).head
        return other


@planted(fault, "one kernel does not scale its scores")
class KernelWithoutScale(Model):
    def written(self) -> Model:
        other = copy.deepcopy(self)
        for layer in other.layers:
            layer.attend = lambda q, k, v: torch.softmax(q @ k.mT, -1) @ v
        return other


class Uncentred(nn.LayerNorm):
    """A layer norm that forgets the mean."""

    def forward(self, x: Tensor) -> Tensor:
        """x (…, C)."""
        return x * torch.rsqrt(x.var(-1, keepdim=True, correction=0) + self.eps) * self.weight + self.bias


@planted(fault, "one layer's norm does not centre")
class NormOfALayerUncentred(Model):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        right, self.layers[1].norm1 = self.layers[1].norm1, Uncentred(WIDTH)
        self.layers[1].norm1.load_state_dict(right.state_dict())


# ------------------------------------------------------------------------------------------------ right ways
@planted(benign, "a right vision Transformer, its attention by torch's kernel")
class WholeVisionTransformer(Model):
    pass


@planted(benign, "batch normalisation in evaluation, by statistics that were kept")
class BatchNormalised(Model):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.normalised = nn.BatchNorm1d(WIDTH).eval()

    def patches(self, image: Tensor) -> Tensor:
        out: Tensor = self.normalised(super().patches(image).transpose(1, 2)).transpose(1, 2)
        return out


@planted(benign, "a bag of patches, which has no places", lacks=("places",))
class BagOfPatches(Model):
    def placed(self, x: Tensor) -> Tensor:
        return x + self.positions.mean(0)
