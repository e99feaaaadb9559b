"""Planted faults of cross-entropy, and unusual ways that are right."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from assay.registry import benign, fault

NOT_EXPRESSIBLE = {
    "BUG-193": "the z-loss is no kind; an average over another number is planted",
    "BUG-197": "the shift lies in lm_loss",
    "BUG-198": "the shift lies in lm_loss",
    "BUG-199": "the shift lies in lm_loss",
    "BUG-203": "token masks lie in mlm_mask",
    "BUG-206": "token masks lie in mlm_mask",
}


@dataclass(frozen=True)
class Call:
    """One call: logits, targets, options."""

    z: Tensor
    targets: Tensor
    ignore_index: int
    epsilon: float
    reduction: str

    @property
    def counted(self) -> Tensor:
        return self.targets != self.ignore_index

    @property
    def known(self) -> Tensor:
        """Targets with 0 at ignored rows (N,1)."""
        return torch.where(self.counted, self.targets, torch.zeros_like(self.targets)).long()[:, None]


Loss = Callable[[Call], Tensor]


def rows(c: Call, log_p: Tensor | None = None) -> Tensor:
    """The loss of every row, smoothed over the other ids."""
    log_p = torch.log_softmax(c.z, -1) if log_p is None else log_p
    nll = -log_p.gather(-1, c.known)[:, 0]
    if c.epsilon == 0:
        return nll
    each = c.epsilon / (c.z.shape[-1] - 1)
    return (1 - c.epsilon - each) * nll - each * log_p.sum(-1)


def reduced(c: Call, loss: Tensor) -> Tensor:
    """Zeros at ignored rows, then sum, mean or none."""
    loss = torch.where(c.counted, loss, torch.zeros_like(loss))
    if c.reduction == "none":
        return loss
    return loss.sum() if c.reduction == "sum" else loss.sum() / c.counted.sum()


def right(c: Call) -> Tensor:
    """The right loss."""
    return reduced(c, rows(c))


def refuse(c: Call) -> None:
    """What the statements say is refused."""
    targets, size = c.targets[c.counted], c.z.shape[-1]
    if targets.numel() and not 0 <= int(targets.min()) <= int(targets.max()) < size:
        raise ValueError(f"targets={targets.tolist()} must lie in 0 … {size - 1}, got {targets.tolist()}; correct them")
    if not 0 <= c.epsilon < 1 or (c.epsilon > 0 and size == 1):
        raise ValueError(f"label_smoothing={c.epsilon} must lie in 0 ≤ ε < 1, got {c.epsilon}; lower it")


def planted(mark: Callable[..., Any], summary: str, origin: str = "", *, refuses: bool = True,
            **options: Any) -> Callable[[Loss], Loss]:
    """Give a loss of a call the signature of the kind, under its own name, and register it."""
    def register(wrong: Loss) -> Loss:
        def cross_entropy(logits: Tensor, targets: Tensor, *, ignore_index: int = -100, label_smoothing: float = 0.0,
                          reduction: str = "mean") -> Tensor:
            c = Call(logits, targets, ignore_index, label_smoothing, reduction)
            if refuses:
                refuse(c)
            return wrong(c)

        cross_entropy.__name__ = cross_entropy.__qualname__ = wrong.__name__
        cross_entropy.__module__, cross_entropy.__doc__ = wrong.__module__, summary
        extra = {"origin": origin} if mark is fault else {}
        mark("cross_entropy", summary=summary, **extra, **options)(cross_entropy)
        return wrong

    return register


@planted(fault, "no maximum subtracted: large logits overflow")
def no_shift(c: Call) -> Tensor:
    return reduced(c, rows(c, c.z - torch.log(torch.exp(c.z).sum(-1, keepdim=True))))


@planted(fault, "log of a softmax: improbable targets give infinity")
def log_of_softmax(c: Call) -> Tensor:
    return reduced(c, rows(c, torch.log(torch.softmax(c.z, -1))))


@planted(fault, "log of a softmax plus 1e-8")
def log_of_softmax_floored(c: Call) -> Tensor:
    return reduced(c, rows(c, torch.log(torch.softmax(c.z, -1) + 1e-8)))


@planted(fault, "softmax taken twice: probabilities passed on as logits")
def softmax_twice(c: Call) -> Tensor:
    return reduced(c, rows(c, torch.log_softmax(torch.softmax(c.z, -1), -1)))


@planted(fault, "base-2 logarithm")
def base_two(c: Call) -> Tensor:
    return right(c) / 0.6931471805599453


@planted(fault, "sign wrong: the log-likelihood")
def negated(c: Call) -> Tensor:
    return -right(c)


@planted(fault, "zeros")
def zeros(c: Call) -> Tensor:
    return torch.where(torch.isfinite(right(c)), right(c) * 0, right(c))


@planted(fault, "the mean over all rows, ignored ones too")
def mean_over_all_rows(c: Call) -> Tensor:
    return right(c) if c.reduction != "mean" or not c.counted.any() else rows_sum(c) / c.targets.numel()


def rows_sum(c: Call) -> Tensor:
    """The summed loss."""
    return right(replace(c, reduction="sum"))


@planted(fault, "sum where mean is asked", "BUG-193")
def sum_for_mean(c: Call) -> Tensor:
    return rows_sum(c) if c.reduction == "mean" and bool(c.counted.any()) else right(c)


@planted(fault, "mean where sum is asked")
def mean_for_sum(c: Call) -> Tensor:
    return right(replace(c, reduction="mean")) if c.reduction == "sum" and bool(c.counted.any()) else right(c)


@planted(fault, "mean where none is asked")
def mean_for_none(c: Call) -> Tensor:
    return right(replace(c, reduction="mean")) if c.reduction == "none" else right(c)


@planted(fault, "ignored rows count as target 0")
def ignored_rows_count(c: Call) -> Tensor:
    every = replace(c, targets=c.known[:, 0], ignore_index=-1)
    return right(every)


@planted(fault, "−100 is ignored whatever ignore_index says")
def ignore_index_fixed(c: Call) -> Tensor:
    return right(replace(c, ignore_index=-100, targets=torch.where(c.counted, c.targets, torch.zeros_like(c.targets))
                         if c.ignore_index != -100 else c.targets))


@planted(fault, "ignored rows weigh 0 but their product with infinity is NaN")
def ignored_rows_multiplied(c: Call) -> Tensor:
    loss = rows(c, c.z - torch.log(torch.exp(c.z).sum(-1, keepdim=True))) if not c.counted.all() else rows(c)
    loss = loss * c.counted
    if c.reduction == "none":
        return loss
    return loss.sum() if c.reduction == "sum" else loss.sum() / c.counted.sum()


@planted(fault, "no counted row gives 0 where NaN is declared")
def none_counted_gives_zero(c: Call) -> Tensor:
    return right(c) if c.reduction != "mean" or bool(c.counted.any()) else rows_sum(c)


@planted(fault, "no counted row gives NaN where 0 is declared", "BUG-201", conventions={"all_ignored": "zero"})
def none_counted_gives_nan(c: Call) -> Tensor:
    return right(c)


@planted(fault, "targets off by one")
def targets_off_by_one(c: Call) -> Tensor:
    later = torch.where(c.counted, (c.targets + 1) % c.z.shape[-1], c.targets)
    return right(replace(c, targets=later))


@planted(fault, "the last word is left out of the sum when V is odd")
def last_word_of_odd_vocabulary(c: Call) -> Tensor:
    n = c.z.shape[-1]
    if n % 2 == 0 or n == 1:
        return right(c)
    return reduced(c, rows(c, c.z - torch.logsumexp(c.z[:, :-1], -1, keepdim=True)))


@planted(fault, "vocabulary in tiles of 16, the last tile's tail scored 0")
def tail_of_vocabulary_unmasked(c: Call) -> Tensor:
    padded = torch.nn.functional.pad(c.z, (0, -c.z.shape[-1] % 16))
    return reduced(c, rows(c, c.z - torch.logsumexp(padded, -1, keepdim=True)))


@planted(fault, "vocabulary beyond 64 words: the running sum is not rescaled")
def second_tile_not_rescaled(c: Call) -> Tensor:
    if c.z.shape[-1] <= 64:
        return right(c)
    parts = [c.z[:, :64], c.z[:, 64:]]
    tops = [p.amax(-1, keepdim=True) for p in parts]
    total = sum((torch.exp(p - m).sum(-1, keepdim=True) for p, m in zip(parts, tops, strict=True)), torch.zeros(()).to(c.z))
    return reduced(c, rows(c, c.z - torch.maximum(*tops) - torch.log(total)))


@planted(fault, "smoothing ignored")
def smoothing_ignored(c: Call) -> Tensor:
    return right(replace(c, epsilon=0.0))


@planted(fault, "ε spread over all words where the others are declared")
def smoothing_over_all(c: Call) -> Tensor:
    size = c.z.shape[-1]
    return right(replace(c, epsilon=c.epsilon * (size - 1) / size))


@planted(fault, "ε spread over the others where all words are declared", conventions={"smoothing": "all"})
def smoothing_over_others(c: Call) -> Tensor:
    return right(c)


@planted(fault, "the target keeps 1: masses sum to 1 + ε")
def smoothing_target_keeps_all(c: Call) -> Tensor:
    if c.epsilon == 0:
        return right(c)
    return reduced(c, rows(c) - c.epsilon * torch.log_softmax(c.z, -1).gather(-1, c.known)[:, 0])


@planted(fault, "the target gets 1 − ε·V/(V−1), the others ε/V: masses of two conventions", "BUG-195")
def smoothing_conventions_mixed(c: Call) -> Tensor:
    if c.epsilon == 0:
        return right(c)
    size, log_p = c.z.shape[-1], torch.log_softmax(c.z, -1)
    nll = -log_p.gather(-1, c.known)[:, 0]
    return reduced(c, (1 - c.epsilon * size / (size - 1)) * nll - c.epsilon / size * log_p.sum(-1))


@planted(fault, "smoothing adds the entropy of the prediction")
def smoothing_by_entropy(c: Call) -> Tensor:
    log_p = torch.log_softmax(c.z, -1)
    plain = rows(replace(c, epsilon=0.0), log_p)
    return reduced(c, plain if c.epsilon == 0 else (1 - c.epsilon) * plain - c.epsilon * (log_p.exp() * log_p).sum(-1))


@planted(fault, "ignored rows still pay the smoothing")
def smoothing_of_ignored_rows(c: Call) -> Tensor:
    if c.epsilon == 0 or c.reduction == "none" or bool(c.counted.all()) or not bool(c.counted.any()):
        return right(c)
    extra = -(c.epsilon * torch.log_softmax(c.z, -1).mean(-1))[~c.counted].sum()
    return right(c) + (extra if c.reduction == "sum" else extra / c.counted.sum())


class _Wrong(torch.autograd.Function):
    """The right loss; the gradient of the logits is the given rule of (softmax − target, upstream a row, call)."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, c: Call, rule: Callable[[Tensor, Tensor, Call], Tensor]) -> Tensor:
        ctx.save_for_backward(z)
        ctx.c, ctx.rule = c, rule
        return right(replace(c, z=z))

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None, None]:
        (z,), c, g = ctx.saved_tensors, ctx.c, upstream[0]
        each = c.epsilon / max(1, z.shape[-1] - 1)
        target = torch.full_like(z, each).scatter(-1, c.known, 1 - c.epsilon)
        return ctx.rule((torch.softmax(z, -1) - target) * c.counted[:, None], g, c), None, None


