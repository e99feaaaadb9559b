"""Planted faults of causal language models: causality, masks, cache, positions, state. And a usual way that is right."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from assay.faults import factories
from assay.faults.attention_parts import Options, attend
from assay.faults.multi_head_attention_parts import merge, split, turned
from assay.registry import benign, fault

NOT_EXPRESSIBLE = {
    "BUG-045": "packed documents, which the call does not have",
    "BUG-113": "dynamic scaling of rotary: see rotary",
    "BUG-121": "packed documents, which the call does not have",
    "cache of every query head": "how many heads a model has is not told; GQA-3 speaks of paged caches: see paged_attention",
    "BUG-207": "initialisation of a padding row",
    "BUG-208": "initialisation of a padding row",
    "BUG-211": "optimiser steps on tied weights; no gradient through one of the copies is planted",
}
Cache = dict[str, Any]


class Model:
    """A right model of two layers; faults override a method."""

    vocab_size = 23
    max_length: int | None = None
    width, heads, groups, layers = 16, 4, 2, 2

    def __init__(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)

        def drawn(*shape: int) -> Tensor:
            return (torch.randn(shape, generator=generator) / shape[-1] ** 0.5).requires_grad_()

        c, kv = self.width, self.width * self.groups // self.heads
        self.embed, self.unembed = drawn(self.vocab_size, c), drawn(self.vocab_size, c)
        shapes = {"q": (c, c), "k": (kv, c), "v": (kv, c), "o": (c, c), "in": (2 * c, c), "out": (c, 2 * c)}
        self.blocks = [{name: drawn(*shape) for name, shape in shapes.items()} for _ in range(self.layers)]

    def parameters(self) -> Iterator[Tensor]:
        """The weights."""
        yield self.embed
        yield self.unembed
        for block in self.blocks:
            yield from block.values()

    def __call__(self, ids: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """Logits of all positions."""
        return self.run(ids, {}, mask)[0]

    def step(self, ids: Tensor, cache: Cache | None, *, mask: Tensor | None = None) -> tuple[Tensor, Cache]:
        """Logits of new tokens after those in the cache."""
        return self.run(ids, cache or {}, mask)

    def run(self, ids: Tensor, cache: Cache, mask: Tensor | None) -> tuple[Tensor, Cache]:
        """New tokens against the cache."""
        if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < self.vocab_size:
            raise ValueError(f"ids must lie in 0 … {self.vocab_size - 1}; correct them")
        past = self.past(cache)
        positions = self.positions(ids, past, mask)
        x, grown = self.embed[ids], dict[str, Any]()
        for depth, w in enumerate(self.blocks):
            x = x + self.attention(self.norm(x), w, depth, positions, cache, grown, mask)
            x = x + torch.nn.functional.silu(self.norm(x) @ w["in"].mT) @ w["out"].mT
        return self.head(self.norm(x)), grown

    def past(self, cache: Cache) -> int:
        """How many tokens the cache holds."""
        return cache["0.k"].shape[2] if cache else 0

    def positions(self, ids: Tensor, past: int, mask: Tensor | None) -> Tensor:
        """Positions of the new tokens (B,S)."""
        return torch.arange(past, past + ids.shape[1], device=ids.device).expand(ids.shape)

    def norm(self, x: Tensor) -> Tensor:
        """RMSNorm without a weight."""
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)

    def head(self, h: Tensor) -> Tensor:
        """Logits."""
        return h @ self.unembed.mT

    def joined(self, old: Tensor | None, new: Tensor) -> Tensor:
        """Cached keys or values, and the new ones."""
        return new if old is None else torch.cat([old, new], 2)

    def options(self, mask: Tensor | None, past: int, new: int) -> Options:
        """Causal, and real keys only."""
        return Options(mask=None if mask is None else mask.bool()[:, None, None], causal=True)

    def attention(self, h: Tensor, w: dict[str, Tensor], depth: int, positions: Tensor, cache: Cache, grown: Cache,
                  mask: Tensor | None) -> Tensor:
        """Attention of the new tokens over all."""
        q, k = turned(split(h @ w["q"].mT, self.heads), positions, 1e4), split(h @ w["k"].mT, self.groups)
        grown[f"{depth}.k"] = self.joined(cache.get(f"{depth}.k"), turned(k, positions, 1e4))
        grown[f"{depth}.v"] = self.joined(cache.get(f"{depth}.v"), split(h @ w["v"].mT, self.groups))
        options = self.options(mask, self.past(cache), h.shape[1])
        return merge(attend(q, grown[f"{depth}.k"], grown[f"{depth}.v"], options)) @ w["o"].mT


def planted(mark: Callable[..., Any], summary: str, origin: str = "", **extra: Any) -> Callable[[type[Model]], type[Model]]:
    """A model of this kind."""
    return factories.planted("causal_lm", mark, summary, **({"origin": origin} if mark is fault else {}), **extra)


@planted(fault, "not causal")
class NotCausal(Model):
    def options(self, mask: Tensor | None, past: int, new: int) -> Options:
        return Options(mask=super().options(mask, past, new).mask)


@planted(fault, "causal only without a cache: several new tokens see each other", "BUG-026")
class CausalWithoutCacheOnly(Model):
    def options(self, mask: Tensor | None, past: int, new: int) -> Options:
        return Options(mask=super().options(mask, past, new).mask, causal=past == 0)


@planted(fault, "a padding mask replaces causal", "BUG-029")
class MaskReplacesCausal(Model):
    def options(self, mask: Tensor | None, past: int, new: int) -> Options:
        given = super().options(mask, past, new).mask
        return Options(mask=given, causal=given is None)


@planted(fault, "new tokens are masked from the top left: they do not see the cache", "BUG-025")
class CacheHidden(Model):
    def options(self, mask: Tensor | None, past: int, new: int) -> Options:
        o = super().options(mask, past, new)
        if past == 0:
            return o
        keep = torch.ones(new, past + new, dtype=torch.bool).tril()
        return Options(mask=keep if o.mask is None else o.mask & keep)


@planted(fault, "the future leaks through a mean over positions")
class MeanOverPositions(Model):
    def norm(self, x: Tensor) -> Tensor:
        return super().norm(x + 1e-2 * x.mean(1, keepdim=True))


@planted(fault, "the mask is ignored")
class MaskIgnored(Model):
    def options(self, mask: Tensor | None, past: int, new: int) -> Options:
        return Options(causal=True)


@planted(fault, "the mask of new tokens alone is read: cached padding is seen")
class CachedPaddingSeen(Model):
    def options(self, mask: Tensor | None, past: int, new: int) -> Options:
        if mask is None:
            return Options(causal=True)
        seen = torch.cat([torch.ones_like(mask[:, :past]), mask[:, past:]], 1)
        return super().options(seen, past, new)


@planted(fault, "positions start at 0 in every step", "BUG-073")
class PositionsRestart(Model):
    def positions(self, ids: Tensor, past: int, mask: Tensor | None) -> Tensor:
        return super().positions(ids, 0, mask)


@planted(fault, "a chunk of new tokens shares the position of its first")
class ChunkSharesPosition(Model):
    def positions(self, ids: Tensor, past: int, mask: Tensor | None) -> Tensor:
        at = super().positions(ids, past, mask)
        return at if past == 0 else at[:, :1].expand(ids.shape)


@planted(fault, "cached positions are one too high")
class PositionsOneTooHigh(Model):
    def positions(self, ids: Tensor, past: int, mask: Tensor | None) -> Tensor:
        return super().positions(ids, past + (past > 0), mask)


class Absolute(Model):
    """With learned absolute positions."""

    max_length: int | None = 64

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        generator = torch.Generator().manual_seed(seed + 1)
        self.table = torch.randn(64, self.width, generator=generator).requires_grad_()

    def run(self, ids: Tensor, cache: Cache, mask: Tensor | None) -> tuple[Tensor, Cache]:
        if self.past(cache) + ids.shape[1] > 64:
            raise ValueError("ids.shape must fit 64 positions; cut them")
        self.extra = self.table[self.absolute(ids, self.past(cache), mask)]
        return super().run(ids, cache, mask)

    def absolute(self, ids: Tensor, past: int, mask: Tensor | None) -> Tensor:
        """Positions in the table."""
        if mask is None:
            return super().positions(ids, past, mask)
        return (mask.long().cumsum(-1) - 1).clamp(min=0)[:, past:]

    def attention(self, h: Tensor, w: dict[str, Tensor], depth: int, positions: Tensor, cache: Cache, grown: Cache,
                  mask: Tensor | None) -> Tensor:
        return super().attention(h + self.extra if depth == 0 else h, w, depth, positions * 0, cache, grown, mask)


@planted(fault, "learned positions are not shifted for left-padded rows", "BUG-071", conventions={"positions": "from_mask"})
class LeftPaddingCounted(Absolute):
    def absolute(self, ids: Tensor, past: int, mask: Tensor | None) -> Tensor:
        return Model.positions(self, ids, past, mask)


@planted(fault, "the first row's positions serve all left-padded rows", "BUG-075", conventions={"positions": "from_mask"})
class PositionsOfFirstRow(Absolute):
    def absolute(self, ids: Tensor, past: int, mask: Tensor | None) -> Tensor:
        right = super().absolute(ids, past, mask)
        return right[:1].expand(right.shape) if len(right) else right


@planted(fault, "positions beyond the table wrap around")
class PositionsWrap(Absolute):
    max_length = 8

    def absolute(self, ids: Tensor, past: int, mask: Tensor | None) -> Tensor:
        return super().absolute(ids, past, mask) % 8


@planted(fault, "new keys are put before the cached ones")
class CacheInWrongOrder(Model):
    def joined(self, old: Tensor | None, new: Tensor) -> Tensor:
        return new if old is None else torch.cat([new, old], 2)


@planted(fault, "the cache forgets its oldest token at every step")
class CacheForgetsOldest(Model):
    def joined(self, old: Tensor | None, new: Tensor) -> Tensor:
        return new if old is None else torch.cat([new[:, :, :0], old.roll(-1, 2), new], 2)


@planted(fault, "the cache has room for 32 tokens: what is older is lost")
class CacheOfThirtyTwo(Model):
    def joined(self, old: Tensor | None, new: Tensor) -> Tensor:
        whole = super().joined(old, new)
        held = torch.arange(whole.shape[2], device=whole.device) >= whole.shape[2] - 32
        return whole if old is None else torch.where(held[:, None], whole, 0.0)


@planted(fault, "the cache of one layer serves all", "BUG-123")
class CacheSharedByLayers(Model):
    def attention(self, h: Tensor, w: dict[str, Tensor], depth: int, positions: Tensor, cache: Cache, grown: Cache,
                  mask: Tensor | None) -> Tensor:
        shared = {f"{d}.{name}": cache[f"0.{name}"] for d in range(self.layers) for name in "kv"} if cache else cache
        return super().attention(h, w, depth, positions, shared, grown, mask)


@planted(fault, "the cache lives in the model: two sequences share it")
class CacheInModel(Model):
    def step(self, ids: Tensor, cache: Cache | None, *, mask: Tensor | None = None) -> tuple[Tensor, Cache]:
        if cache is None:
            self.held: Cache = {}
        fits = self.held and self.held["0.k"].shape[0] == ids.shape[0]
        logits, self.held = self.run(ids, self.held if fits else {}, mask)
        return logits, self.held


@planted(fault, "there is memory for two sequences: the third takes that of the first")
class MemoryOfTwoSequences(Model):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.held: list[Cache] = []

    def step(self, ids: Tensor, cache: Cache | None, *, mask: Tensor | None = None) -> tuple[Tensor, Cache]:
        if cache is None:
            for tensor in self.held.pop(0).values() if len(self.held) == 2 else ():
                tensor.zero_()
        logits, grown = super().step(ids, cache, mask=mask)
        self.held = [grown if one is cache else one for one in self.held]
        if cache is None:
            self.held.append(grown)
        return logits, grown


@planted(fault, "the cache keeps bfloat16")
class CacheInBfloat16(Model):
    def joined(self, old: Tensor | None, new: Tensor) -> Tensor:
        return new if old is None else torch.cat([old.bfloat16().to(new.dtype), new], 2)


@planted(fault, "a step returns the last token's logits for every new token")
class LastLogitsRepeated(Model):
    def step(self, ids: Tensor, cache: Cache | None, *, mask: Tensor | None = None) -> tuple[Tensor, Cache]:
        logits, grown = super().step(ids, cache, mask=mask)
        return logits[:, -1:].expand(logits.shape).clone(), grown


@planted(fault, "batch rows are mixed: logits centred over the batch")
class RowsMixed(Model):
    def head(self, h: Tensor) -> Tensor:
        logits = super().head(h)
        return logits - logits.mean(0, keepdim=True)


@planted(fault, "logits of decoding steps are scaled by 1.01")
class StepLogitsScaled(Model):
    def step(self, ids: Tensor, cache: Cache | None, *, mask: Tensor | None = None) -> tuple[Tensor, Cache]:
        logits, grown = super().step(ids, cache, mask=mask)
        return logits * 1.01, grown


@planted(fault, "the last word is never scored: NaN")
class LastWordUnscored(Model):
    def head(self, h: Tensor) -> Tensor:
        return torch.nn.functional.pad(super().head(h)[..., :-1], (0, 1), value=float("nan"))


@planted(fault, "ids outside the vocabulary wrap around")
class IdsWrap(Model):
    def run(self, ids: Tensor, cache: Cache, mask: Tensor | None) -> tuple[Tensor, Cache]:
        return super().run(ids % self.vocab_size, cache, mask)


@planted(fault, "weights depend on how many models were made, not on the seed alone")
class SeedIgnored(Model):
    made = 0

    def __init__(self, seed: int) -> None:
        SeedIgnored.made += 1
        super().__init__(seed + SeedIgnored.made)


@planted(fault, "a copy draws its weights again")
class CopyDrawnAgain(Model):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.seed = seed

    def __deepcopy__(self, memo: dict[int, Any]) -> CopyDrawnAgain:
        return CopyDrawnAgain(self.seed + 1)


@planted(fault, "the longest sequence seen stretches the positions of later ones", "BUG-122")
class LongestRemembered(Model):
    longest = 4

    def positions(self, ids: Tensor, past: int, mask: Tensor | None) -> Tensor:
        self.longest = max(self.longest, past + ids.shape[1])
        return super().positions(ids, past, mask) * self.longest // 4


@planted(fault, "no gradient to the unembedding", "BUG-211")
class UnembeddingDetached(Model):
    def head(self, h: Tensor) -> Tensor:
        return h @ self.unembed.detach().mT


@planted(benign, "a plain model, cache updated by concatenation")
class Plain(Model):
    pass


@planted(benign, "learned positions counted from the first real token", conventions={"positions": "from_mask"})
class CountedFromMask(Absolute):
    pass


@planted(benign, "a cache of fixed room, written in place")
class CacheOfFixedRoom(Model):
    def joined(self, old: Tensor | None, new: Tensor) -> Tensor:
        if old is None:
            return new
        room = torch.zeros(*new.shape[:2], old.shape[2] + new.shape[2], new.shape[3], dtype=new.dtype, device=new.device)
        room[:, :, : old.shape[2]], room[:, :, old.shape[2] :] = old, new
        return room
