"""Whole models made of the reference parts and nothing else, small enough to learn a toy task in seconds.

Decoder-only: `assay.reference.causal_lm` as it is. Here are the others: a decoder with experts, an encoder–decoder that
decodes with a cache, a masked language model and a vision Transformer.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from assay.reference.block import Params, Settings, attend, feed, sublayer
from assay.reference.causal_lm import CausalLanguageModel, Size, shapes
from assay.reference.encoder import encoder
from assay.reference.encoder_decoder import encoder_decoder
from assay.reference.image_classifier import VisionTransformer
from assay.reference.input_embedding import input_embedding
from assay.reference.unembedding import unembedding

EPS = 1e-6
Shapes = Mapping[str, tuple[int, ...]]
Cache = dict[str, Tensor]


def drawn(shapes: Shapes, source: torch.Generator) -> dict[str, Tensor]:
    """Leaves that ask for gradients: 1 for a norm, of deviation 1/√(inputs) for a matrix."""
    return {name: (torch.ones(shape) if len(shape) == 1 else torch.randn(shape, generator=source) / shape[-1] ** 0.5)
            .requires_grad_() for name, shape in shapes.items()}


def layer_shapes(width: int, hidden: int, *, across: bool = False) -> dict[str, tuple[int, ...]]:
    """The parameters of one layer with SwiGLU, with cross-attention where there is a memory."""
    square, up = (width, width), (hidden, width)
    names = ("attn", "cross") if across else ("attn",)
    projections = {f"{name}.w_{one}": square for name in names for one in "qkvo"}
    norms = {f"norm{n}.weight": (width,) for n in ((1, 2, 3) if across else (1, 2))}
    return {**norms, **projections, "ffn.w_gate": up, "ffn.w_up": up, "ffn.w_down": (width, hidden)}


# ------------------------------------------------------------------------------------------------ decoder with experts
@dataclass
class MixtureOfExperts(CausalLanguageModel):
    """The reference's causal language model, each feed-forward network a mixture of experts; its cache is the same."""

    top_k: int = 2

    def __post_init__(self) -> None:
        self.settings = Settings(self.size.heads, self.size.groups, ffn="moe", top_k=self.top_k)


def mixture_of_experts(seed: int, size: Size, experts: int) -> MixtureOfExperts:
    """A causal language model with so many experts a layer, the weights from the seed alone."""
    c, f = size.width, size.hidden
    expert = {"moe.w_router": (experts, c), "moe.w_gate": (experts, f, c), "moe.w_up": (experts, f, c),
              "moe.w_down": (experts, c, f)}
    named = {name: shape for name, shape in shapes(size).items() if ".ffn." not in name}
    for depth in range(size.layers):
        named |= {f"layers.{depth}.{name}": shape for name, shape in expert.items()}
    return MixtureOfExperts(size, drawn(named, torch.Generator().manual_seed(seed)))