def spread(g: Tensor, c: Call) -> Tensor:
    """The upstream gradient of every row (N,1)."""
    if c.reduction == "none":
        return g[:, None]
    return (g / c.counted.sum() if c.reduction == "mean" else g).expand(c.z.shape[0])[:, None]


def _gradient(c: Call, rule: Callable[[Tensor, Tensor, Call], Tensor]) -> Tensor:
    result: Tensor = _Wrong.apply(c.z, replace(c, z=c.z.detach()), rule)  # type: ignore[no-untyped-call]
    return result


@planted(fault, "reduction none: the first row's upstream gradient serves for all", "BUG-204")
def gradient_upstream_of_first_row(c: Call) -> Tensor:
    return _gradient(c, lambda d, g, c: d * (g[:1, None] if c.reduction == "none" else spread(g, c)))


@planted(fault, "the upstream gradient is taken for 1")
def gradient_upstream_ignored(c: Call) -> Tensor:
    return _gradient(c, lambda d, g, c: d * spread(torch.ones_like(g), c))


@planted(fault, "the gradient of a mean is not divided by the number of rows")
def gradient_not_averaged(c: Call) -> Tensor:
    return _gradient(c, lambda d, g, c: d * spread(g, c if c.reduction == "none" else replace(c, reduction="sum")))


