"""How far the bounds lie above actual errors, per kind, form and precision: so that nobody widens one unseen.

    python bench/headroom.py [KIND ...]        # measures again and writes bench/headroom.json

Each form of a kind is run in plain torch on the specification's own examples, its error divided into its bar at the
element where that leaves least room. 1 would be a bound that is met exactly; below 1 it would be unsound.
"bfloat16" is every step in that type; "bfloat16 in float32" is float32 inside and one rounding at the end, declared as
such. Forms that sum one part after another are left out of the first: in plain torch they would also sum in that type,
which no implementation may do without saying so (accumulate=input).
"""
from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from assay import registry
from assay.cases import Cases, Example, draw_values
from assay.contract.kinds import KINDS
from assay.numbers.arithmetic import Arithmetic
from assay.numbers.evaluate import Evaluation, evaluate
from assay.numbers.forms import Form

RECORD = Path(__file__).with_name("headroom.json")
PRECISIONS = ("float32", "bfloat16", "bfloat16 in float32", "float16", "float16 in float32")
SEEDS = 3  # times the boundary examples, each time with other values


@dataclass
class Cell:
    """Headroom and relative bars of one form in one precision, a number a case."""

    headroom: list[float] = field(default_factory=list)
    bars: list[float] = field(default_factory=list)

    def summary(self) -> dict[str, float]:
        """Median, 90 % point and least headroom; median bar relative to the largest value. Four digits."""
        ordered = sorted(self.headroom)
        found = {
            "median": statistics.median(ordered), "p90": ordered[int(0.9 * (len(ordered) - 1))], "min": ordered[0],
            "relative_bar": statistics.median(self.bars), "cases": float(len(ordered)),
        }
        return {name: float(f"{value:.4g}") for name, value in found.items()}


def measure(kind: str, precisions: Sequence[str] = PRECISIONS, seeds: int = SEEDS) -> dict[str, Any]:
    """precision -> form -> "outputs" and "gradients" -> figures."""
    found: dict[str, Any] = {}
    for precision in precisions:
        cells: dict[tuple[str, str], Cell] = {}
        dtype, _, inside = precision.partition(" in ")
        for example in examples(kind, dtype, seeds):
            for (form, part), (headroom, bar) in one(kind, example, inside or "input"):
                cell = cells.setdefault((form, part), Cell())
                cell.bars.append(bar)
                if headroom < float("inf"):
                    cell.headroom.append(headroom)
        for (form, part), cell in cells.items():
            if cell.headroom:
                found.setdefault(precision, {}).setdefault(form, {})[part] = cell.summary()
    return found


def examples(kind: str, dtype: str, seeds: int) -> Iterator[Example]:
    """The boundary examples of a kind's specification under the reference's claims, `seeds` times."""
    cases: Cases = registry.properties(kind)[0].cases
    (claims,) = (made for made in registry.declarations(kind) if made.name == "reference")
    for configuration in cases.boundary(claims, {}):
        for seed in range(seeds):
            yield cases.build(configuration.but(seed=configuration.seed + 1000 * seed), getattr(torch, dtype))


def one(kind: str, example: Example, inside: str) -> Iterator[tuple[tuple[str, str], tuple[float, float]]]:
    """(form, part) and (headroom, relative bar) of every form on one example; nothing where the range may be left."""
    forms = registry.forms(kind)
    differentiable = KINDS[kind].differentiable
    wrt = tuple(name for name in differentiable if isinstance(example.arguments.get(name), torch.Tensor))
    with torch.no_grad():
        shape = forms[0].forward(**example.arguments).shape
    upstream = draw_values("normal", tuple(shape), example.generator("upstream"), example.dtype)
    arithmetic = Arithmetic(internal=inside)
    expected = evaluate(forms, example.arguments, example.dtype, arithmetic, upstream=upstream, wrt=wrt)
    if expected.left_range:
        return
    for form in forms:
        step_by_step = inside == "input" and example.dtype.itemsize < 4 and form.additions > 1
        if form.name not in expected.form_bars or step_by_step:
            continue
        out, gradients = actual(form, example.arguments, upstream, wrt, inside)
        yield (form.name, "outputs"), room(out, expected, expected.outputs[0].value, expected.form_bars[form.name][0])
        parts = [room(gradients[name], expected, expected.gradients[name].value, bar)
                 for name, bar in expected.form_gradient_bars[form.name].items()]
        if parts:
            yield (form.name, "gradients"), (min(headroom for headroom, _ in parts), max(bar for _, bar in parts))


def actual(form: Form, arguments: Mapping[str, Any], upstream: torch.Tensor,
           wrt: tuple[str, ...], inside: str = "input") -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
    """Output and gradients of a form in plain torch, in the arguments' own type or in float32 and then rounded."""
    if inside == "float32":
        wide = {name: value.float() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
                for name, value in arguments.items()}
        out, gradients = actual(form, wide, upstream.float(), wrt)
        return out.to(upstream.dtype), {name: value.to(upstream.dtype) for name, value in gradients.items()}
    if form.backward is not None:
        with torch.no_grad():
            return form.forward(**arguments), form.backward(upstream, wrt, **arguments)
    leaves = {name: arguments[name].clone().requires_grad_() for name in wrt}
    out = form.forward(**{**arguments, **leaves})
    if not out.requires_grad:
        return out, {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
    found = torch.autograd.grad(out, list(leaves.values()), upstream, allow_unused=True)
    return out.detach(), {name: torch.zeros_like(leaf) if part is None else part
                          for (name, leaf), part in zip(leaves.items(), found, strict=True)}


def room(got: torch.Tensor, expected: Evaluation, value: torch.Tensor, bar: torch.Tensor) -> tuple[float, float]:
    """Bar over error where that is least (infinite where nothing is off), and the widest bar over the largest value."""
    finite = value.isfinite() & bar.isfinite()
    error = (got.double() - value).abs()
    off = finite & (error > 0)
    largest = float(value[finite].abs().max()) if bool(finite.any()) else 0.0
    relative = float(bar[finite].max()) / largest if largest else 0.0
    return (float((bar[off] / error[off]).min()) if bool(off.any()) else float("inf")), relative


def main() -> None:
    """Measure the kinds that are named, or all that have a specification, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*")
    specified = {prop.kind for prop in registry.properties()}
    kinds = parser.parse_args().kinds or [name for name in KINDS if name in specified and not KINDS[name].factory]
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    for kind in kinds:
        record[kind] = measure(kind)
        for precision, forms in record[kind].items():
            for form, parts in forms.items():
                for part, found in parts.items():
                    print(f"{kind} · {precision} · {form} · {part}: median {found['median']:g}, p90 {found['p90']:g}, "
                          f"min {found['min']:g}, relative bar {found['relative_bar']:.2g}, {found['cases']:g} cases")
    RECORD.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
