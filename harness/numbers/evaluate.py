"""Evaluate a kind's formula under a declared arithmetic: exact values, and bars that cover every legitimate form of
it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from assay.errors import HarnessError
from assay.numbers.arithmetic import Arithmetic, Model
from assay.numbers.bound import Bounded, engine, rounding
from assay.numbers.forms import Form

SECOND_ORDER = 1.0 + 2.0**-30  # covers the float64 roundings of the bars themselves, thousands of operations deep


@dataclass(frozen=True)
class Evaluation:
    """What the formula gives: outputs and gradients with bars, and whether any intermediate may leave the declared
    range."""

    outputs: tuple[Any, ...]  # Bounded where floating, plain tensors and None as they come
    gradients: dict[str, Bounded] = field(default_factory=dict)
    left_range: bool = False
    form_bars: dict[str, tuple[torch.Tensor, ...]] = field(default_factory=dict)  # per form, per floating output
    form_gradient_bars: dict[str, dict[str, torch.Tensor]] = field(default_factory=dict)


@dataclass(frozen=True)
class _Run:
    outputs: tuple[Any, ...]
    gradients: dict[str, Bounded]
    left_range: bool


def evaluate(
    forms: Sequence[Form],
    arguments: Mapping[str, Any],
    dtype: torch.dtype | str,
    arithmetic: Arithmetic,
    *,
    upstream: torch.Tensor | tuple[torch.Tensor, ...] | None = None,
    wrt: Sequence[str] = (),
) -> Evaluation:
    """Run every applicable form; the value is the first form's, the bar the maximum of bar and distance over forms.

    arguments: floating tensors are exact in their own dtype; anything else passes as it is, also inside dicts and
    lists.
    upstream: gradients of the floating outputs, one each; needed with `wrt`.
    wrt: names of arguments, or paths into dict arguments ("params/attn.w_q").
    """
    given = () if upstream is None else (upstream,) if isinstance(upstream, torch.Tensor) else tuple(upstream)
    if wrt and not given:
        raise HarnessError(f"upstream=None with wrt={tuple(wrt)}; give one tensor per floating output")
    runs: dict[str, _Run] = {}
    for form in forms:
        if form.applies is None or form.applies(arguments):
            runs[form.name] = _run(form, arguments, arithmetic.model(dtype, form.additions), given, tuple(wrt))
    if not runs:
        raise HarnessError("forms=none applies to these arguments; the first form of a kind must always apply")
    return _joined(runs, arithmetic.model(dtype))


def _run(
    form: Form, arguments: Mapping[str, Any], model: Model, upstream: tuple[torch.Tensor, ...], wrt: tuple[str, ...]
) -> _Run:
    explicit = form.backward is not None and bool(wrt)
    leaves: dict[str, Bounded] = {}
    lifted = {name: _lifted(value, name, model, () if explicit else wrt, leaves) for name, value in arguments.items()}
    above = tuple(_input(part, model) for part in upstream)
    if explicit:
        return _run_explicit(form, lifted, model, above, wrt)
    _found(wrt, leaves)
    with engine(model) as entered:
        outputs = _outputs(form.forward(**lifted))
        gradients = _autograd(outputs, above, leaves) if wrt else {}
    return _Run(outputs, gradients, entered.left_range)


def _run_explicit(
    form: Form, lifted: Mapping[str, Any], model: Model, above: tuple[Bounded, ...], wrt: tuple[str, ...]
) -> _Run:
    assert form.backward is not None
    with torch.no_grad(), engine(model) as entered:
        outputs = _outputs(form.forward(**lifted))
        found = form.backward(above[0] if len(above) == 1 else above, wrt, **lifted)
    return _Run(outputs, {name: found[name] for name in wrt}, entered.left_range)


def _input(tensor: torch.Tensor, model: Model, *, requires_grad: bool = False) -> Bounded:
    """An argument: exact, but for its conversion where the internal format is narrower than its own."""
    value = tensor.detach().to(torch.float64)
    bar = rounding(value.abs(), model.internal) if model.internal.u > model.store.u else None
    return Bounded(value, bar, requires_grad=requires_grad)


def _lifted(value: Any, path: str, model: Model, wrt: tuple[str, ...], leaves: dict[str, Bounded]) -> Any:
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        made = _input(value, model, requires_grad=path in wrt)
        if path in wrt:
            leaves[path] = made
        return made
    if isinstance(value, Mapping):
        return {name: _lifted(part, f"{path}/{name}", model, wrt, leaves) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)([_lifted(part, f"{path}/{place}", model, wrt, leaves) for place, part in enumerate(value)])
    return value


def _found(wrt: tuple[str, ...], leaves: Mapping[str, Bounded]) -> None:
    missing = [name for name in wrt if name not in leaves]
    if missing:
        raise HarnessError(f"wrt={missing} names no floating tensor among the arguments; ask for one that is")


def _outputs(out: Any) -> tuple[Any, ...]:
    return tuple(out) if isinstance(out, (tuple, list)) else (out,)


def _differentiable(out: Any) -> bool:
    return isinstance(out, torch.Tensor) and out.is_floating_point()


def _autograd(outputs: tuple[Any, ...], upstream: tuple[Bounded, ...], leaves: Mapping[str, Bounded]) -> dict[str, Any]:
    floating = [out for out in outputs if _differentiable(out)]
    if len(floating) != len(upstream):
        raise HarnessError(f"upstream={len(upstream)} tensors for {len(floating)} floating outputs; give one each")
    pairs = [(out, above) for out, above in zip(floating, upstream, strict=True) if out.requires_grad]
    found: tuple[Any, ...] = (None,) * len(leaves)
    if pairs:
        found = torch.autograd.grad(
            [out for out, _ in pairs], list(leaves.values()), [above for _, above in pairs], allow_unused=True
        )
    return {
        name: torch.zeros_like(leaf) if part is None else part
        for (name, leaf), part in zip(leaves.items(), found, strict=True)
    }


def _stored(value: torch.Tensor, bar: torch.Tensor, model: Model) -> torch.Tensor:
    """The bar after the result is rounded to the stored type, where that is narrower than the internal one."""
    if model.store.u > model.internal.u:
        bar = bar + torch.where(value.isfinite(), rounding(value.abs() + bar, model.store), 0.0)
    return bar * SECOND_ORDER


def _union(parts: Sequence[Any], model: Model) -> tuple[Bounded, tuple[torch.Tensor, ...]]:
    """One result with the widest bar, and each form's own."""
    value = parts[0].value if isinstance(parts[0], Bounded) else parts[0].detach().to(torch.float64)
    bars = []
    for part in parts:
        bar = part.bar if isinstance(part, Bounded) else torch.zeros_like(value)
        if part is not parts[0]:
            apart = (part.value - value).abs() if isinstance(part, Bounded) else torch.zeros_like(value)
            bar = bar + torch.where(value.isfinite(), apart, 0.0)
        bars.append(_stored(value, bar, model))
    widest = bars[0]
    for bar in bars[1:]:
        widest = torch.maximum(widest, bar)
    return Bounded(value, widest), tuple(bars)