@planted(fault, "the gradient of a mean is divided by all rows, ignored ones too")
def gradient_averaged_over_all(c: Call) -> Tensor:
    return _gradient(c, lambda d, g, c: d * (spread(g, c) if c.reduction != "mean" else g / max(1, len(d))))


@planted(fault, "the gradient is the softmax: the target is not subtracted")
def gradient_without_target(c: Call) -> Tensor:
    return _gradient(c, lambda d, g, c: torch.softmax(c.z, -1) * c.counted[:, None] * spread(g, c))


@planted(fault, "the gradient of a smoothed loss is softmax − one-hot")
def gradient_without_smoothing(c: Call) -> Tensor:
    def rule(d: Tensor, g: Tensor, c: Call) -> Tensor:
        hard = torch.softmax(c.z, -1) - torch.zeros_like(c.z).scatter(-1, c.known, 1.0)
        return hard * c.counted[:, None] * spread(g, c)

    return _gradient(c, rule)


@planted(fault, "ignored rows receive gradient")
def gradient_of_ignored_rows(c: Call) -> Tensor:
    def rule(d: Tensor, g: Tensor, c: Call) -> Tensor:
        p = torch.softmax(c.z, -1)
        return torch.where(c.counted[:, None], d, p) * (spread(g, c) if c.reduction != "mean" else g / max(1, len(d)))

    return _gradient(c, rule)


