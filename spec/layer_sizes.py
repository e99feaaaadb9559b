"""Sizes beyond those that the other properties draw, of layers, embeddings, routers, losses and filters.

One axis at a time is long, the others are short, and what holds there is what the kind's own properties say of usual sizes.
"""
from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from assay.spec import (
    block,
    cross_entropy,
    decoder,
    embedding,
    encoder,
    encoder_decoder,
    feed_forward,
    gated_feed_forward,
    input_embedding,
    lm_loss,
    load_balancing_loss,
    logits_filter,
    moe,
    patchify,
    policy_loss,
    preference_loss,
    router,
    router_z_loss,
    sigmoid_router,
    unembedding,
)
from assay.spec.larger import Check, Larger
from assay.spec.logits_filter_cases import agree as filtered_right

Layer = functools.partial(Larger, rests_on="results_have_the_right_form", layout="transposed", examples=2)
MANY, WIDE = (65, 130, 300), (130, 257, 513)
# Some row, or token, counts: a mean over none is NaN, and its gradient anything.
COUNTED, PROMPTED = ("none", "some", "first"), ("none", "some", "zero")


def _feed_forward() -> Sequence[Larger]:
    smooth = feed_forward.SMOOTH_PLACES[:2]  # no token is exactly 0, where relu has no gradient
    short: Mapping[str, Any] = {"B": 1, "C": (2, 1, 3), "F": (3, 2), "family": smooth}
    rows = []
    for kind, statement in ((feed_forward, "FFN-1"), (gated_feed_forward, "GLU-1")):
        checks = (kind.output_is_the_formula, kind.gradients_are_the_formula)
        rows += [
            Layer(kind.spec, "many_tokens_are_right", "Some hundred tokens give the formula, and all count in the gradients.",
                  statement, ("beyond_64_tokens",), {**short, "T": MANY}, *checks),
            Layer(kind.spec, "many_hidden_units_are_right", "Some hundred hidden units all count, in the output and in the "
                  "gradients.", statement, ("beyond_128_hidden_units",), {**short, "T": (1, 2), "F": WIDE}, *checks),
            Layer(kind.spec, "wide_tokens_are_right", "Tokens of some hundred features give the formula, and its gradients.",
                  statement, ("beyond_128_features",), {**short, "T": (1, 2), "C": WIDE}, *checks),
        ]
    return rows


def _experts() -> Sequence[Larger]:
    few: Mapping[str, Any] = {"C": (2, 3), "E": (4, 3), "K": (2, 1)}
    routed = (router.agree, router.gradient_is_the_formula)
    mixed, grouped = (moe.agree, moe.gradients_are_the_formula), (sigmoid_router.agree, sigmoid_router.gradient_is_the_formula)
    mixture = functools.partial(Layer, moe.spec, conventions=moe.KEEPS)
    tokens = "Some hundred tokens are routed, each by its own scores."
    choices = "Of some hundred experts the best are chosen, with the weights of the formula."
    return (
        Layer(router.spec, "many_tokens_are_right", tokens, "MOE-1", ("beyond_64_tokens",), {**few, "N": MANY}, *routed),
        Layer(router.spec, "many_experts_are_right", choices, "MOE-3", ("beyond_64_experts",),
              {"N": (1, 3), "C": (4, 8), "E": (65, 130, 257), "K": (2, 8)}, *routed),
        Layer(sigmoid_router.spec, "many_tokens_are_right", tokens, "X-SIGR-2", ("beyond_64_tokens",),
              {"E": (4, 8), "K": (2, 1), "N": MANY}, *grouped),
        Layer(sigmoid_router.spec, "many_experts_are_right", choices, "X-SIGR-1", ("beyond_64_experts",),
              {"N": (1, 3), "E": (72, 128, 256), "K": (2, 8)}, *grouped),
        mixture("many_tokens_are_right", "Some hundred tokens get their experts' outputs, however many want one.", "MOE-7",
                ("beyond_64_tokens", "capacity_of_fifty"), {**few, "B": 1, "F": (2, 3), "T": MANY}, *mixed),
        mixture("many_experts_are_right", "Of up to 130 experts the best are mixed, and get gradients.", "MOE-1",
                ("beyond_32_experts",), {"B": 1, "T": (1, 3), "C": (4, 8), "F": 2, "E": (33, 64, 130), "K": 2}, *mixed),
    )