def _joined(runs: Mapping[str, _Run], model: Model) -> Evaluation:
    first = next(iter(runs.values()))
    outputs: list[Any] = []
    bars: dict[str, list[torch.Tensor]] = {name: [] for name in runs}
    for place, out in enumerate(first.outputs):
        if not _differentiable(out):
            outputs.append(out)
            continue
        joined, own = _union([run.outputs[place] for run in runs.values()], model)
        outputs.append(joined)
        for name, bar in zip(runs, own, strict=True):
            bars[name].append(bar)
    gradients: dict[str, Bounded] = {}
    gradient_bars: dict[str, dict[str, torch.Tensor]] = {name: {} for name in runs}
    for argument in first.gradients:
        gradients[argument], own = _union([run.gradients[argument] for run in runs.values()], model)
        for name, bar in zip(runs, own, strict=True):
            gradient_bars[name][argument] = bar
    return Evaluation(
        outputs=tuple(outputs),
        gradients=gradients,
        left_range=any(run.left_range for run in runs.values()) or _overflows([*outputs, *gradients.values()], model),
        form_bars={name: tuple(own) for name, own in bars.items()},
        form_gradient_bars=gradient_bars,
    )


def _overflows(results: Sequence[Any], model: Model) -> bool:
    """Whether a finite result may leave the stored type."""
    bounded = [part for part in results if isinstance(part, Bounded) and part.numel()]
    return any(
        bool((part.value.isfinite() & ~(part.value.abs() + part.bar <= model.store.largest)).any()) for part in bounded
    )
