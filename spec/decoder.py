"""What must hold of a stack of layers with cross-attention: DEC-1, DEC-3, EDM-2, XAT-2, and MSK-1 of the stack."""
from __future__ import annotations

from typing import Any

import torch

from assay.cases import Example
from assay.ledger import fact, identical
from assay.properties import Specification
from assay.spec.block_cases import scaled, without_keys
from assay.spec.conduct import add_conduct
from assay.spec.decoder_cases import DecoderCases
from assay.subject import Subject

spec = Specification("decoder", DecoderCases())
conduct = add_conduct(spec)
SOME: dict[str, Any] = {"B": lambda size: size > 0}
SEVERAL: dict[str, Any] = {**SOME, "T": lambda size: size > 1}
BITS = {"row_dependence": "none", "repeatability": "bitwise"}


@spec.holds("DEC-1", "EDM-2", kills=(
    "not_causal", "mask_replaces_causal", "mask_ignored", "memory_mask_ignored", "target_mask_over_memory",
    "cross_attention_causal",
    "cross_attention_left_out", "cross_attention_first", "cross_attention_last", "cross_with_self_weights", "cross_over_target",
    "memory_normalised", "query_from_memory", "norms_swapped", "cross_attention_without_residual", "memory_of_first_sample",
    "memory_in_first_layer_only", "last_memory_position_unread", "layers_reversed"), rests_on=(conduct["form"],))
def output_is_the_formula(decoder: Subject, example: Example) -> None:
    """Masked self-attention, cross-attention over the memory, feed-forward network, each with residual and norm, in this order."""
    assert decoder(**example) == decoder.exact(**example)


@spec.holds("MSK-9", "DEC-1", kills=("memory_mask_of_one_token_ignored",), rests_on=(output_is_the_formula,),
            needs=("mask", "memory_mask", "padding", "empty_rows"), examples=3,
            given={"B": (1, 2), "T": (1, 2), "S": (1, 2), "L": 1, "placement": ("pre", "post"), "mask": "none",
                   "memory_mask": "none"})
def tokens_without_keys_are_right(decoder: Subject, example: Example) -> None:
    """A token that sees no key, or nothing of the memory, gets nothing but the output bias, also where there is only one."""
    d = example.dims
    for name, keys in (("mask", d["T"]), ("memory_mask", d["S"])):
        for mask in without_keys(d["B"], d["T"], keys):
            hidden = example.but(**{name: mask})
            assert decoder(**hidden) == decoder.exact(**hidden)


@spec.holds("DEC-1", kills=("memory_detached",), rests_on=(output_is_the_formula,), gradient=True, examples=6,
            given={**SOME, "ffn": ("swiglu", "mlp")})
def gradients_are_the_formula(decoder: Subject, example: Example) -> None:
    """The gradients of target, memory and every layer's parameters are those of the formula."""
    got, want = decoder.gradients(**example), decoder.exact_gradients(**example)
    for name in got:
        assert got[name] == want[name]


@spec.holds("MSK-1", "DEC-1", kills=("not_causal", "mask_replaces_causal"), rests_on=(conduct["form"],),
            given={**SEVERAL, "ffn": ("swiglu", "mlp")}, conventions=BITS)
def later_targets_do_not_matter(decoder: Subject, example: Example) -> None:
    """Replacing all target tokens after t leaves every output up to t as it was, bit for bit, at every cut."""
    before, fresh = decoder.values(**example), example.values("later targets", *example.y.shape, family="normal")
    for t in range(1, example.y.shape[1]):
        after = decoder.values(**example.but(y=torch.cat([example.y[:, :t], fresh[:, t:]], 1)))
        assert identical(after[:, :t], before[:, :t], witness=bool((after[:, t:] != before[:, t:]).any()))


@spec.holds("XAT-2", kills=("cross_attention_causal", "last_memory_position_unread", "memory_detached", "cross_attention_left_out"),
            rests_on=(conduct["form"],), gradient=True,
            given={**SOME, "memory_mask": ("none", "padding"), "ffn": ("swiglu", "mlp"), "S": (4, 3, 5), "mask": "none"})
def every_target_depends_on_every_real_source(decoder: Subject, example: Example) -> None:
    """The gradient of the first target position's output reaches every unpadded position of the memory, and no padded one."""
    batch, length, width = example.y.shape
    above = torch.zeros(batch, length, width, dtype=example.dtype)
    above[:, 0] = example.values("above", batch, width, family="normal")
    found = decoder.answer(_wrt=("memory",), _upstream=(above,), **example).gradients.get("memory")
    bars = decoder.gradient_bars(**example, wrt=("memory",), upstream=(above,))["memory"]
    sure = (bars.value.abs() > bars.bar).any(-1)
    reached = torch.zeros_like(sure) if found is None else (found != 0).any(-1)
    assert fact(bool(reached[sure].all()), "a position of the memory is not reached", got=f"{int(reached[sure].sum())} positions",
                expected=f"all of {int(sure.sum())}", check="positions reached", decided=bool(sure.any()))
    if "memory_mask" in example and found is not None and not bool(example.memory_mask.all()):
        assert identical(found[~example.memory_mask].double(), 0.0, witness=bool(reached.any()))


@spec.holds("DEC-3", kills=("not_causal", "norms_swapped", "mask_replaces_causal"), rests_on=(conduct["form"],),
            given={**SEVERAL, "placement": ("pre", "sandwich"), "biases": False})
def without_cross_attention_it_is_the_causal_layer(decoder: Subject, example: Example) -> None:
    """With silent cross-attention the memory is unseen, and the stack is that of causal layers with the same weights."""
    silent = example.but(layers=[scaled(params, ("cross.w_o", "cross.b_o"), 0.0) for params in example.layers])
    out = decoder(**silent)
    assert out == decoder.exact(**silent)
    other = silent.but(memory=example.values("another memory", *example.memory.shape, family="normal"))
    assert out == decoder.exact(**other)


@spec.holds("EDM-2", "XAT-1", kills=("memory_in_first_layer_only", "memory_of_first_sample"), rests_on=(conduct["form"],),
            given={"B": (2, 3), "L": (2, 3), "placement": "pre", "biases": False})
def every_layer_reads_the_memory(decoder: Subject, example: Example) -> None:
    """With cross-attention silent in all layers but one, whichever it is, that one reads its own sample's memory."""
    for reader in range(len(example.layers)):
        layers = [params if depth == reader else scaled(params, ("cross.w_o",), 0.0) for depth, params in enumerate(example.layers)]
        one = example.but(layers=layers)
        assert decoder(**one) == decoder.exact(**one)