def _router_losses() -> Sequence[Larger]:
    rows = []
    for kind, statement in ((load_balancing_loss, "X-LBL-1"), (router_z_loss, "X-ZL-1")):
        checks = (kind.output_is_the_formula, kind.gradient_is_the_formula)
        rows += [
            Layer(kind.spec, "many_tokens_are_right", "Some hundred tokens all count, in loss and gradient.", statement,
                  ("beyond_256_tokens",), {"N": (300, 513, 1025), "E": (4, 3)}, *checks),
            Layer(kind.spec, "many_experts_are_right", "Some hundred experts all count, in loss and gradient.", statement,
                  ("beyond_64_experts",), {"N": (2, 5), "E": (65, 128, 257)}, *checks),
        ]
    return rows


def _ends() -> Sequence[Larger]:
    picked = (embedding.ids_pick_rows, embedding.gradient_of_a_row_is_the_sum_over_its_uses)
    added = (input_embedding.input_is_token_row_plus_position_row, input_embedding.gradients_sum_over_uses)
    scored = (unembedding.logits_are_the_formula, unembedding.gradients_are_the_formula)
    return (
        Layer(embedding.spec, "many_ids_are_looked_up", "Some hundred ids are looked up, and all uses of a row have gradients.",
              "EMB-2", ("beyond_64_ids",), {"B": 1, "T": (65, 300, 1025), "V": (5, 7, 300), "C": (2, 3), "axes": (2, 1)}, *picked),
        Layer(embedding.spec, "wide_rows_are_looked_up", "Rows of some hundred channels come whole.", "EMB-2",
              ("beyond_128_channels",), {"B": 1, "T": (2, 3), "V": (3, 5), "C": WIDE}, *picked),
        Layer(input_embedding.spec, "many_tokens_are_right", "Some hundred tokens are embedded, each at its position.", "EMB-1",
              ("beyond_64_tokens",), {"B": (1, 2), "T": MANY, "C": (2, 3), "room": (3, 20)}, *added),
        Layer(unembedding.spec, "many_words_are_scored", "Of some hundred words every one has its logit and gradient.", "LM-1",
              ("beyond_128_words",), {"B": 1, "T": (1, 2), "C": (4, 5), "V": (130, 257, 1025)}, *scored),
        Layer(unembedding.spec, "many_states_are_scored", "Some hundred states are all scored, and count in the gradients.",
              "LM-1", ("beyond_64_states",), {"B": 1, "T": MANY, "C": (2, 4), "V": (3, 5), "axes": (3, 2)}, *scored),
        Layer(unembedding.spec, "wide_states_are_scored", "States of some hundred features are scored by all of them.", "LM-1",
              ("beyond_128_features",), {"B": 1, "T": (1, 2), "C": WIDE, "V": (3, 5)}, *scored),
        Layer(logits_filter.spec, "many_rows_are_filtered", "With some hundred rows every one is filtered by itself.", "GEN-4",
              ("beyond_16_rows",), {"N": (17, 65, 130), "V": (5, 8)}, filtered_right),
        Layer(logits_filter.spec, "many_words_are_filtered", "With some hundred words those that stay are the most probable.",
              "GEN-4", ("beyond_256_words",), {"N": (1, 2), "V": (300, 513, 1025)}, filtered_right),
        Layer(patchify.spec, "many_patches_are_cut", "Images of some hundred patches are cut as the formula says.", "VIT-1",
              ("beyond_32_pixels_high",), {"B": 1, "Ci": (1, 2), "rows": (17, 40), "columns": (18, 33), "P": (2, 1, 3)},
              patchify.patches_are_the_formula, patchify.gradient_goes_back_to_the_pixel),
        Layer(patchify.spec, "large_patches_are_cut", "Patches of up to 16 pixels a side, or of many channels, are cut so too.",
              "VIT-1", ("beyond_4_pixels_a_side", "beyond_8_channels"),
              {"B": 1, "Ci": (9, 17), "rows": (1, 2), "columns": (1, 3), "P": (16, 7, 8)},
              patchify.patches_are_the_formula, patchify.gradient_goes_back_to_the_pixel),
    )


