"""What must hold of an encoder–decoder from ids to logits: EDM-1, EDM-2, LM-1, LM-3."""
from __future__ import annotations

from typing import Any

import torch

from assay.cases import Example
from assay.ledger import identical
from assay.properties import Specification
from assay.spec.conduct import add_conduct
from assay.spec.decoder_cases import TranslatorCases
from assay.subject import Subject

spec = Specification("encoder_decoder", TranslatorCases())
conduct = add_conduct(spec)
SOME: dict[str, Any] = {"B": lambda size: size > 0}
SEVERAL: dict[str, Any] = {**SOME, "T": lambda size: size > 1}
BITS = {"row_dependence": "none", "repeatability": "bitwise"}


@spec.holds("EDM-1", "EDM-2", "LM-1", kills=(
    "not_causal", "encoder_causal", "source_mask_missing_in_encoder", "source_mask_missing_in_decoder", "target_mask_ignored",
    "encoder_skipped", "layers_paired", "memory_depends_on_target", "memory_of_first_sample", "final_norm_left_out",
    "unembedding_tied", "target_shifted", "target_positions_continue", "positions_left_out", "log_probabilities",
    "last_position_for_all", "memory_remembered"), rests_on=(conduct["form"],))
def output_is_the_formula(model: Subject, example: Example) -> None:
    """The source is encoded once, the target decoded against it, and every word scored at every target position."""
    assert model(**example) == model.exact(**example)


@spec.holds("EDM-1", kills=("encoder_detached",), rests_on=(output_is_the_formula,), gradient=True, examples=5,
            given={**SOME, "ffn": ("swiglu", "mlp")})
def gradients_are_the_formula(model: Subject, example: Example) -> None:
    """The gradients of the parameters of encoder, decoder and both ends are those of the formula."""
    got, want = model.gradients(**example), model.exact_gradients(**example)
    for name in got:
        assert got[name] == want[name]


@spec.holds("EDM-1", "MSK-1", kills=("not_causal", "memory_depends_on_target", "last_position_for_all"),
            rests_on=(conduct["form"],),
            given={**SEVERAL, "ffn": ("swiglu", "mlp"), "V": (7, 13)}, conventions=BITS)
def later_targets_do_not_matter(model: Subject, example: Example) -> None:
    """Logits at target position t depend on target inputs 0 … t and on none later, bit for bit, at every cut."""
    before = model.values(**example)
    fresh = torch.randint(0, example.dims["V"], example.tgt.shape, generator=example.generator("later targets"))
    for t in range(1, example.tgt.shape[1]):
        after = model.values(**example.but(tgt=torch.cat([example.tgt[:, :t], fresh[:, t:]], 1)))
        assert identical(after[:, :t], before[:, :t], witness=bool((after[:, t:] != before[:, t:]).any()))


@spec.holds("EDM-1", kills=("encoder_causal", "source_mask_missing_in_decoder"), rests_on=(conduct["form"],),
            given={**SOME, "S": (4, 3, 5), "V": (7, 13), "src_mask": ("none", "padding"), "ffn": ("swiglu", "mlp")})
def every_real_source_token_counts(model: Subject, example: Example) -> None:
    """Replacing one source token, the last real one too, gives the logits of the new source; a padded one changes nothing."""
    for at in (0, example.src.shape[1] - 1):
        other = example.src.clone()
        other[:, at] = (other[:, at] + 1) % example.dims["V"]
        assert model(**example.but(src=other)) == model.exact(**example.but(src=other))
    if "src_mask" in example and not bool(example.src_mask.all()):
        padded = torch.where(example.src_mask, example.src, (example.src + 1) % example.dims["V"])
        assert model(**example.but(src=padded)) == model.exact(**example)


@spec.holds("LM-3", "EDM-2", kills=("memory_of_first_sample",), rests_on=(conduct["form"],), given={"B": (2, 3), "V": (7, 13)})
def rows_do_not_touch_each_other(model: Subject, example: Example) -> None:
    """A pair's logits in a batch are those that it has alone."""
    together = model(**example)
    for b in range(example.src.shape[0]):
        alone = {name: example[name][b : b + 1] for name in ("src", "tgt", "src_mask", "tgt_mask") if name in example}
        assert together[b : b + 1] == model.exact(**example.but(**alone))
