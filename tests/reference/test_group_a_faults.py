"""Every planted fault of group A is wrong on some probe, and every unusual right way is right on all of them."""
from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import product
from typing import Any

import pytest
import torch
from group_a_probes import PROBES, Draw, Example
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from assay import registry
from assay.contract.kinds import kind as kind_named

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Faults of conduct are planted for every kind at once and have tests of their own.
FAULTS = [made for kind in PROBES for made in registry.faults(kind) if "/conduct_" not in made.id]
BENIGNS = [made for kind in PROBES for made in registry.benigns(kind) if "/conduct_" not in made.id]
# A fault counts as wrong where it is this many times farther from the exact result than the worst right way. Those that
# add one rounding of the output's own size to what is allowed are held to more than one half of it.
FARTHER = 4.0
ONE_ROUNDING_MORE = {"rms_norm/rounds_before_the_weight": 1.5, "rotary/tables_in_the_input_type": 1.25}
SAME_VALUES = {"rms_norm/computes_a_mean_nobody_needs"}  # wrong in cost alone
# Wrong on inputs that these probes do not draw (negative positions, widths that a rule derives, square weights): the doctor shows
# the properties that tell them.
NOT_PROBED = {
    "rotary/negative_positions_mirrored", "feed_forward/weight_not_transposed", "feed_forward/hidden_width_four_times",
    "feed_forward/hidden_width_of_llama", "gated_feed_forward/weight_not_transposed", "gated_feed_forward/hidden_width_twice",
    "gated_feed_forward/hidden_width_rounded_down",
}
CHANGES_ITS_INPUT = {"layer_norm/writes_into_its_input", "rms_norm/writes_into_its_input", "residual/adds_in_place"}
Results = dict[str, Tensor]


@pytest.fixture(autouse=True)
def _unwritten_memory_is_nan() -> Iterator[None]:
    """What nobody wrote reads as NaN, so that a fault which returns it is seen every time."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def _to(example: Example, dtype: torch.dtype) -> Example:
    return {n: v.to(dtype) if isinstance(v, Tensor) and v.is_floating_point() else v for n, v in example.items()}


def _conventions(kind: str, declared: Mapping[str, str]) -> dict[str, str]:
    known = inspect.signature(getattr(registry.reference(kind), kind)).parameters
    options = kind_named(kind).options
    return {name: value for name, value in declared.items() if name in known and name not in options}


def _claimed(function: Callable[..., Any], example: Example) -> bool:
    return set(example) <= set(inspect.signature(function).parameters)


def _measured(kind: str, function: Callable[..., Any], example: Example) -> Results:
    """Outputs and gradients under one upstream gradient whose axes lie the other way round."""
    asked = [n for n in kind_named(kind).differentiable if isinstance(example.get(n), Tensor)]
    leaves = {n: example[n].detach().requires_grad_() for n in asked}
    returned = function(**{**example, **leaves})
    outputs = returned if isinstance(returned, tuple) else (returned,)
    results = {f"output {i}": y.detach().double() for i, y in enumerate(outputs)}
    if asked and outputs[0].requires_grad and outputs[0].numel():
        upstream = Draw(99, torch.float64).turned(*outputs[0].shape).to(outputs[0].dtype)
        gradients = torch.autograd.grad(outputs[0], list(leaves.values()), upstream, allow_unused=True)
        for name, gradient in zip(leaves, gradients, strict=True):
            given = torch.zeros_like(example[name]) if gradient is None else gradient
            results[f"gradient of {name}"] = given.double()
    return results


def _refused(function: Callable[..., Any], example: Example) -> bool:
    try:
        function(**example)
    except ValueError:
        return True
    return False


def _exact(kind: str, example: Example, conventions: Mapping[str, str]) -> Results:
    function = getattr(registry.reference(kind), kind)
    wide = {"dtype": torch.float64} if kind in ("sinusoidal", "alibi") else {}
    return _measured(kind, lambda **a: function(**a, **conventions, **wide), _to(example, torch.float64))


def _farness(results: Results, exact: Results) -> dict[str, float]:
    """Largest distance of each result from the exact one; infinite where it is not finite or not there."""
    far = {}
    for name, right in exact.items():
        got = results.get(name, torch.zeros_like(right))
        if got.shape != right.shape:
            far[name] = math.inf
            continue
        distance = (got - right).abs().max().item() if right.numel() else 0.0
        far[name] = distance if math.isfinite(distance) else math.inf
    return far


def _allowed(kind: str, example: Example, exact: Results, *, wide_inside: bool) -> dict[str, float]:
    """How far right ways lie from the exact result: every form, every unusual way, and one rounding of the output."""
    dtype = next((v.dtype for v in example.values() if isinstance(v, Tensor) and v.is_floating_point()), torch.float32)
    most = {name: torch.finfo(dtype).eps / 2 * right.abs().max().item() if right.numel() else 0.0
            for name, right in exact.items()}
    ways = [form.forward for form in registry.forms(kind) if form.applies is None or form.applies(example)]
    ways += [made.function for made in registry.benigns(kind) if not _conventions_differ(made)]
    for way in ways:
        if not _claimed(way, example):
            continue
        if wide_inside:
            results = {n: v.to(dtype).double() for n, v in _measured(kind, way, _to(example, torch.float32)).items()}
        else:
            results = _measured(kind, way, example)
        for name, far in _farness(results, exact).items():
            most[name] = max(most[name], far)
    return most


def _conventions_differ(made: registry.Benign) -> bool:
    plain = registry.faults(made.kind)[0].declaration.conventions
    return _conventions(made.kind, made.declaration.conventions) != _conventions(made.kind, plain)


@cache
def _expected(kind: str, number: int, dtype: torch.dtype, wide_inside: bool) -> tuple[Results, dict[str, float]] | None:
    """The exact results of a probe and how far right ways lie from them; None where it is refused."""
    example = PROBES[kind][number](dtype)
    if _refused(getattr(registry.reference(kind), kind), example):
        return None
    exact = _exact(kind, example, {})
    return exact, _allowed(kind, example, exact, wide_inside=wide_inside)


def _wrongness(made: registry.Fault) -> float:
    """How many times farther from the exact result than right ways, at most, over probes called one after another."""
    worst, wide_inside = 0.0, made.declaration.arithmetic.internal == "float32"
    for dtype, number in product(DTYPES, range(len(PROBES[made.kind]))):
        example = PROBES[made.kind][number](dtype)
        if not _claimed(made.function, example):
            continue
        expected = _expected(made.kind, number, dtype, wide_inside)
        if expected is None:
            worst = max(worst, 0.0 if _refused(made.function, example) else math.inf)
            continue
        exact, allowed = expected
        if not all((v.abs() <= torch.finfo(dtype).max).all() for v in exact.values()):
            continue
        for name, far in _farness(_measured(made.kind, made.function, example), exact).items():
            if math.isfinite(allowed[name]) and far > 0:
                worst = max(worst, far / allowed[name] if allowed[name] else math.inf)
        if worst == math.inf:
            break
    return worst


WRONG_VALUES = [made for made in FAULTS if made.id not in SAME_VALUES | CHANGES_ITS_INPUT | NOT_PROBED
                and "/beyond_" not in made.id]  # right up to a size that these probes do not reach


@pytest.mark.parametrize("made", WRONG_VALUES, ids=lambda made: made.id)
def test_fault_is_wrong(made: registry.Fault) -> None:
    """A fault differs from the reference on a legitimate input, by more than right ways differ from it."""
    assert _wrongness(made) > ONE_ROUNDING_MORE.get(made.id, FARTHER)


def _largest_position(example: Example) -> float:
    """An angle of that many radians is rounded by this times the unit roundoff."""
    positions = example.get("positions")
    return 0.0 if positions is None or not positions.numel() else float(positions.abs().max())


def _without_row_shift(made: registry.Benign, found: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Biases whose rows may each have a constant of their own, counted from the first of the row, up to the query's place."""
    if made.declaration.conventions.get("alibi_row_shift") != "per_row":
        return found
    return {name: (bias - bias[..., :1]).tril(bias.shape[-1] - bias.shape[-2]) for name, bias in found.items()}


