"""Causal language model: a small decoder-only model made of the reference parts, with a cache of keys and values."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from assay.numbers.forms import Form
from assay.reference.attention import attention
from assay.reference.block import Settings, feed, sublayer
from assay.reference.embedding import embedding
from assay.reference.rotary import rotary
from assay.reference.unembedding import unembedding

Cache = dict[str, Tensor]


@dataclass(frozen=True)
class Size:
    """How large the model is."""

    vocabulary: int = 29
    width: int = 16
    heads: int = 4
    groups: int = 2
    hidden: int = 24
    layers: int = 2


@dataclass
class CausalLanguageModel:
    """Pre-norm layers with RMSNorm, rotary positions, grouped heads and SwiGLU.

    weights: parameters by name: embed.weight, layers.0.norm1.weight, …, final_norm.weight, unembed.weight.
    """

    size: Size
    weights: dict[str, Tensor]
    counting: str = "index"
    max_length: int | None = None
    settings: Settings = field(init=False)

    def __post_init__(self) -> None:
        self.settings = Settings(self.size.heads, self.size.groups)

    @property
    def vocab_size(self) -> int:
        """V."""
        return self.size.vocabulary

    def parameters(self) -> Iterator[Tensor]:
        """The weights, in a fixed order."""
        return iter(self.weights.values())

    def __call__(self, ids: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """Logits (B,T,V) of all positions in one pass; mask (B,T), True = real."""
        return self._run(ids, {}, mask)[0]

    def step(self, ids: Tensor, cache: Cache | None, *, mask: Tensor | None = None) -> tuple[Tensor, Cache]:
        """Logits (B,S,V) of S new tokens after those in the cache; mask (B, all so far)."""
        return self._run(ids, cache or {}, mask)

    def _run(self, ids: Tensor, cache: Cache, mask: Tensor | None) -> tuple[Tensor, Cache]:
        """New tokens against the cache; the cache that comes back is a new one."""
        past = cache["0.k"].shape[2] if cache else 0
        if mask is not None and tuple(mask.shape) != (ids.shape[0], past + ids.shape[1]):
            raise ValueError(f"mask.shape={tuple(mask.shape)} must be {(ids.shape[0], past + ids.shape[1])} (B, all so far), "
                             f"got {tuple(mask.shape)}; one flag for every token, cached ones too")
        positions = self._positions(ids, mask, past)
        x, grown = embedding(ids, self.weights["embed.weight"]), dict[str, Tensor]()
        for depth in range(self.size.layers):
            x = self._layer(x, depth, positions, cache, grown, mask)
        logits = unembedding(x, self.weights["final_norm.weight"], self.weights["unembed.weight"], eps=self.settings.eps)
        return logits, grown

    def _positions(self, ids: Tensor, mask: Tensor | None, past: int) -> Tensor:
        """Positions of the new tokens (B,S)."""
        if self.counting == "from_mask" and mask is not None:
            return (torch.cumsum(mask.long(), -1) - 1).clamp(min=0)[:, past:]
        return torch.arange(past, past + ids.shape[1], device=ids.device).expand(ids.shape)

    def _layer(self, x: Tensor, depth: int, positions: Tensor, cache: Cache, grown: Cache, mask: Tensor | None) -> Tensor:
        """One layer; its keys and values, old and new, go into `grown`."""
        prefix = f"layers.{depth}."
        params = {name.removeprefix(prefix): w for name, w in self.weights.items() if name.startswith(prefix)}

        def attend(h: Tensor) -> Tensor:
            q, k, v = (_split(h @ params[f"attn.{name}"].transpose(0, 1), heads) for name, heads in
                       (("w_q", self.size.heads), ("w_k", self.size.groups), ("w_v", self.size.groups)))
            new = {"k": rotary(k, positions), "v": v}
            for name, tensor in new.items():
                held = cache.get(f"{depth}.{name}")
                grown[f"{depth}.{name}"] = tensor if held is None else torch.cat([held, tensor], 2)
            real = None if mask is None else mask.bool()[:, None, None, :]
            out = attention(rotary(q, positions), grown[f"{depth}.k"], grown[f"{depth}.v"], mask=real, causal=True)
            return out.transpose(1, 2).reshape(h.shape) @ params["attn.w_o"].transpose(0, 1)

        h = sublayer(x, params, self.settings, "norm1", 0, attend)
        return sublayer(h, params, self.settings, "norm2", 2, lambda t: feed(t, params, self.settings))


def _split(x: Tensor, heads: int) -> Tensor:
    """(B,T,heads·D) to (B,heads,T,D)."""
    return x.reshape(x.shape[0], x.shape[1], heads, x.shape[2] // heads).transpose(1, 2)


def causal_lm(*, seed: int, size: Size = Size(), counting: str = "index") -> CausalLanguageModel:
    """Make a small model whose weights come from the seed alone.

    Formula: x = E[ids]; x = block_l(x) for each layer, causal, rotary; logits = RMSNorm(x) · W_Uᵀ.

    returns: an object with __call__(ids, *, mask), step(ids, cache, *, mask), parameters(), vocab_size and max_length

    Conventions: counting (the convention `positions`) "index" or "from_mask"; the cache is a dict of keys and values,
    turned by
    their positions, and is never changed in place.
    Raises: ValueError for ids outside the vocabulary or a mask of another shape.
    Source: Touvron et al., "LLaMA", section 2.2, arXiv 2302.13971.

    >>> model = causal_lm(seed=0)
    >>> ids = torch.tensor([[3, 1, 4, 1]])
    >>> whole, (first, cache) = model(ids), model.step(ids[:, :3], None)
    >>> last, cache = model.step(ids[:, 3:], cache)
    >>> bool(torch.allclose(whole, torch.cat([first, last], 1), atol=1e-5))
    True
    """
    generator = torch.Generator().manual_seed(seed)
    weights = {name: drawn(shape, generator) for name, shape in shapes(size).items()}
    return CausalLanguageModel(size, weights, counting)


def drawn(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """A leaf that asks for gradients: near 1 for a norm, of deviation 1/√(inputs) for a matrix."""
    noise = torch.randn(shape, generator=generator)
    return (1 + 0.1 * noise if len(shape) == 1 else noise / shape[-1] ** 0.5).requires_grad_()


def shapes(size: Size) -> dict[str, tuple[int, ...]]:
    """The shape of every parameter."""
    c, kv = size.width, size.width * size.groups // size.heads
    layer = {"norm1.weight": (c,), "attn.w_q": (c, c), "attn.w_k": (kv, c), "attn.w_v": (kv, c), "attn.w_o": (c, c),
             "norm2.weight": (c,), "ffn.w_gate": (size.hidden, c), "ffn.w_up": (size.hidden, c), "ffn.w_down": (c, size.hidden)}
    stack = {f"layers.{depth}.{name}": shape for depth in range(size.layers) for name, shape in layer.items()}
    return {"embed.weight": (size.vocabulary, c), **stack, "final_norm.weight": (c,), "unembed.weight": (size.vocabulary, c)}


DECLARATION = {"dtypes": ("float32",)}  # its weights are
CONVENTION_KEYWORDS = {"positions": "counting"}
FORMS: tuple[Form, ...] = (Form("as written", causal_lm),)
