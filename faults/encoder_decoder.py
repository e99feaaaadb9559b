"""Planted faults of the encoder–decoder, and unusual ways that are right."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from assay.faults import decoder as decoders
from assay.faults import encoder as encoders
from assay.faults.block import Layer, Params
from assay.registry import benign, fault

NOT_EXPRESSIBLE = {
    "BUG-064": "the shift of labels into decoder inputs lies outside the call",
    "BUG-121": "packed documents, which the call does not have",
}


@dataclass(frozen=True)
class Call:
    """One call."""

    src: Tensor
    tgt: Tensor
    params: Params
    options: dict[str, Any]
    src_mask: Tensor | None
    tgt_mask: Tensor | None

    def entered(self, ids: Tensor, first: int = 0) -> Tensor:
        """Token plus position embedding."""
        table = self.params["embed.weight"]
        if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < len(table):
            raise ValueError(f"ids must lie in 0 … {len(table) - 1}; correct them")
        x, positions = table[ids.long()], self.params.get("pos.weight")
        if positions is None:
            return x
        if ids.shape[1] + first > len(positions):
            raise ValueError(f"ids.shape={tuple(ids.shape)} must fit {len(positions)} positions; cut them")
        return x + positions[first : first + ids.shape[1]]

    def normed(self, name: str, h: Tensor) -> Tensor:
        """The norm of that name, where there is one."""
        if self.params.get(f"{name}.weight") is None:
            return h
        return Layer(h, self.params, **self.options).normed(name, h)

    def at(self, ids: Tensor, depth: int = 0) -> dict[str, Any]:
        """Options for a stack over these ids."""
        positions = self.options["positions"]
        cut = None if positions is None else positions[..., : ids.shape[1]]
        return {**self.options, "positions": cut, "seed": self.options["seed"] + 3 * depth}

    def encoded(self, **changes: Any) -> Tensor:
        """The memory."""
        stack = encoders.Stack(self.entered(self.src), self.params.get("encoder", ()), self.at(self.src), self.src_mask)
        return self.normed("encoder_norm", stack.run(**changes))

    def decoded(self, memory: Tensor, **changes: Any) -> Tensor:
        """The decoder's output."""
        options = self.at(self.tgt, len(self.params.get("encoder", ())))
        stack = decoders.Stack(self.entered(self.tgt), memory, self.params.get("decoder", ()), options, self.tgt_mask,
                               self.src_mask)
        return stack.run(**changes)

    def scored(self, h: Tensor) -> Tensor:
        """Logits."""
        out = self.params.get("unembed.weight")
        return self.normed("final_norm", h) @ (self.params["embed.weight"] if out is None else out).mT


Way = Callable[[Call], Tensor]


def planted(mark: Callable[..., Any], summary: str, origin: str = "", **extra: Any) -> Callable[[Way], Way]:
    """Give a function of a call the signature of the kind, under its own name, and register it."""
    def register(wrong: Way) -> Way:
        def encoder_decoder(
            src: Tensor, tgt: Tensor, params: Params, *, num_heads: int, src_mask: Tensor | None = None,
            tgt_mask: Tensor | None = None, num_kv_heads: int | None = None, placement: str = "pre", norm: str = "rms",
            ffn: str = "swiglu", activation: str = "silu", positions: Tensor | None = None, dropout: float = 0.0,
            training: bool = False, seed: int = 0, eps: float = 1e-6, top_k: int | None = None,
        ) -> Tensor:
            options = {"num_heads": num_heads, "num_kv_heads": num_kv_heads, "placement": placement, "norm": norm, "ffn": ffn,
                       "activation": activation, "positions": positions, "dropout": dropout, "training": training,
                       "seed": seed, "eps": eps, "top_k": top_k}
            return wrong(Call(src, tgt, params, options, src_mask, tgt_mask))

        encoder_decoder.__name__ = encoder_decoder.__qualname__ = wrong.__name__
        encoder_decoder.__module__, encoder_decoder.__doc__ = wrong.__module__, summary
        mark("encoder_decoder", summary=summary, **({"origin": origin} if mark is fault else {}), **extra)(encoder_decoder)
        return wrong

    return register


def right(c: Call) -> Tensor:
    """The right model."""
    return c.scored(c.decoded(c.encoded()))


@planted(fault, "dropout in evaluation too", "BUG-099")
def dropout_in_evaluation(c: Call) -> Tensor:
    return right(replace(c, options={**c.options, "training": True}))


@planted(fault, "no dropout in training")
def dropout_ignored(c: Call) -> Tensor:
    return right(replace(c, options={**c.options, "dropout": 0.0}))


@planted(fault, "the decoder is not causal")
def not_causal(c: Call) -> Tensor:
    return c.scored(c.decoded(c.encoded(), causal=False))


