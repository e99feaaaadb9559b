"""Image classifier: a small vision Transformer made of the reference parts."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from assay.numbers.forms import Form
from assay.reference.causal_lm import drawn
from assay.reference.embedding import embedding
from assay.reference.encoder import encoder
from assay.reference.patchify import patchify
from assay.reference.unembedding import unembedding

EPS = 1e-6


@dataclass(frozen=True)
class Size:
    """How large the images and the model are."""

    image: tuple[int, int, int] = (2, 8, 12)  # channels, height, width
    patch: int = 4
    width: int = 16
    heads: int = 4
    hidden: int = 24
    layers: int = 2
    classes: int = 5


@dataclass
class VisionTransformer:
    """Patches, a class token before them, positions, an encoder, and a score for every class read at that token.

    params: patch.weight (C, P²·Ci), class.weight (1, C), pos.weight (N+1, C), layers (a mapping each), final_norm.weight (C,),
        head.weight (K, C).
    """

    params: dict[str, Any]
    heads: int
    patch_size: int
    image_shape: tuple[int, ...]

    @property
    def num_classes(self) -> int:
        """K."""
        return int(self.params["head.weight"].shape[0])

    def parameters(self) -> Iterator[Tensor]:
        """The weights, in a fixed order."""
        for value in self.params.values():
            yield from [value] if isinstance(value, Tensor) else [weight for layer in value for weight in layer.values()]

    def __call__(self, image: Tensor) -> Tensor:
        """Logits (B,K) of images (B,Ci,Hi,Wi)."""
        patches = patchify(image, patch_size=self.patch_size) @ self.params["patch.weight"].transpose(0, 1)
        first = embedding(torch.zeros(len(image), 1, dtype=torch.int64), self.params["class.weight"])
        x = torch.cat([first, patches], 1)
        x = x + embedding(torch.arange(x.shape[1]), self.params["pos.weight"])
        h = encoder(x, self.params["layers"], num_heads=self.heads)
        return unembedding(h[:, 0], self.params["final_norm.weight"], self.params["head.weight"], eps=EPS)


def image_classifier(*, seed: int, size: Size = Size()) -> VisionTransformer:
    """Make a small model whose weights come from the seed alone.

    Formula: x = [class; patches(image) · W_Pᵀ] + positions; h = encoder(x); logits = RMSNorm(h_class) · W_Uᵀ.

    returns: an object with __call__(image) of images (B,Ci,Hi,Wi), parameters(), image_shape (Ci,Hi,Wi) and num_classes (K)

    Conventions: none.
    Raises: ValueError for images that the patches do not divide.
    Source: Dosovitskiy et al., "An Image is Worth 16x16 Words", section 3.1, arXiv 2010.11929; RMSNorm and SwiGLU in its layers.

    >>> model = image_classifier(seed=0)
    >>> model(torch.zeros(3, *model.image_shape)).shape
    torch.Size([3, 5])
    """
    source = torch.Generator().manual_seed(seed)
    channels, height, width = size.image
    c, patches = size.width, (height // size.patch) * (width // size.patch)
    params: dict[str, Any] = {
        "patch.weight": drawn((c, size.patch**2 * channels), source), "class.weight": drawn((1, c), source),
        "pos.weight": drawn((patches + 1, c), source)}
    params["layers"] = [{name: drawn(shape, source) for name, shape in _layer(size).items()} for _ in range(size.layers)]
    params["final_norm.weight"], params["head.weight"] = drawn((c,), source), drawn((size.classes, c), source)
    return VisionTransformer(params, size.heads, size.patch, size.image)


def _layer(size: Size) -> dict[str, tuple[int, ...]]:
    """The parameters of one layer: attention, SwiGLU and their norms."""
    square, up = (size.width, size.width), (size.hidden, size.width)
    return {"norm1.weight": (size.width,), **{f"attn.w_{one}": square for one in "qkvo"}, "norm2.weight": (size.width,),
            "ffn.w_gate": up, "ffn.w_up": up, "ffn.w_down": (size.width, size.hidden)}


DECLARATION = {"dtypes": ("float32",)}  # its weights are
FORMS: tuple[Form, ...] = (Form("as written", image_classifier),)