# ------------------------------------------------------------------------------------------------ encoder–decoder
@dataclass
class Translator:
    """Encoder–decoder with learned positions; embedding and unembedding share their table."""

    params: Params
    settings: Settings

    def parameters(self) -> Iterator[Tensor]:
        """All weights."""
        return leaves(self.params)

    def __call__(self, src: Tensor, tgt: Tensor, src_mask: Tensor, tgt_mask: Tensor | None = None) -> Tensor:
        """Logits (B,T,V) over the next target token at every position, in one pass."""
        return encoder_decoder(src, tgt, self.params, num_heads=self.settings.num_heads, src_mask=src_mask, tgt_mask=tgt_mask)

    def read(self, src: Tensor, src_mask: Tensor) -> Cache:
        """A cache that holds the encoded source."""
        places = torch.arange(src.shape[1])
        x = input_embedding(src, self.params["embed.weight"], self.params["pos.weight"], positions=places)
        return {"memory": encoder(x, self.params["encoder"], num_heads=self.settings.num_heads, mask=src_mask), "mask": src_mask}

    def step(self, tgt: Tensor, cache: Cache) -> tuple[Tensor, Cache]:
        """Logits (B,S,V) of S new target tokens, and a new cache; every layer keeps the states that it attends to."""
        past = cache["0"].shape[1] if "0" in cache else 0
        grown = {name: cache[name] for name in ("memory", "mask")}
        places = torch.arange(past, past + tgt.shape[1])
        y = input_embedding(tgt, self.params["embed.weight"], self.params["pos.weight"], positions=places)
        for depth, layer in enumerate(self.params["decoder"]):
            y = self._layer(y, layer, str(depth), cache, grown)
        return unembedding(y, self.params["final_norm.weight"], self.params["embed.weight"], eps=EPS), grown

    def _layer(self, y: Tensor, layer: Params, name: str, cache: Cache, grown: Cache) -> Tensor:
        def over_target(h: Tensor) -> Tensor:
            grown[name] = torch.cat([cache[name], h], 1) if name in cache else h
            return attend(h, layer, self.settings, "attn", causal=True, mask=None, context=grown[name])

        def over_source(h: Tensor) -> Tensor:
            return attend(h, layer, self.settings, "cross", causal=False, mask=grown["mask"], context=grown["memory"])

        y = sublayer(y, layer, self.settings, "norm1", 0, over_target)
        y = sublayer(y, layer, self.settings, "norm3", 1, over_source)
        return sublayer(y, layer, self.settings, "norm2", 2, lambda h: feed(h, layer, self.settings))


def translator(seed: int, *, vocabulary: int, longest: int, width: int = 32, hidden: int = 64, heads: int = 4) -> Translator:
    """An encoder–decoder of one layer each, the weights from the seed alone."""
    source = torch.Generator().manual_seed(seed)
    tables = drawn({"embed.weight": (vocabulary, width), "pos.weight": (longest, width), "final_norm.weight": (width,)}, source)
    stacks = {"encoder": [drawn(layer_shapes(width, hidden), source)],
              "decoder": [drawn(layer_shapes(width, hidden, across=True), source)]}
    return Translator({**tables, **stacks}, Settings(heads))


# ------------------------------------------------------------------------------------------------ encoders
@dataclass
class MaskedLanguageModel:
    """Encoder with learned positions; every position is scored against the vocabulary, by the rows that tokens enter with."""

    params: Params
    heads: int

    def parameters(self) -> Iterator[Tensor]:
        """All weights."""
        return leaves(self.params)

    def __call__(self, ids: Tensor) -> Tensor:
        """Logits (B,T,V)."""
        x = input_embedding(ids, self.params["embed.weight"], self.params["pos.weight"])
        h = encoder(x, self.params["layers"], num_heads=self.heads)
        return unembedding(h, self.params["final_norm.weight"], self.params["embed.weight"], eps=EPS)


def masked_language_model(seed: int, *, vocabulary: int, longest: int, width: int = 16, hidden: int = 32, heads: int = 4,
                          layers: int = 2) -> MaskedLanguageModel:
    """An encoder of some layers, the weights from the seed alone."""
    source = torch.Generator().manual_seed(seed)
    tables = drawn({"embed.weight": (vocabulary, width), "pos.weight": (longest, width), "final_norm.weight": (width,)}, source)
    return MaskedLanguageModel({**tables, "layers": [drawn(layer_shapes(width, hidden), source) for _ in range(layers)]}, heads)


def vision_transformer(seed: int, *, side: int, patch_size: int, classes: int = 2, width: int = 16, hidden: int = 32,
                       heads: int = 2) -> VisionTransformer:
    """A vision Transformer of one layer for grey images, the weights from the seed alone."""
    source = torch.Generator().manual_seed(seed)
    tables = drawn({"patch.weight": (width, patch_size**2), "class.weight": (1, width),
                    "pos.weight": ((side // patch_size) ** 2 + 1, width), "final_norm.weight": (width,),
                    "head.weight": (classes, width)}, source)
    return VisionTransformer({**tables, "layers": [drawn(layer_shapes(width, hidden), source)]}, heads, patch_size,
                             (1, side, side))


def leaves(params: Params) -> Iterator[Tensor]:
    """Every tensor of a tree of parameters, in a fixed order."""
    for value in params.values():
        if isinstance(value, Tensor):
            yield value
        else:
            for layer in value:
                yield from leaves(layer)