@planted(fault, "the encoder is causal")
def encoder_causal(c: Call) -> Tensor:
    return c.scored(c.decoded(c.encoded(causal=True)))


@planted(fault, "the source mask does not reach the encoder")
def source_mask_missing_in_encoder(c: Call) -> Tensor:
    return c.scored(c.decoded(c.encoded(mask=None)))


@planted(fault, "the source mask does not reach the cross-attention")
def source_mask_missing_in_decoder(c: Call) -> Tensor:
    return c.scored(c.decoded(c.encoded(), memory_mask=None))


@planted(fault, "the target mask is ignored")
def target_mask_ignored(c: Call) -> Tensor:
    return right(replace(c, tgt_mask=None))


@planted(fault, "the decoder reads the embedded source: the encoder is skipped")
def encoder_skipped(c: Call) -> Tensor:
    return c.scored(c.decoded(c.entered(c.src)))


@planted(fault, "each decoder layer reads the encoder layer of its depth")
def layers_paired(c: Call) -> Tensor:
    y = c.entered(c.tgt)
    depths = len(c.params.get("encoder", ()))
    for depth, params in enumerate(c.params.get("decoder", ())):
        part = replace(c, params={**c.params, "encoder": c.params.get("encoder", ())[: depth + 1]})
        options = c.at(c.tgt, depths + depth)
        y = decoders.Stack(y, part.encoded(), [params], options, c.tgt_mask, c.src_mask).run()
    return c.scored(y)


@planted(fault, "the memory depends on the target: its mean is added")
def memory_depends_on_target(c: Call) -> Tensor:
    return c.scored(c.decoded(c.encoded() + c.entered(c.tgt).mean(1, keepdim=True)))


@planted(fault, "every sample reads the first sample's memory")
def memory_of_first_sample(c: Call) -> Tensor:
    memory = c.encoded()
    return c.scored(c.decoded(memory[:1].expand(memory.shape) if len(memory) else memory))


@planted(fault, "no final norm")
def final_norm_left_out(c: Call) -> Tensor:
    params = {name: w for name, w in c.params.items() if not name.startswith("final_norm")}
    return right(replace(c, params=params))


@planted(fault, "the separate unembedding is ignored: tied to the embedding")
def unembedding_tied(c: Call) -> Tensor:
    return right(replace(c, params={name: w for name, w in c.params.items() if name != "unembed.weight"}))


@planted(fault, "target inputs shifted by one inside")
def target_shifted(c: Call) -> Tensor:
    return right(replace(c, tgt=c.tgt.roll(1, 1)))


@planted(fault, "target positions start where the source ends")
def target_positions_continue(c: Call) -> Tensor:
    class Late(Call):
        def entered(self, ids: Tensor, first: int = 0) -> Tensor:
            return super().entered(ids, 1 if ids is self.tgt and self._room(ids) else 0)

        def _room(self, ids: Tensor) -> bool:
            table = self.params.get("pos.weight")
            return table is not None and ids.shape[1] < len(table)

    return right(Late(**vars(c)))


@planted(fault, "position embeddings are left out")
def positions_left_out(c: Call) -> Tensor:
    return right(replace(c, params={name: w for name, w in c.params.items() if name != "pos.weight"},
                         options={**c.options, "positions": None}))


@planted(fault, "log-probabilities in place of logits")
def log_probabilities(c: Call) -> Tensor:
    return torch.log_softmax(right(c), -1)


@planted(fault, "only the last position is scored, for all")
def last_position_for_all(c: Call) -> Tensor:
    return right(c)[:, -1:].expand(-1, c.tgt.shape[1], -1).clone()


@planted(fault, "no gradient to the encoder")
def encoder_detached(c: Call) -> Tensor:
    return c.scored(c.decoded(c.encoded().detach()))


_MEMORIES: dict[tuple[object, ...], Tensor] = {}


@planted(fault, "the memory of the first source of a shape is kept")
def memory_remembered(c: Call) -> Tensor:
    memory = c.encoded()
    return c.scored(c.decoded(_MEMORIES.setdefault((memory.shape, memory.dtype), memory.detach())))


@planted(benign, "sample by sample")
def sample_by_sample(c: Call) -> Tensor:
    p = c.options["positions"]
    if not len(c.src) or c.options["training"] or (p is not None and p.dim() == 2):
        return right(c)
    rows = [right(replace(c, src=c.src[b : b + 1], tgt=c.tgt[b : b + 1],
                          src_mask=None if c.src_mask is None else c.src_mask[b : b + 1],
                          tgt_mask=None if c.tgt_mask is None else c.tgt_mask[b : b + 1])) for b in range(len(c.src))]
    return torch.cat(rows)
