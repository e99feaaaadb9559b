"""Sampled bounds: for compositions, through which worst-case bounds explode.

The formula is run in float64, then `runs` times more with every operation's result moved at random by the roundings of the
declared arithmetic, the kind's forms in turn. The bar is FACTOR times the spread of these runs, pooled along the features, plus
the rounding of the stored result. That is an estimate and not a proof, so FACTOR is calibrated by experiment.
"""
from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from assay.errors import HarnessError
from assay.numbers.arithmetic import Arithmetic, Model
from assay.numbers.bound import Bounded, Engine, modelled, rounding
from assay.numbers.evaluate import Evaluation
from assay.numbers.forms import Form
from assay.numbers.perturbing import Perturbing

RUNS = 32  # of every form in turn
FEWER = 16  # of the formula as written: enough to call an output right; one that is not is judged again by all
TOGETHER = 16  # runs that go through the formula at once
# Largest error over spread among correct evaluations, with room: see bench/calibrate_sampled.py and its record.
FACTOR = 8.0
# The calibrated sample holds outputs. Gradients have heavier tails: torch's own encoder layer came out at 9.0 spreads in float16 on
# inputs of mean 8. They are given twice the factor.
GRADIENT_SHARE = 2.0
POOLED = 8  # spreads are pooled over at least so many neighbours, from the last axis outwards


@dataclass
class Choices:
    """What discrete choices (routing) were made in the exact run: later runs repeat them, and their margins are looked at."""

    exact: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)  # scores (N,E), their order
    moved: list[list[torch.Tensor]] = field(default_factory=list)  # for each choice, scores (runs,N,E) less the exact ones
    place: int | None = None  # None: the exact run

    def order(self, scores: torch.Tensor, found: torch.Tensor) -> torch.Tensor:
        """The order to go by."""
        if self.place is None:
            self.exact.append((scores, found))
            self.moved.append([])
            return found
        exact, order = self.exact[self.place]
        apart = scores - exact
        self.moved[self.place].append(apart if apart.dim() > exact.dim() else apart[None])
        self.place += 1
        return order.expand(found.shape)

    def made(self, func: Any, args: Any, out: Any) -> Any:
        """The result of an operation; of a sort, with the order to go by."""
        if func is torch.ops.aten.sort.stable and args[0].is_floating_point():
            return out[0], self.order(args[0], out[1])
        return out

    def uncertain(self, top_k: int, u: float) -> list[torch.Tensor]:
        """Rows of each choice whose margin roundings may turn: deciding by scores, or by what is rounded relative to 1."""
        found = []
        for (scores, order), moved in zip(self.exact, self.moved, strict=True):
            if top_k >= scores.shape[-1]:
                found.append(torch.zeros(scores.shape[0], dtype=torch.bool))
                continue
            ranked = scores.gather(-1, order)
            spread = _rms(torch.cat(moved)).amax(-1)
            found.append(~(ranked[:, top_k - 1] - ranked[:, top_k] > FACTOR * math.sqrt(2) * spread + 4 * u))
        return found


class _Exactly(TorchDispatchMode):  # type: ignore[misc]
    """The exact run: choices are noted."""

    def __init__(self, choices: Choices) -> None:
        super().__init__()
        self.choices = choices

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.choices.made(func, args, func(*args, **(kwargs or {})))


class _Moved(Perturbing):
    """A run with roundings, by the model in force at the moment; choices are those of the exact run."""

    def __init__(self, choices: Choices, source: torch.Generator, engine: Engine) -> None:
        super().__init__(lambda dtype: engine.model if dtype == torch.float64 else None, source)
        self.choices = choices

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.choices.made(func, args, super().__torch_dispatch__(func, types, args, kwargs))


