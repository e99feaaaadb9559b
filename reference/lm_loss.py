"""Language-model loss: every position is scored against the next token."""
from __future__ import annotations

import torch
from torch import Tensor

from assay.numbers.forms import Form
from assay.reference import cross_entropy as _cross_entropy

IGNORED = -100


def lm_loss(
    logits: Tensor, ids: Tensor, *, mask: Tensor | None = None, prompt_lengths: Tensor | None = None,
    label_smoothing: float = 0.0, reduction: str = "mean", smoothing: str = "others", all_ignored: str = "nan",
) -> Tensor:
    """Cross-entropy of the logits at t against the id at t+1, over real tokens (and the response alone after a prompt).

    Formula: L = Σ −log softmax(logits_{b,t})[ids_{b,t+1}] over the counted (b, t), divided by their number for
    "mean". (b, t)
    counts where t and t+1 are real and, with prompt_lengths, t+1 ≥ prompt_lengths_b.

    logits: (B, T, V)
    ids: (B, T) integers
    mask: None or (B, T) bool, True = real
    prompt_lengths: None or (B,) integers, counted from the row's first column
    returns: a scalar, or (B, T−1) for reduction "none"

    Conventions: as `cross_entropy`. The first response token, scored at the last prompt position, counts.
    Raises: ValueError for shapes that do not fit, and as `cross_entropy`.
    Source: Radford et al., "Improving Language Understanding by Generative Pre-Training", section 3.1; Ouyang et al.,
    "Training
    language models to follow instructions", section 3.5, arXiv 2203.02155.

    >>> ids = torch.tensor([[1, 0, 1]])
    >>> perfect = torch.nn.functional.one_hot(torch.tensor([[0, 1, 0]]), 2) * 200.0
    >>> float(lm_loss(perfect, ids))
    0.0
    """
    options = {"label_smoothing": label_smoothing, "reduction": reduction, "smoothing": smoothing, "all_ignored": all_ignored}
    return _scored(_cross_entropy.FORMS[0], logits, ids, mask, prompt_lengths, options)


def _scored(form: Form, logits: Tensor, ids: Tensor, mask: Tensor | None, prompt_lengths: Tensor | None,
            options: dict[str, object]) -> Tensor:
    """One form of the cross-entropy over the shifted pairs."""
    targets = next_tokens(logits, ids, mask, prompt_lengths)
    kept = logits[:, : targets.shape[1]]
    rows: Tensor = form.forward(kept.reshape(-1, logits.shape[-1]), targets.reshape(-1), ignore_index=IGNORED, **options)
    return rows.reshape(targets.shape) if options["reduction"] == "none" else rows


def next_tokens(logits: Tensor, ids: Tensor, mask: Tensor | None, prompt_lengths: Tensor | None) -> Tensor:
    """What each position is scored against (B, T−1), −100 where it does not count."""
    batch, length = ids.shape
    if tuple(logits.shape[:2]) != (batch, length):
        raise ValueError(f"ids.shape={(batch, length)} must be {tuple(logits.shape[:2])} as of the logits, got {(batch, length)}; "
                         "pass one id a position, not shifted")
    counted = torch.ones((batch, max(0, length - 1)), dtype=torch.bool, device=ids.device)
    if mask is not None:
        if mask.shape != ids.shape:
            raise ValueError(f"mask.shape={tuple(mask.shape)} must be (B, T) = {(batch, length)}, got {tuple(mask.shape)}; "
                             "pass one flag a position")
        real = mask.bool()
        counted = counted & real[:, 1:] & real[:, :-1]
    if prompt_lengths is not None:
        counted = counted & (torch.arange(1, max(1, length), device=ids.device) >= prompt_lengths[:, None])
    following = ids[:, 1:].long()
    return torch.where(counted, following, torch.full_like(following, IGNORED))


def _form(inner: Form) -> Form:
    def forward(
        logits: Tensor, ids: Tensor, *, mask: Tensor | None = None, prompt_lengths: Tensor | None = None,
        label_smoothing: float = 0.0, reduction: str = "mean", smoothing: str = "others", all_ignored: str = "nan",
    ) -> Tensor:
        options = {"label_smoothing": label_smoothing, "reduction": reduction, "smoothing": smoothing,
                   "all_ignored": all_ignored}
        return _scored(inner, logits, ids, mask, prompt_lengths, options)

    return Form(inner.name, forward, usual=inner.usual)


FORMS: tuple[Form, ...] = (Form("shifted first", lm_loss), *(_form(inner) for inner in _cross_entropy.FORMS[1:]))