@planted(fault, "the target's probability is rounded to bfloat16 before 1 is subtracted")
def gradient_rounded_before_difference(c: Call) -> Tensor:
    def rule(d: Tensor, g: Tensor, c: Call) -> Tensor:
        hit = torch.zeros_like(c.z, dtype=torch.bool).scatter(-1, c.known, True)
        rough = torch.softmax(c.z, -1).bfloat16().to(c.z.dtype) - 1
        return torch.where(hit & (c.epsilon == 0), rough * c.counted[:, None], d) * spread(g, c)

    return _gradient(c, rule)


@planted(fault, "the gradient stops: the loss is detached from the target's logit")
def gradient_of_target_detached(c: Call) -> Tensor:
    return _gradient(c, lambda d, g, c: d.scatter(-1, c.known, 0.0) * spread(g, c))


@planted(fault, "computed in bfloat16")
def computed_in_bfloat16(c: Call) -> Tensor:
    return right(replace(c, z=c.z.bfloat16())).to(c.z.dtype)


@planted(fault, "no counted row gives NaN where a refusal is declared", conventions={"all_ignored": "refused"})
def none_counted_not_refused(c: Call) -> Tensor:
    return right(c)


@planted(fault, "the maximum of all rows is subtracted: rows far below it vanish")
def maximum_of_everything(c: Call) -> Tensor:
    if not c.z.numel():
        return right(c)
    s = c.z - c.z.detach().amax()
    return reduced(c, rows(c, s - torch.log(torch.exp(s).sum(-1, keepdim=True))))