@dataclass(frozen=True)
class _Request:
    """What is asked: the arguments, and which of their tensors carry gradients."""

    arguments: Mapping[str, Any]
    upstream: tuple[torch.Tensor, ...]
    wrt: tuple[str, ...]
    leaves: Mapping[str, torch.Tensor]  # floating tensors by path, in float64

    def run(self, form: Form, leaves: Mapping[str, torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, torch.Tensor]]:
        """Outputs and gradients of one run, in plain torch."""
        if not self.wrt:
            return _outputs(form, self.arguments, leaves), {}

        def forward(asked: dict[str, torch.Tensor]) -> tuple[tuple[torch.Tensor, ...], tuple[Any, ...]]:
            found = _outputs(form, self.arguments, {**leaves, **asked})
            return tuple(out for out in found if _floating(out)), found

        floating, pull, found = torch.func.vjp(forward, {name: leaves[name] for name in self.wrt}, has_aux=True)
        if len(floating) != len(self.upstream):
            raise HarnessError(f"upstream={len(self.upstream)} tensors for {len(floating)} floating outputs; give one each")
        return found, pull(self.upstream)[0]


def sampled(
    forms: Sequence[Form], arguments: Mapping[str, Any], dtype: torch.dtype | str, arithmetic: Arithmetic, *,
    upstream: torch.Tensor | Sequence[torch.Tensor] | None = None, wrt: Sequence[str] = (), runs: int = RUNS, seed: int = 0,
    factor: float = FACTOR,
) -> Evaluation:
    """What `evaluate` gives, with bars that are sampled; the same seed gives the same bars."""
    given = () if upstream is None else (upstream,) if isinstance(upstream, torch.Tensor) else tuple(upstream)
    usable = [form for form in forms if form.applies is None or form.applies(arguments)]
    if not usable or any(form.backward is not None for form in usable):
        raise HarnessError("forms=none applies, or one has a backward of its own; sampled bounds need plain forms")
    asked = _Request(arguments, tuple(up.double() for up in given), tuple(wrt), dict(_leaves(arguments)))
    _found(asked)
    choices, source, model = Choices(), torch.Generator().manual_seed(seed), arithmetic.model(dtype)
    with _Exactly(choices) if "top_k" in arguments else contextlib.nullcontext():
        exact, gradients = asked.run(usable[0], asked.leaves)
    outputs: list[list[torch.Tensor]] = [[] for _ in exact]
    slopes: dict[str, list[torch.Tensor]] = {name: [] for name in gradients}
    left = False
    for number in range(max(runs // TOGETHER, len(usable) if runs >= RUNS else 1)):
        form = usable[number % len(usable)]
        found, found_gradients, beyond = _moved(form, asked, choices, source, arithmetic.model(dtype, form.additions))
        left |= beyond
        for into, part, base in zip(outputs, found, exact, strict=True):
            if _floating(part):
                into.append(part - base)
        for name, part in found_gradients.items():
            slopes[name].append(part - gradients[name])
    unsure = choices.uncertain(int(arguments.get("top_k") or 0), model.internal.u) if choices.exact else []
    made = tuple(_barred(base, apart, model, factor, unsure) if _floating(base) else base
                 for base, apart in zip(exact, outputs, strict=True))
    lost = any(bool(rows.any()) for rows in unsure)
    steep = {name: _barred(base, slopes[name], model, GRADIENT_SHARE * factor, [], lost=lost) for name, base in gradients.items()}
    return Evaluation(made, steep, left or _overflows([*made, *steep.values()], model))


def _found(asked: _Request) -> None:
    missing = [name for name in asked.wrt if name not in asked.leaves]
    if missing:
        raise HarnessError(f"wrt={missing} names no floating tensor among the arguments; ask for one that is")
    if asked.wrt and not asked.upstream:
        raise HarnessError(f"upstream=None with wrt={asked.wrt}; give one tensor per floating output")


def _moved(form: Form, asked: _Request, choices: Choices, source: torch.Generator,
           model: Model) -> tuple[tuple[Any, ...], dict[str, torch.Tensor], bool]:
    """Several runs with roundings at once, along a new first axis; and whether one left the range of its format."""
    choices.place = 0
    together = [path for path in asked.leaves if "/" not in path] or list(asked.leaves)
    with modelled(model) as engine, _Moved(choices, source, engine) as mode:
        leaves = {path: _converted(leaf, mode, model) for path, leaf in asked.leaves.items()}
        if not together:  # nothing floating goes in, so nothing but tables rounds
            found, gradients = asked.run(form, leaves)
            return tuple(out[None] if _floating(out) else out for out in found), gradients, mode.left_range
        spread = {path: leaves[path].expand(TOGETHER, *leaves[path].shape) for path in together}
        shapes: list[Any] = []

        def one(own: dict[str, torch.Tensor]) -> tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor]]:
            found, gradients = asked.run(form, {**leaves, **own})
            shapes[:] = found
            return tuple(out for out in found if _floating(out)), gradients

        floating, gradients = torch.vmap(one, randomness="different")(spread)
    rest = iter(floating)
    return tuple(next(rest) if _floating(out) else out for out in shapes), gradients, mode.left_range


