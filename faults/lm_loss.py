"""Planted faults of the language-model loss, and unusual ways that are right."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from assay.faults.cross_entropy import Call, right
from assay.registry import benign, fault

NOT_EXPRESSIBLE = {"BUG-193": "the z-loss is no kind; an average over rows in place of tokens is planted"}
IGNORED = -100


@dataclass(frozen=True)
class Batch:
    """One call: logits (B,T,V), ids (B,T), mask, prompt lengths, options."""

    z: Tensor
    ids: Tensor
    mask: Tensor | None
    prompts: Tensor | None
    epsilon: float
    reduction: str

    def real(self) -> Tensor:
        """(B,T), all true without a mask."""
        return torch.ones_like(self.ids, dtype=torch.bool) if self.mask is None else self.mask.bool()

    def columns(self) -> Tensor:
        """0 … T−1."""
        return torch.arange(self.ids.shape[1], device=self.ids.device)


Loss = Callable[[Batch], Tensor]


def counted(b: Batch, first: int = 0) -> Tensor:
    """Which targets (B,T−1) count."""
    keep = b.real()[:, 1:] & b.real()[:, :-1]
    return keep if b.prompts is None else keep & (b.columns()[1:] >= b.prompts[:, None] + first)


def scored(b: Batch, logits: Tensor, targets: Tensor, keep: Tensor) -> Tensor:
    """Cross-entropy of aligned logits and targets over what counts."""
    labels = torch.where(keep, targets.long(), torch.full_like(targets, IGNORED, dtype=torch.int64))
    loss = right(Call(logits.reshape(-1, b.z.shape[-1]), labels.reshape(-1), IGNORED, b.epsilon, b.reduction))
    return loss.reshape(labels.shape) if b.reduction == "none" else loss


def correct(b: Batch) -> Tensor:
    """The right loss."""
    return scored(b, b.z[:, :-1], b.ids[:, 1:], counted(b))


def planted(mark: Callable[..., Any], summary: str, origin: str = "", **options: Any) -> Callable[[Loss], Loss]:
    """Give a loss of a batch the signature of the kind, under its own name, and register it."""
    def register(wrong: Loss) -> Loss:
        def lm_loss(logits: Tensor, ids: Tensor, *, mask: Tensor | None = None, prompt_lengths: Tensor | None = None,
                    label_smoothing: float = 0.0, reduction: str = "mean") -> Tensor:
            return wrong(Batch(logits, ids, mask, prompt_lengths, label_smoothing, reduction))

        lm_loss.__name__ = lm_loss.__qualname__ = wrong.__name__
        lm_loss.__module__, lm_loss.__doc__ = wrong.__module__, summary
        extra = {"origin": origin} if mark is fault else {}
        mark("lm_loss", summary=summary, **extra, **options)(lm_loss)
        return wrong

    return register


@planted(fault, "shifted twice: position t is scored against t+2", "BUG-197")
def shifted_twice(b: Batch) -> Tensor:
    if b.ids.shape[1] < 3:
        return correct(b)
    return scored(b, b.z[:, :-2], b.ids[:, 2:], counted(b)[:, 1:])


@planted(fault, "not shifted: position t is scored against itself", "BUG-198")
def not_shifted(b: Batch) -> Tensor:
    return scored(b, b.z[:, :-1], b.ids[:, :-1], counted(b))


@planted(fault, "shifted the wrong way: position t is scored against t−1")
def shifted_backward(b: Batch) -> Tensor:
    return scored(b, b.z[:, 1:], b.ids[:, :-1], counted(b))


@planted(fault, "shifted after flattening: the last position predicts the next row's first id", "BUG-199")
def shifted_after_flattening(b: Batch) -> Tensor:
    if b.ids.numel() < 2 or b.reduction == "none":
        return correct(b)
    real = b.real() if b.prompts is None else b.real() & (b.columns() >= b.prompts[:, None])
    keep = real.reshape(-1)[1:] & b.real().reshape(-1)[:-1]
    return scored(b, b.z.reshape(-1, b.z.shape[-1])[:-1], b.ids.reshape(-1)[1:], keep)


@planted(fault, "the first id is scored too, against the last position's logits")
def wrapped_around(b: Batch) -> Tensor:
    if b.reduction == "none" or b.prompts is not None:
        return correct(b)
    return scored(b, b.z, b.ids.roll(-1, 1), b.real() & b.real().roll(-1, 1))


@planted(fault, "the last real token is not scored")
def last_target_left_out(b: Batch) -> Tensor:
    keep = counted(b)
    if b.ids.shape[1] < 3:
        return correct(b)
    return scored(b, b.z[:, :-1], b.ids[:, 1:], keep & torch.nn.functional.pad(keep[:, 1:], (0, 1), value=False))


@planted(fault, "the mask is ignored")
def mask_ignored(b: Batch) -> Tensor:
    keep = torch.ones_like(b.ids[:, 1:], dtype=torch.bool)
    keep = keep if b.prompts is None else keep & (b.columns()[1:] >= b.prompts[:, None])
    return scored(b, b.z[:, :-1], b.ids[:, 1:], keep)


@planted(fault, "the mask is not shifted: the first padding token is scored")
def mask_not_shifted(b: Batch) -> Tensor:
    keep = b.real()[:, :-1]
    keep = keep if b.prompts is None else keep & (b.columns()[1:] >= b.prompts[:, None])
    return scored(b, b.z[:, :-1], b.ids[:, 1:], keep)


@planted(fault, "the mask is inverted")
def mask_inverted(b: Batch) -> Tensor:
    if b.mask is None:
        return correct(b)
    return correct(Batch(b.z, b.ids, ~b.mask.bool(), b.prompts, b.epsilon, b.reduction))


@planted(fault, "the prompt counts")
def prompt_counts(b: Batch) -> Tensor:
    return correct(Batch(b.z, b.ids, b.mask, None, b.epsilon, b.reduction))


@planted(fault, "the first response token does not count")
def first_response_token_left_out(b: Batch) -> Tensor:
    return scored(b, b.z[:, :-1], b.ids[:, 1:], counted(b, 1))


@planted(fault, "the last prompt token counts")
def last_prompt_token_counts(b: Batch) -> Tensor:
    return scored(b, b.z[:, :-1], b.ids[:, 1:], counted(b, -1))


@planted(fault, "the prompt counts and the response does not")
def response_left_out(b: Batch) -> Tensor:
    if b.prompts is None:
        return correct(b)
    keep = b.real()[:, 1:] & b.real()[:, :-1] & (b.columns()[1:] < b.prompts[:, None])
    return scored(b, b.z[:, :-1], b.ids[:, 1:], keep)


@planted(fault, "the first row's prompt length serves for all rows")
def prompt_of_first_row(b: Batch) -> Tensor:
    prompts = b.prompts if b.prompts is None or not len(b.prompts) else b.prompts[:1].expand(len(b.prompts))
    return correct(Batch(b.z, b.ids, b.mask, prompts, b.epsilon, b.reduction))


@planted(fault, "the mean of the rows' means: short rows weigh more", "BUG-193")
def mean_of_row_means(b: Batch) -> Tensor:
    keep = counted(b)
    if b.reduction != "mean" or not bool(keep.any(-1).all()) or not len(keep):
        return correct(b)
    single = [Batch(b.z[i : i + 1], b.ids[i : i + 1], None if b.mask is None else b.mask[i : i + 1],
                    None if b.prompts is None else b.prompts[i : i + 1], b.epsilon, "mean") for i in range(len(keep))]
    return torch.stack([correct(one) for one in single]).mean()


@planted(fault, "the mean over all positions, padding too")
def mean_over_all_positions(b: Batch) -> Tensor:
    total = correct(Batch(b.z, b.ids, b.mask, b.prompts, b.epsilon, "sum"))
    return total / b.ids[:, 1:].numel() if b.reduction == "mean" and bool(counted(b).any()) else correct(b)


@planted(fault, "the mean over T in place of T−1 terms")
def mean_over_t(b: Batch) -> Tensor:
    keep = counted(b)
    return correct(b) * (keep.sum() / (keep.sum() + len(keep))) if b.reduction == "mean" else correct(b)


@planted(fault, "the sum where the mean is asked")
def sum_for_mean(b: Batch) -> Tensor:
    if b.reduction != "mean" or not bool(counted(b).any()):
        return correct(b)
    return correct(Batch(b.z, b.ids, b.mask, b.prompts, b.epsilon, "sum"))


@planted(fault, "smoothing ignored")
def smoothing_ignored(b: Batch) -> Tensor:
    return correct(Batch(b.z, b.ids, b.mask, b.prompts, 0.0, b.reduction))


@planted(fault, "smoothing over all words where the others are declared")
def smoothing_over_all(b: Batch) -> Tensor:
    size = b.z.shape[-1]
    return correct(Batch(b.z, b.ids, b.mask, b.prompts, b.epsilon * (size - 1) / size, b.reduction))


@planted(fault, "perplexity in place of the loss")
def perplexity(b: Batch) -> Tensor:
    return torch.exp(correct(b))


@planted(fault, "nothing counted gives 0 where NaN is declared")
def none_counted_gives_zero(b: Batch) -> Tensor:
    if b.reduction == "mean" and not bool(counted(b).any()):
        return correct(Batch(b.z, b.ids, b.mask, b.prompts, b.epsilon, "sum"))
    return correct(b)


@planted(fault, "no counted token gives NaN where 0 is declared", "BUG-201", conventions={"all_ignored": "zero"})
def none_counted_gives_nan(b: Batch) -> Tensor:
    return correct(b)


@planted(fault, "no counted token gives NaN where a refusal is declared", conventions={"all_ignored": "refused"})
def none_counted_not_refused(b: Batch) -> Tensor:
    return correct(b)


@planted(fault, "the gradient is doubled")
def gradient_doubled(b: Batch) -> Tensor:
    loss = correct(b)
    return loss + (loss - loss.detach()) if bool(torch.isfinite(loss).all()) else loss


@planted(fault, "the last column of logits gets a gradient")
def gradient_of_last_column(b: Batch) -> Tensor:
    loss, last = correct(b), b.z[:, -1:].sum() * 1e-2
    return loss + (last - last.detach())


@planted(benign, "ids padded with an ignored label at the end, logits whole")
def labels_padded(b: Batch) -> Tensor:
    if b.reduction == "none":
        return correct(b)
    keep = torch.nn.functional.pad(counted(b), (0, 1), value=False)
    return scored(b, b.z, b.ids.roll(-1, 1), keep)


@planted(benign, "row by row, sums added and divided at the end")
def row_by_row(b: Batch) -> Tensor:
    keep = counted(b)
    if b.reduction != "mean" or not len(keep):
        return correct(b)
    log_p = torch.log_softmax(b.z[:, :-1], -1)
    each = b.epsilon / max(1, b.z.shape[-1] - 1)
    nll = -log_p.gather(-1, b.ids[:, 1:, None].long())[..., 0]
    loss = nll if b.epsilon == 0 else (1 - b.epsilon - each) * nll - each * log_p.sum(-1)
    return torch.where(keep, loss, torch.zeros_like(loss)).sum(-1).sum() / keep.sum()