@pytest.mark.parametrize("made", BENIGNS, ids=lambda made: made.id)
def test_unusual_way_is_right(made: registry.Benign) -> None:
    """A right way agrees in half of the digits of its widest type: orders of evaluation cost less, formulas more."""
    dtype = torch.float32 if made.kind in ("sinusoidal", "alibi") else torch.float64
    conventions, tried = _conventions(made.kind, made.declaration.conventions), 0
    for probe in PROBES[made.kind]:
        example = probe(dtype)
        if not _claimed(made.function, example):
            continue
        if _refused(getattr(registry.reference(made.kind), made.kind), {**example, **conventions}):
            continue
        exact = _without_row_shift(made, _exact(made.kind, example, conventions))
        measured = _without_row_shift(made, _measured(made.kind, made.function, probe(dtype)))
        for name, far in _farness(measured, exact).items():
            size = exact[name].abs().max().item() if exact[name].numel() else 0.0
            rounded = torch.finfo(dtype).eps * _largest_position(example)
            assert far <= max(math.sqrt(torch.finfo(dtype).eps) * max(size, 1.0), rounded), (name, far)
        tried += 1
    assert tried > 0


@pytest.mark.parametrize("id", sorted(CHANGES_ITS_INPUT))
def test_fault_changes_its_input(id: str) -> None:
    made = next(made for made in FAULTS if made.id == id)
    example = PROBES[made.kind][0](torch.float32)
    before = example["x"].clone()
    made.function(**example)
    assert not torch.equal(example["x"], before)


class _Reductions(TorchDispatchMode):
    """Counts sums and means."""

    seen = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen += func.overloadpacket in (torch.ops.aten.sum, torch.ops.aten.mean)
        return func(*args, **(kwargs or {}))


def test_fault_of_cost_reduces_more_than_once() -> None:
    made = next(made for made in FAULTS if made.id in SAME_VALUES)
    counts = []
    for function in (registry.reference("rms_norm").rms_norm, made.function):
        with _Reductions() as mode:
            function(**PROBES["rms_norm"][0](torch.float32))
        counts.append(mode.seen)
    assert counts[0] == 1 < counts[1]