def _floating(part: Any) -> bool:
    return isinstance(part, torch.Tensor) and part.is_floating_point()


def _outputs(form: Form, arguments: Mapping[str, Any], leaves: Mapping[str, torch.Tensor]) -> tuple[Any, ...]:
    out = form.forward(**{name: _placed(value, name, leaves) for name, value in arguments.items()})
    return tuple(out) if isinstance(out, (tuple, list)) else (out,)


def _converted(leaf: torch.Tensor, mode: Perturbing, model: Model) -> torch.Tensor:
    """An argument, moved where the internal format is narrower than its own."""
    return leaf + mode.noise(leaf) * rounding(leaf.abs(), model.internal) if model.internal.u > model.store.u else leaf


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Floating tensors by path, in float64."""
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        yield path, value.detach().double()
    elif isinstance(value, Mapping):
        for name, part in value.items():
            yield from _leaves(part, f"{path}/{name}" if path else name)
    elif isinstance(value, (list, tuple)):
        for place, part in enumerate(value):
            yield from _leaves(part, f"{path}/{place}")


def _placed(value: Any, path: str, leaves: Mapping[str, torch.Tensor]) -> Any:
    """The value with the leaves in their places."""
    if path in leaves:
        return leaves[path]
    if isinstance(value, Mapping):
        return {name: _placed(part, f"{path}/{name}", leaves) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)([_placed(part, f"{path}/{place}", leaves) for place, part in enumerate(value)])
    return value


def _rms(apart: torch.Tensor) -> torch.Tensor:
    return apart.nan_to_num(nan=math.inf).square().mean(0).sqrt()


def pooled(spread: torch.Tensor) -> torch.Tensor:
    """At every element the larger of its own spread and that of its neighbours along the features."""
    if not spread.numel() or not spread.dim():
        return spread
    axes, count = 1, spread.shape[-1]
    while count < POOLED and axes < spread.dim():
        axes += 1
        count *= spread.shape[-axes]
    dims = tuple(range(-axes, 0))
    return torch.maximum(spread, spread.square().mean(dims, keepdim=True).sqrt())


def spread_bar(value: torch.Tensor, apart: torch.Tensor, factor: float = FACTOR) -> torch.Tensor:
    """The bar that the spread of runs (first axis) gives; infinite and NaN values carry none."""
    return factor * pooled(_rms(torch.where(value.isfinite(), apart, 0.0)))


def _barred(value: torch.Tensor, apart: Sequence[torch.Tensor], model: Model, factor: float, unsure: Sequence[torch.Tensor], *,
            lost: bool = False) -> Bounded:
    bar = spread_bar(value, torch.cat(list(apart)), factor)
    bar = bar + torch.where(value.isfinite(), rounding(value.abs(), model.store), 0.0)
    if lost:
        bar = torch.full_like(bar, math.inf)
    for place, rows in enumerate(unsure):
        if bool(rows.any()):
            bar = bar.masked_fill(_reached(rows, value, last=place == len(unsure) - 1), math.inf)
    return Bounded(value, bar)


def _reached(rows: torch.Tensor, value: torch.Tensor, *, last: bool) -> torch.Tensor:
    """Elements (B,T,…) that an uncertain choice may touch: its token in the last layer, its whole sequence before."""
    batch = value.shape[0]
    tokens = rows.reshape(batch, -1)
    if last and value.dim() > 2 and tokens.shape[1] == value.shape[1]:
        return tokens.reshape(*tokens.shape, *[1] * (value.dim() - 2))
    return tokens.any(-1).reshape(batch, *[1] * (value.dim() - 1))


def _overflows(results: Sequence[Any], model: Model) -> bool:
    """Whether a finite result may leave the stored type."""
    return any(bool((part.value.isfinite() & part.bar.isfinite() & ~(part.value.abs() + part.bar <= model.store.largest)).any())
               for part in results if isinstance(part, Bounded) and part.numel())
