"""What the state machines hold results against, and how a machine is run on one implementation."""
from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test
from torch import Tensor

from assay import registry
from assay.contract.declaration import Declaration
from assay.numbers.arithmetic import FORMATS, Arithmetic
from assay.numbers.bound import Bounded, rounding
from assay.numbers.evaluate import evaluate
from assay.numbers.perturbing import Perturbing
from assay.numbers.sampled import spread_bar

Make = Callable[..., Any]
RUNS, TOGETHER = 2, 8  # runs that tell a model's own rounding: calls, rows of each


class Machine(RuleBasedStateMachine):
    """Operations on one implementation, in any order; `declaration` is set by `machine`."""

    declaration: Declaration
    known: dict[str, Bounded]  # what was computed once for this implementation

    @property
    def make(self) -> Make:
        """The implementation itself."""
        function = self.declaration.function
        assert function is not None
        return function


def machine(base: type[Machine], id: str) -> type[Machine]:
    """The machine on the reference ("kind/reference"), a planted fault or a right way."""
    kind = id.split("/")[0]
    known = {f"{kind}/{made.name}": made for made in registry.declarations(kind)}
    known |= {one.id: one.declaration for one in (*registry.faults(kind), *registry.benigns(kind))}
    return type(base.__name__, (base,), {"declaration": known[id], "known": {}})


def run(base: type[Machine], id: str, *, examples: int, steps: int = 12) -> None:
    """Draw sequences of operations; the first that breaks is raised, as it was drawn."""
    drawn = settings(max_examples=examples, stateful_step_count=steps, derandomize=True, database=None, deadline=None,
                     phases=(Phase.generate,), report_multiple_bugs=False, print_blob=False,
                     suppress_health_check=list(HealthCheck))
    with torch.no_grad():
        run_state_machine_as_test(machine(base, id), settings=drawn)


# ------------------------------------------------------------------------------------------------ bars
def within(found: Tensor, exact: Bounded, what: str, *, sides: int = 1) -> None:
    """Every element within its bar, or within one on each side where both are computed."""
    assert tuple(found.shape) == tuple(exact.value.shape), f"{what}: shape {tuple(found.shape)}"
    off = ~((found.double() - exact.value).abs() <= sides * exact.bar)
    assert not bool(off.any()), f"{what}: {int(off.sum())} of {off.numel()} elements are off"


def identical(found: Tensor, expected: Tensor, what: str) -> None:
    """Bit for bit."""
    assert torch.equal(found, expected), f"{what} differs"


_FORMULAS: dict[Any, Sequence[Any]] = {}


def formula(kind: str, arguments: Mapping[str, Any], conventions: Mapping[str, Any] | None = None) -> Sequence[Any]:
    """The outputs of the kind's formula, with the bars of its forms; computed once, since machines draw the same sequences for
    every implementation."""
    given = {**arguments, **(conventions or {})}
    key = kind, *((name, str(over(value, lambda t: (t.dtype, t.shape, t.tolist())))) for name, value in given.items())
    if key not in _FORMULAS:
        _FORMULAS[key] = evaluate(registry.forms(kind), given, torch.float32, Arithmetic()).outputs
    return _FORMULAS[key]


def one_pass(model: Callable[..., Tensor], ids: Tensor, mask: Tensor | None) -> Bounded:
    """Logits of a full pass; the bar comes from moving every operation inside by about a rounding, as in the specification."""
    value = model(ids, mask=mask).double()
    many, masks, apart = ids.repeat(TOGETHER, 1), None if mask is None else mask.repeat(TOGETHER, 1), []
    for seed in range(1, RUNS + 1):
        with Perturbing(_own, source(seed), unit=2.0):
            apart.append(model(many, mask=masks).double().reshape(TOGETHER, *value.shape) - value)
    return Bounded(value, spread_bar(value, torch.cat(apart)) + rounding(value.abs(), FORMATS["float32"]))


def _own(dtype: torch.dtype) -> Any:
    name = str(dtype).removeprefix("torch.")
    return Arithmetic().model(name) if name in FORMATS else None


# ------------------------------------------------------------------------------------------------ trees of tensors
def over(value: Any, change: Callable[[Tensor], Any]) -> Any:
    """A tree of tensors with every tensor changed; anything else is copied."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {name: over(part, change) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(over(part, change) for part in value)
    return copy.deepcopy(value)


def source(seed: int) -> torch.Generator:
    """A generator of its own."""
    return torch.Generator().manual_seed(seed)