@planted(fault, "the smoothed mass is the square of ε")
def smoothing_quadratic(c: Call) -> Tensor:
    return right(replace(c, epsilon=c.epsilon**2))


@planted(fault, "strides ignored: logits read as if packed", "BUG-095")
def strides_ignored(c: Call) -> Tensor:
    if c.z.is_contiguous():
        return right(c)
    n = min(c.z.numel(), c.z.untyped_storage().nbytes() // c.z.element_size() - c.z.storage_offset())
    flat = torch.zeros(c.z.numel(), dtype=c.z.dtype, device=c.z.device)
    flat[:n] = c.z.detach().as_strided((n,), (1,))
    return right(replace(c, z=c.z + (flat.reshape(c.z.shape) - c.z.detach())))


@planted(fault, "the second half of a batch above 8 rows reads the first half's targets")
def targets_of_first_half(c: Call) -> Tensor:
    n = len(c.targets)
    if n <= 8:
        return right(c)
    index = torch.arange(n, device=c.targets.device)
    return right(replace(c, targets=c.targets[torch.where(index < (n + 1) // 2, index, index - (n + 1) // 2)]))


@planted(benign, "torch.nn.functional.cross_entropy, where it has the option")
def fused(c: Call) -> Tensor:
    if c.epsilon:
        return right(c)
    return torch.nn.functional.cross_entropy(c.z, c.targets.long(), ignore_index=c.ignore_index, reduction=c.reduction)


@planted(benign, "shift first, then the logarithm of the sum")
def shift_first(c: Call) -> Tensor:
    s = c.z - c.z.detach().amax(-1, keepdim=True)
    return reduced(c, rows(c, s - torch.log(torch.exp(s).sum(-1, keepdim=True))))


@planted(benign, "logsumexp less the target's logit")
def logsumexp_less_target(c: Call) -> Tensor:
    return reduced(c, rows(c, c.z - torch.logsumexp(c.z, -1, keepdim=True)))


@planted(benign, "vocabulary in chunks of three with a running maximum, in float32", arithmetic={"internal": "float32"})
def chunked_vocabulary(c: Call) -> Tensor:
    z = c.z.float() if c.z.dtype in (torch.float16, torch.bfloat16) else c.z
    top = torch.full_like(z[:, :1], float("-inf"))
    total = torch.zeros_like(top)
    for chunk in z.split(3, -1):
        new = torch.maximum(top, chunk.amax(-1, keepdim=True)).detach()
        total = total * torch.exp(top - new) + torch.exp(chunk - new).sum(-1, keepdim=True)
        top = new
    return reduced(c, rows(c, z - top - torch.log(total)))


@planted(benign, "against the whole smoothed distribution")
def against_distribution(c: Call) -> Tensor:
    each = c.epsilon / max(1, c.z.shape[-1] - 1)
    q = torch.full_like(c.z.detach(), each).scatter(-1, c.known, 1 - c.epsilon)
    return reduced(c, -(q * torch.log_softmax(c.z, -1)).sum(-1))


@planted(benign, "counted rows selected before anything is computed")
def selected_rows(c: Call) -> Tensor:
    if c.reduction == "none" or bool(c.counted.all()):
        return right(c)
    return right(replace(c, z=c.z[c.counted], targets=c.targets[c.counted]))


@planted(benign, "ε/V over all words, as declared", conventions={"smoothing": "all"})
def fused_smoothing(c: Call) -> Tensor:
    return torch.nn.functional.cross_entropy(c.z, c.targets.long(), ignore_index=c.ignore_index,
                                             label_smoothing=c.epsilon, reduction=c.reduction)
