"""Right ways to write a kind that were once called wrong."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from assay import registry
from assay.cases import Configuration
from assay.contract.declaration import declare
from assay.run.judge import Settings
from assay.run.judging import Bench
from assay.run.plan import Selection, make_plan


def statuses(kind: str, function: Callable[..., Any], *names: str, dtype: str = "float32", **declared: Any) -> dict[str, str]:
    """What becomes of these properties, by name."""
    made = declare(kind, function, name="mine", origin="test", dtypes=(dtype,), **declared)
    plan = make_plan([made], registry.properties(kind), Selection(only=tuple(f"{kind}/{name}" for name in names)))
    bench = Bench([{"isolated": False, "declared": [made]}], Settings(profile="quick", shrink_tries=0), None)
    return {case.property.partition("/")[2]: bench.run(case)["status"] for case in plan.cases}


def counted_tokens_alone(logits: Tensor, ids: Tensor, *, mask: Tensor | None = None, prompt_lengths: Tensor | None = None,
                         reduction: str = "mean") -> Tensor:
    """The loss is a scalar by contract: what "none" gives, here the counted rows end to end, is nobody's business."""
    counted = torch.ones_like(ids[:, 1:], dtype=torch.bool) if mask is None else mask[:, 1:] & mask[:, :-1]
    if prompt_lengths is not None:
        counted = counted & (torch.arange(1, ids.shape[1]) >= prompt_lengths[:, None])
    return F.cross_entropy(logits[:, :-1][counted].float(), ids[:, 1:][counted], reduction=reduction)


def test_rows_of_a_next_token_loss_may_come_in_any_form() -> None:
    found = statuses("lm_loss", counted_tokens_alone, "results_have_the_right_form", "output_is_the_formula")
    assert found == {"results_have_the_right_form": "pass", "output_is_the_formula": "pass"}


def equal_shares(x: Tensor, *, dim: int = -1) -> Tensor:
    """An empty row's entries, kept finite, share alike: 1/n, rounded."""
    return x.float().clamp_min(torch.finfo(torch.float32).min).softmax(dim).to(x.dtype)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_equal_shares_of_an_empty_row_round(dtype: str) -> None:
    found = statuses("softmax", equal_shares, "empty_row_has_the_declared_outcome", dtype=dtype, conventions={"empty_row": "mean"})
    assert found == {"empty_row_has_the_declared_outcome": "pass"}


