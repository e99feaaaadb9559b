"""Sizes beyond those that the other properties draw: more heads, rows and columns, wider heads, longer sequences.

A kernel cuts its work at sizes of its own: 128 channels, 64 heads, 256 keys, 16 rows a partial sum. What lies beyond the first cut
is what these properties look at, one axis at a time, the others small, so that an example stays cheap.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from assay.properties import Specification
from assay.spec import (
    add_rms_norm,
    alibi,
    attention,
    batch_norm,
    blockwise_attention,
    layer_norm,
    multi_head_attention,
    packed_attention,
    paged_attention,
    rms_norm,
    rotary,
    sink_attention,
    sinusoidal,
    softmax,
)
from assay.spec.larger import Larger
from assay.spec.paged_attention_cases import TOKENS

TILES = (64, 63, 65, 128)
HEADS, WIDE, LONG = (9, 40), (96, 256), (513,)
# Values whose bars stay small over many channels, also in bfloat16.
TAME: Mapping[str, Any] = {"family": ("positive", "small")}
TINY: Mapping[str, Any] = {"B": 1, "H": 1, "D": 2, "Dv": 2}
UNMASKED: Mapping[str, Any] = {"mask": "none", "bias": "none"}


def _attention(spec: Specification, statement: str, rests_on: str) -> Sequence[Larger]:
    """Kinds of attention over dense keys."""
    few: Mapping[str, Any] = {"Tq": 2, "Tk": 3, "D": 2, "Dv": 2}
    free = {"lengths": "free"} if "lengths" in spec.cases.flags else {}
    unmasked = {name: choice for name, choice in UNMASKED.items() if name in spec.cases.flags}
    return (
        Larger(spec, "many_heads_are_right", "With up to 40 heads every one is the formula's, and so are its gradients.",
               statement, ("beyond_8_heads",), {**few, **unmasked, "B": 1, "H": HEADS, "G": (1, *HEADS)}, rests_on=rests_on),
        Larger(spec, "many_samples_are_right", "With up to 17 samples every one is the formula's, and so are its gradients.",
               statement, ("beyond_8_samples",), {**few, **unmasked, "B": (9, 17), "H": (1, 2)}, rests_on=rests_on),
        Larger(spec, "wide_heads_are_right", "Heads of up to 256 channels give the formula, and its gradients.", statement,
               ("beyond_128_channels",), {**free, **unmasked, **TAME, "B": 1, "H": (2, 1), "Tq": 2, "Tk": 3, "D": WIDE, "Dv": WIDE},
               rests_on=rests_on),
        Larger(spec, "many_keys_are_right", "Over some hundred keys every output is the formula's, and so are the gradients.",
               statement, ("beyond_256_keys",), {**TINY, **free, **unmasked, "Tq": (2, 1), "Tk": LONG},
               rests_on=rests_on, needs=("cross_lengths",)),
    )


def _decoding(spec: Specification, statement: str, kills: tuple[str, ...]) -> Sequence[Larger]:
    """What kernels have paths of their own for: one query, and lengths that fill their tiles."""
    uncapped = {"softcap": None} if "softcap" in spec.cases.flags else {}
    small: Mapping[str, Any] = {"B": 1, "H": (1, 2), "D": 2, "Dv": (2, 4)}
    return (
        Larger(spec, "one_query_over_many_keys_is_right", "A single query, as in decoding, gives the formula with every option.",
               statement, kills[:1], {**small, "Tq": 1, "Tk": (257, 65), "lengths": "free"}, needs=("cross_lengths",)),
        Larger(spec, "causal_squares_beside_tiles_are_right", "Causal attention over as many queries as keys gives the formula at, "
               "below and above multiples of 64.", statement, kills[1:],
               {"B": 1, "H": 1, "D": 2, "Dv": 2, "Tq": TILES, "Tk": TILES, "lengths": "equal", "causal": True, **uncapped},
               needs=("causal",)),
    )


def _rows(spec: Specification, statement: str) -> Sequence[Larger]:
    """Norms over the last axis."""
    return (
        Larger(spec, "many_rows_are_right", "With some hundred tokens every one is normalised, and all of them count in the "
               "gradients of the weights.", statement, ("beyond_64_rows",),
               {"rank": ("tokens", "batch"), "T": (65, 130, 300), "B": 1, "C": (16, 9)}),
        Larger(spec, "wide_rows_are_right", "Tokens of some thousand features give the formula, and its gradients.", statement,
               ("beyond_2048_columns",), {"rank": ("tokens", "vector"), "T": 1, "B": 1, "C": (2050, 4099)}),
    )


def _others() -> Sequence[Larger]:
    short: Mapping[str, Any] = {"B": 1, "H": (1, 2), "T": (1, 2)}
    seen: Mapping[str, Any] = {"mask": "none", "key_mask": "none"}  # no query without a key
    return (
        Larger(softmax.spec, "many_rows_are_right", "With some hundred rows every one of them is the formula's.", "SM-2",
               ("beyond_64_rows",), {"B": (65, 130, 300), "C": (2, 3, 5), "axis": ("last", "first"), "masked": ("none", "some")}),
        Larger(softmax.spec, "wide_rows_are_right", "Rows of some thousand entries give the formula, and its gradient.", "SM-2",
               ("beyond_2048_columns",),
               {"B": (1, 2), "C": (2050, 4099, 3000), "axis": ("last", "first"), "masked": ("none", "some")}),
        Larger(paged_attention.spec, "many_tokens_are_right", "Sequences of hundreds of tokens, in more than 256 blocks, give "
               "attention over exactly their tokens.", "PAG-1", ("beyond_256_blocks", "beyond_64_tokens", "beyond_512_tokens"),
               {"B": 1, "H": 1, "D": (2, 4), "Dv": (2, 4), "S": (1, 2, 16), "T": (129, 300, TOKENS), "lengths": ("full", "mixed")},
               rests_on="output_is_attention_over_the_blocks"),
        Larger(paged_attention.spec, "many_heads_are_right", "With up to 40 heads every one of them is the formula's.", "PAG-1",
               ("beyond_8_heads",), {"B": 1, "H": HEADS, "T": (3, 5), "D": 2, "Dv": 2},
               rests_on="output_is_attention_over_the_blocks"),
        Larger(paged_attention.spec, "many_sequences_are_right", "With up to 17 sequences every one of them is the formula's.",
               "PAG-1", ("beyond_8_sequences",), {"B": (9, 17), "H": (1, 2), "T": (3, 5), "D": 2, "Dv": 2},
               rests_on="output_is_attention_over_the_blocks"),
        Larger(paged_attention.spec, "wide_heads_are_right", "Heads of up to 256 channels give the formula.", "PAG-1",
               ("beyond_128_channels",), {**TAME, "B": 1, "H": (1, 2), "T": (3, 5), "D": WIDE, "Dv": WIDE},
               rests_on="output_is_attention_over_the_blocks"),
        Larger(packed_attention.spec, "many_sequences_are_right", "With up to 17 sequences each attends within itself.", "X-PACK-1",
               ("beyond_8_sequences",), {"B": (9, 17), "H": (1, 2), "Tq": (2, 3), "Tk": (2, 3, 4), "D": 2, "Dv": 2}),
        Larger(packed_attention.spec, "many_keys_are_right", "Sequences of some hundred keys give the formula, and its gradients.",
               "X-PACK-1", ("beyond_128_keys",),
               {"B": (1, 2), "H": 1, "Tq": (2, 3), "Tk": (129, 300, 513), "D": 2, "Dv": 2, "keys": "other",
                "lengths": ("equal", "mixed")}, needs=("cross_lengths",)),
        Larger(multi_head_attention.spec, "many_heads_are_right", "With up to 24 heads every one is the formula's, and so are the "
               "gradients.", "MHA-1", ("beyond_8_heads",),
               {**seen, "B": 1, "H": (10, 24, 16), "G": "H", "Tq": (2, 1), "Tk": "Tq", "D": (2, 1)}),
        Larger(multi_head_attention.spec, "many_tokens_are_right", "Some hundred tokens give the formula, and its gradients.",
               "MHA-1", ("beyond_64_tokens",),
               {**seen, "B": 1, "H": 2, "G": "H", "Tq": (65, 100), "Tk": "Tq", "D": 2, "context": False}),
        Larger(rotary.spec, "many_heads_are_turned", "With up to 33 heads every one of them is turned.", "ROPE-1",
               ("beyond_4_heads",), {"B": 1, "H": (5, 8, 33), "T": (1, 2), "D": (4, 2)}),
        Larger(rotary.spec, "many_tokens_are_turned", "Some hundred tokens are turned, each by its own position.", "ROPE-1",
               ("beyond_32_tokens",), {"B": 1, "H": 1, "T": (33, 130, 513), "D": (4, 2)}),
        Larger(rotary.spec, "wide_heads_are_turned", "Heads of up to 512 channels are turned throughout.", "ROPE-1",
               ("beyond_128_channels",), {**short, "D": (130, 256, 512)}),
        Larger(sinusoidal.spec, "wide_tables_are_right", "Tables of 2048 channels and some hundred positions are the formula's.",
               "SIN-1", ("beyond_512_channels", "beyond_128_positions"), {"T": (300, 1), "C": (514, 2048)},
               rests_on="table_is_the_formula"),
        Larger(alibi.spec, "many_heads_have_their_slopes", "With up to 130 heads each has the slope of the formula.", "ALI-1",
               ("beyond_64_heads",), {"H": (40, 64, 65, 96, 130), "Tq": (1, 3), "Tk": (3, 5)}, output=alibi.agree,
               rests_on="bias_is_the_formula"),
        Larger(batch_norm.spec, "many_rows_are_right", "A batch of some hundred rows counts in full in the statistics, and in the "
               "gradients.", "BN-3", ("beyond_256_rows",),
               {"N": (257, 300, 513), "C": (2, 3)}, rests_on="output_is_the_formula_in_training"),
        Larger(batch_norm.spec, "many_features_are_right", "With some hundred features each is normalised by its own statistics.",
               "BN-3", ("beyond_128_features",), {"N": (2, 3), "C": (129, 300)}, rests_on="output_is_the_formula_in_training"),
    )


TABLE: tuple[Larger, ...] = (
    *_decoding(attention.spec, "ATT-1", ("decoding_ignores_window", "last_row_of_full_tiles")),
    *_decoding(sink_attention.spec, "X-SINK-1", ("decoding_ignores_window", "last_row_of_full_tiles")),
    *_attention(attention.spec, "ATT-1", "output_is_the_formula"),
    *_attention(blockwise_attention.spec, "FLA-1", "output_is_attention"),
    *_attention(sink_attention.spec, "X-SINK-1", "output_is_the_formula"),
    *_rows(layer_norm.spec, "LN-1"), *_rows(rms_norm.spec, "RMS-1"), *_rows(add_rms_norm.spec, "X-ADDN-2"), *_others(),
)
for _one in TABLE:
    _one.add()