def _losses() -> Sequence[Larger]:
    def checks(kind: Any) -> tuple[Check, Check]:
        return kind.output_is_the_formula, kind.gradient_is_the_formula

    return (
        Layer(cross_entropy.spec, "many_rows_are_right", "Some hundred rows all count, in loss and gradient.", "CE-1",
              ("beyond_128_rows",), {"N": (130, 257, 300), "V": (3, 5), "ignored": COUNTED},
              *checks(cross_entropy)),
        Layer(cross_entropy.spec, "many_words_are_right", "Some thousand words all count, in loss and gradient.", "CE-1",
              ("beyond_2048_words",), {"N": 1, "V": (2050, 3001), "ignored": COUNTED}, *checks(cross_entropy)),
        Layer(lm_loss.spec, "many_tokens_are_right", "Some hundred tokens all count, in loss and gradient.", "CE-1",
              ("beyond_64_tokens",), {"B": (1, 2), "T": MANY, "V": (3, 2), "prompt_lengths": PROMPTED},
              *checks(lm_loss)),
        Layer(lm_loss.spec, "many_samples_are_right", "A batch of up to 40 sequences counts in full.", "CE-1",
              ("beyond_8_samples",), {"B": (9, 17, 40), "T": (3, 5), "V": (3, 4), "prompt_lengths": PROMPTED},
              *checks(lm_loss)),
        Layer(preference_loss.spec, "many_pairs_are_right", "Some hundred pairs all count, in loss and gradient.", "RL-1",
              ("beyond_256_pairs",), {"N": (300, 513, 1025)}, *checks(preference_loss)),
        Layer(policy_loss.spec, "many_tokens_are_right", "Some hundred tokens all count, in loss and gradient.", "RL-2",
              ("beyond_128_tokens",), {"B": (1, 2), "T": (130, 257, 300)}, *checks(policy_loss)),
        Layer(policy_loss.spec, "many_samples_are_right", "A batch of up to 40 sequences counts in full.", "RL-2",
              ("beyond_8_samples",), {"B": (9, 17, 40), "T": (2, 3)}, *checks(policy_loss)),
    )


def _models() -> Sequence[Larger]:
    narrow: Mapping[str, Any] = {"B": 1, "H": 1, "G": 1, "D": 4, "F": 1, "ffn": ("swiglu", "mlp"), "eps": 1e-5}
    one: Mapping[str, Any] = {**narrow, "L": 1}

    def checks(kind: Any) -> tuple[Check, Check]:
        return kind.output_is_the_formula, kind.gradients_are_the_formula

    tokens = "Some dozen tokens give the formula, and its gradients."
    return (
        Layer(block.spec, "many_tokens_are_right", tokens, "BLK-1", ("beyond_17_tokens",), {**narrow, "T": (33, 65)},
              *checks(block)),
        Layer(block.spec, "many_heads_are_right", "With up to 12 heads every one of them is the formula's.", "BLK-1",
              ("beyond_4_heads",), {**narrow, "H": (5, 8, 12), "G": (1, 4), "T": (2, 3)}, *checks(block)),
        Layer(encoder.spec, "many_tokens_are_right", tokens, "ENC-1", ("beyond_16_tokens",), {**one, "T": (17, 33)},
              *checks(encoder)),
        Layer(decoder.spec, "many_tokens_are_right", tokens, "DEC-1", ("beyond_16_tokens",), {**one, "T": (17, 33), "S": (2, 3)},
              *checks(decoder)),
        Layer(decoder.spec, "long_memories_are_read", "A memory of some dozen positions is read to its end.", "XAT-1",
              ("beyond_16_of_memory",), {**one, "T": (1, 2), "S": (17, 33, 65)}, *checks(decoder)),
        Layer(encoder_decoder.spec, "many_tokens_are_right", tokens, "EDM-1", ("beyond_16_tokens",),
              {**one, "T": (17, 20), "S": (17, 33), "V": (7, 13)}, *checks(encoder_decoder)),
    )


TABLE: tuple[Larger, ...] = (*_feed_forward(), *_experts(), *_router_losses(), *_ends(), *_losses(), *_models())
for _one in TABLE:
    _one.add()