def sequence_by_sequence(q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, lengths: Tensor) -> Tensor:
    """Both caches are read alike: the contract gives them one shape."""
    out = torch.zeros_like(q, memory_format=torch.contiguous_format)
    for row, (size, blocks) in enumerate(zip(lengths.tolist(), block_table.long(), strict=True)):
        used = blocks[: -(-size // k_cache.shape[1])]
        k, v = (c[used].reshape(-1, c.shape[2], q.shape[2])[:size].transpose(0, 1)[None] for c in (k_cache, v_cache))
        if size:
            out[row] = F.scaled_dot_product_attention(q[row, None, :, None], k, v, enable_gqa=True)[0, :, 0]
    return out


def test_both_caches_have_one_width() -> None:
    found = statuses("paged_attention", sequence_by_sequence, "output_is_attention_over_the_blocks")
    assert found == {"output_is_attention_over_the_blocks": "pass"}


def translator(src: Tensor, tgt: Tensor, params: Any, *, num_heads: int, src_mask: Tensor | None = None,
               tgt_mask: Tensor | None = None) -> Tensor:
    """It takes no positions, which is also the name of a convention."""
    return registry.reference("encoder_decoder").encoder_decoder(src, tgt, params, num_heads=num_heads, src_mask=src_mask,
                                                                 tgt_mask=tgt_mask)


def test_a_translator_need_not_take_positions() -> None:
    found = statuses("encoder_decoder", translator, "results_have_the_right_form", conventions={"norm": "rms"})
    assert found == {"results_have_the_right_form": "pass"}


def test_no_entry_of_a_batch_is_one_single_number_for_a_layer_norm() -> None:
    """torch's GroupNorm of one group is a layer norm, and refuses to centre a number by itself."""
    prop = next(one for one in registry.properties("layer_norm") if one.id == "layer_norm/splitting_the_batch_does_not_matter")
    made = declare("layer_norm", lambda x, weight, bias, *, eps: x, name="mine", origin="test")
    flags = {"eps": 1e-5, "rank": "tokens", "size": "unit", "token": "drawn", "weights": "drawn"}
    one, two = (Configuration("layer_norm", {"B": 2, "C": width, "T": 2}, flags) for width in (1, 2))
    assert not prop.cases.admits(one, made, prop.given)
    assert prop.cases.admits(two, made, prop.given)


def smoothed_mean(logits: Tensor, targets: Tensor, *, ignore_index: int = -100, label_smoothing: float = 0.0,
                  reduction: str = "mean") -> Tensor:
    """It takes `reduction` for the sake of its callers; the mean is all that it gives."""
    log_p = logits.float().log_softmax(-1)
    counted = targets != ignore_index
    nll = -log_p.gather(-1, targets.where(counted, torch.zeros_like(targets))[:, None])[:, 0]
    each = label_smoothing * -log_p.mean(-1)
    return (((1 - label_smoothing) * nll + each) * counted).sum() / counted.sum()


def test_a_loss_limited_to_the_mean_is_asked_for_nothing_else() -> None:
    """The library's own smoother has this form: what asks for sums or rows was held against it all the same."""
    asked = ("mean_is_sum_over_counted_rows", "sum_adds_up_over_pieces_of_a_batch", "permuting_rows_permutes_losses",
             "rows_do_not_touch_each_other", "output_is_the_formula")
    found = statuses("cross_entropy", smoothed_mean, *asked, conventions={"smoothing": "all"}, limits={"reduction": {"mean"}})
    assert found == {"output_is_the_formula": "pass"}


def test_one_number_where_rows_are_asked_for_is_a_failure_of_the_loss() -> None:
    """It was said to be a fault of the harness, which has not one number more than the implementation gave."""
    found = statuses("cross_entropy", smoothed_mean, "rows_do_not_touch_each_other", conventions={"smoothing": "all"})
    assert found == {"rows_do_not_touch_each_other": "fail"}


def halves(x: Tensor, positions: Tensor, *, base: float = 10000.0, pairing: str = "half") -> Tensor:
    """It takes `pairing`, and turns halves alone."""
    assert pairing == "half"
    return registry.reference("rotary").rotary(x, positions, base=base, pairing="half")


@pytest.mark.parametrize("declared", [{"conventions": {"pairing": "half"}}, {"limits": {"pairing": {"half"}}}])
def test_a_rotation_of_halves_is_not_asked_for_pairs(declared: dict[str, Any]) -> None:
    found = statuses("rotary", halves, "pairings_are_one_map_up_to_order", "output_is_the_formula", **declared)
    assert found == {"output_is_the_formula": "pass"}


def masked_sum_over_count(logits: Tensor, targets: Tensor, *, ignore_index: int = -100) -> Tensor:
    """Where no row counts the loss is 0/0, and its gradient NaN (torch's own gives zeros beside its NaN)."""
    counted = targets != ignore_index
    log_p = logits.float().log_softmax(-1).gather(-1, targets.where(counted, torch.zeros_like(targets))[:, None])[:, 0]
    return -(log_p * counted).sum() / counted.sum()


def next_tokens_sum_over_count(logits: Tensor, ids: Tensor, *, prompt_lengths: Tensor | None = None) -> Tensor:
    first = torch.ones(len(ids), dtype=torch.int64) if prompt_lengths is None else prompt_lengths
    wanted = ids[:, 1:].masked_fill(torch.arange(1, ids.shape[1]) < first[:, None], -100)
    return masked_sum_over_count(logits[:, :-1].reshape(-1, logits.shape[-1]), wanted.reshape(-1))


@pytest.mark.parametrize(("kind", "function", "sizes"), [
    ("cross_entropy", masked_sum_over_count, ("many_words_are_right", "many_rows_are_right")),
    ("lm_loss", next_tokens_sum_over_count, ("many_samples_are_right", "many_tokens_are_right"))])
def test_a_mean_over_nothing_has_no_gradient_that_anybody_is_held_to(
    kind: str, function: Callable[..., Tensor], sizes: tuple[str, ...],
) -> None:
    """Large batches were drawn with no counted row among them, and zeros asked for as the gradient of a NaN."""
    asked = ("gradient_is_the_formula", *sizes)
    assert statuses(kind, function, *asked) == dict.fromkeys(asked, "pass")
