"""Sizes beyond those that the other properties draw, for the kinds beyond the contract: packed sequences, normalised queries and
keys, latents, and experts with limited room."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from assay.spec import capacity_moe, latent_attention, packed_attention, qk_norm_attention
from assay.spec.larger import Larger
from assay.spec.sizes import HEADS, LONG, TAME, WIDE

TINY: Mapping[str, Any] = {"B": 1, "H": 1, "D": 2, "Dv": 2}
HEADS_SAID = "With up to 40 heads every one is the formula's, and so are its gradients."
WIDE_SAID = "Heads of up to 256 channels give the formula, and its gradients."


def _packed() -> Sequence[Larger]:
    spec, statement = packed_attention.spec, "X-PACK-1"
    few: Mapping[str, Any] = {"B": (1, 2), "Tq": (2, 3), "Tk": (3, 2)}
    return (
        Larger(spec, "many_queries_are_right", "Sequences of some hundred queries give the formula, and its gradients.", statement,
               ("beyond_128_queries",), {**TINY, "B": (1, 2), "Tq": (129, 300), "Tk": (3, 2), "causal": False, "keys": "other",
                                         "lengths": ("equal", "long_first")}, needs=("cross_lengths",)),
        Larger(spec, "long_sequences_are_causal_within", "Causal sequences beside one tile of 64 tokens give the formula, and its "
               "gradients.", statement, ("beyond_64_queries",), {**TINY, "B": (1, 2), "D": 1, "Dv": 1, "Tq": (65, 77),
                                                                 "causal": True, "keys": "self", "lengths": "equal"},
               needs=("causal",)),
        Larger(spec, "many_heads_are_right", HEADS_SAID, statement, ("beyond_8_heads",),
               {**few, "H": HEADS, "G": (1, *HEADS), "D": 2, "Dv": 2}),
        Larger(spec, "wide_heads_are_right", WIDE_SAID, statement, ("beyond_128_channels",),
               {**few, **TAME, "B": 1, "H": (2, 1), "D": WIDE, "Dv": WIDE}),
    )


def _normalised() -> Sequence[Larger]:
    spec, statement = qk_norm_attention.spec, "X-QKN-1"
    few: Mapping[str, Any] = {"Tq": 2, "Tk": 3, "D": 2, "Dv": 2, "eps": 1e-2}  # a token of zeros has a gradient within float16
    return (
        Larger(spec, "many_heads_are_right", HEADS_SAID, statement, ("beyond_8_heads",),
               {**few, "B": 1, "H": HEADS, "G": (1, *HEADS)}),
        Larger(spec, "many_samples_are_right", "With up to 17 samples every one is the formula's, and so are its gradients.",
               statement, ("beyond_8_samples",), {**few, "B": (9, 17), "H": (1, 2)}),
        Larger(spec, "wide_heads_are_right", WIDE_SAID, statement, ("beyond_128_channels",),
               {**few, **TAME, "B": 1, "H": (2, 1), "D": (256, 130), "Dv": WIDE, "scale": 0.03}, needs=("scale",)),
        Larger(spec, "many_keys_are_right", "Over some hundred keys every output is the formula's, and so are the gradients.",
               statement, ("beyond_256_keys",),
               {**TINY, "Tq": (2, 1), "Tk": LONG, "positions": "none", "lengths": "free", "eps": 1e-2},
               needs=("cross_lengths",)),
        Larger(spec, "many_tokens_are_right", "Some dozen tokens, turned by their positions, give the formula, and its gradients.",
               statement, ("beyond_32_tokens",), {**TINY, "Tq": (33, 65), "Tk": (33, 65), "positions": ("index", "offset", "batch"),
                                                  "lengths": "equal", "eps": 1e-2}, needs=("positions",)),
    )


def _latent() -> Sequence[Larger]:
    spec, statement = latent_attention.spec, "X-MLA-1"
    narrow: Mapping[str, Any] = {"B": 1, "C": (3, 4), "D": 1, "R": 2, "Dv": (1, 2)}
    return (
        Larger(spec, "many_tokens_are_right", "Some dozen tokens give the formula, and its gradients.", statement,
               ("beyond_32_tokens",), {**narrow, "H": 1, "T": (33, 40), "Lk": 2, "Lq": 2}, layout="transposed"),
        Larger(spec, "many_heads_are_right", "With up to 16 heads every one is the formula's, and so are its gradients.", statement,
               ("beyond_8_heads",), {**narrow, "H": (9, 16), "T": (2, 3), "Lk": (2, 3), "Lq": 2}, layout="transposed"),
        Larger(spec, "wide_latents_are_right", "Latents of some hundred numbers are normalised and expanded whole.", statement,
               ("beyond_128_of_latent",), {**narrow, "family": TAME["family"], "H": (1, 2), "T": (2, 3), "Lk": (130, 257), "Lq": 2},
               layout="transposed"),
    )


def _crowded() -> Sequence[Larger]:
    spec, statement = capacity_moe.spec, "X-CAP-1"
    checks = (capacity_moe.agree, capacity_moe.gradients_are_the_formula)
    few: Mapping[str, Any] = {"B": (1, 2), "C": (2, 3), "F": (2, 3), "K": (2, 1), "family": capacity_moe.PLAIN[:2]}
    return (
        Larger(spec, "many_tokens_are_right", "Of some hundred tokens each expert takes the first, as many as it has room for.",
               statement, ("beyond_64_tokens", "room_for_thirty"), {**few, "E": (4, 3), "T": (65, 100), "capacity": (40, 1000, 2)},
               *checks, layout="transposed"),
        Larger(spec, "many_experts_are_right", "Of up to 65 experts the best are asked while they have room.", statement,
               ("beyond_16_experts",), {**few, "C": (4, 8), "T": (3, 5), "E": (17, 33, 65)}, *checks, layout="transposed"),
    )


TABLE: tuple[Larger, ...] = (*_packed(), *_normalised(), *_latent(), *_crowded())
for _one in TABLE:
    _one.add()
