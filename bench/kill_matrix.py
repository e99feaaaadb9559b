"""How sharp is the specification, and how sharp are the rules in common use? Faults told, right ways called wrong.

    python bench/kill_matrix.py [KIND ...] [--seeds 20] [--json FILE]

For assay: the doctor's figures per kind. For each rule: the same planted implementations on the same boundary examples,
outputs and gradients, in float32, bfloat16 and float16; a fault is missed when no example tells it, a right way fails
when any example calls it wrong. Right ways are further drawn with every seed. Gradients are left out where the output
is not finite.
"""
from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from assay import registry
from assay.cases import Cases, Configuration, Example, draw_values
from assay.contract.declaration import Declaration
from assay.contract.kinds import KINDS
from assay.hosting import Call
from assay.run import doctor
from assay.run.hosts import LocalHost

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
Planted = registry.Fault | registry.Benign


@dataclass(frozen=True)
class Result:
    """One result: what came, what the same-precision reference gives, and the float64 truth."""

    got: torch.Tensor
    reference: torch.Tensor
    truth: torch.Tensor


Rule = Callable[[Result], bool]


def defaults(r: Result) -> bool:
    """torch.testing.assert_close, defaults."""
    return _close(r.got, r.reference)


def one_percent(r: Result) -> bool:
    """atol = rtol = 1e-2."""
    return _close(r.got, r.reference, rtol=1e-2, atol=1e-2)


def twice_the_reference(r: Result) -> bool:
    """Error at most twice the same-precision reference's."""
    return r.got.shape == r.truth.shape and not bool(_error(r.got, r.truth) > 2 * _error(r.reference, r.truth))


def cosine(r: Result) -> bool:
    """Cosine similarity > 0.99."""
    if r.got.shape != r.truth.shape:
        return False
    one, other = r.got.double().flatten(), r.truth.flatten()
    if bool(other.isnan().any()):
        return bool(one.isnan().equal(other.isnan()))
    length = one.norm() * other.norm()
    return bool((one == other).all()) if bool(length == 0) else bool(one @ other > 0.99 * length)


def per_mille(r: Result) -> bool:
    """rtol = 1e-3 (atol the same) on three fixed shapes."""
    return _close(r.got, r.reference, rtol=1e-3, atol=1e-3)


RULES: Mapping[str, tuple[Rule, int | None]] = {  # rule, and how many examples it looks at (None: all)
    "assert_close, defaults": (defaults, None), "atol = rtol = 1e-2": (one_percent, None),
    "error ≤ 2 × reference's": (twice_the_reference, None), "cosine > 0.99": (cosine, None),
    "three shapes, rtol 1e-3": (per_mille, 3),
}


def _close(got: torch.Tensor, want: torch.Tensor, **tolerance: float) -> bool:
    try:
        torch.testing.assert_close(got, want, equal_nan=True, **tolerance)
    except AssertionError:
        return False
    return True


def _error(got: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    gap = (got.double() - truth).abs()
    gap = torch.where((got.double() == truth) | (got.isnan() & truth.isnan()), 0.0, gap).nan_to_num(nan=torch.inf)
    return gap.max() if gap.numel() else torch.tensor(0.0, dtype=torch.float64)


# ------------------------------------------------------------------------------------------------ the same cases
class Examples:
    """The boundary examples of a kind with the reference's answers, made once and kept."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.cases: Cases = registry.properties(kind)[0].cases
        self.wrt = KINDS[kind].differentiable
        (self.reference,) = (made for made in registry.declarations(kind) if made.name == "reference")
        self._kept: dict[tuple[str, torch.dtype], tuple[Example, torch.Tensor, Any, Any]] = {}

    def configurations(self, claims: Declaration, seeds: Sequence[int]) -> list[Configuration]:
        """Boundary configurations, as drawn and with other values."""
        return [c.but(seed=c.seed + 1000 * seed) for seed in seeds for c in self.cases.boundary(claims, {})]

    def results(self, planted: Planted, configuration: Configuration, dtype: torch.dtype) -> Iterator[Result] | None:
        """Output and gradients of a planted implementation, or None when it raised."""
        example, upstream, reference, truth = self._known(configuration, dtype)
        got = self._run(planted.declaration, example, upstream)
        if got is None or reference is None or truth is None:
            return None
        finite = bool(truth[0].isfinite().all())
        return (Result(*three) for three in list(zip(got, reference, truth, strict=True))[: None if finite else 1])

    def _known(self, configuration: Configuration, dtype: torch.dtype) -> tuple[Example, torch.Tensor, Any, Any]:
        key = (configuration.key(), dtype)
        if key not in self._kept:
            example = self.cases.build(configuration, dtype)
            with torch.no_grad():
                shape = getattr(registry.reference(self.kind), self.kind)(**example.arguments).shape
            upstream = draw_values("normal", tuple(shape), example.generator("upstream"), dtype)
            wide = {name: value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
                    for name, value in example.arguments.items()}
            double = Example(configuration, torch.float64, wide)
            self._kept[key] = (example, upstream, self._run(self.reference, example, upstream),
                               self._run(self.reference, double, upstream.double()))
        return self._kept[key]

    def _run(self, made: Declaration, example: Example, upstream: torch.Tensor) -> list[torch.Tensor] | None:
        """Output and gradients; None when the call raises "not implemented", NaN of the right shape when otherwise."""
        layouts = dict.fromkeys(example.arguments, example.configuration.layout)
        wrt = tuple(name for name in self.wrt if name in example.arguments)
        answer = LocalHost([made]).call(Call(self.kind, made.name, example.arguments, layouts=layouts, wrt=wrt,
                                             upstream=(upstream,)))
        if answer.refusal is not None:
            if answer.refusal.not_implemented:
                return None
            return [torch.full_like(one, torch.nan) for one in (upstream, *(example[name] for name in wrt))]
        zeros = (torch.zeros_like(example[name]) for name in wrt)
        return [answer.outputs[0], *(zero if answer.gradients.get(name) is None else answer.gradients[name]
                                     for name, zero in zip(wrt, zeros, strict=True))]


def told(planted: Planted, examples: Examples, seeds: Sequence[int]) -> dict[str, bool]:
    """Rule -> whether it calls the implementation wrong on any example."""
    found = dict.fromkeys(RULES, False)
    for place, configuration in enumerate(examples.configurations(planted.declaration, seeds)):
        for dtype in DTYPES:
            trying = [name for name, (_, most) in RULES.items() if not found[name] and (most is None or place < most)]
            results = list(examples.results(planted, configuration, dtype) or ()) if trying else []
            for name in trying:
                found[name] = any(not RULES[name][0](result) for result in results)
    return found


# ------------------------------------------------------------------------------------------------ the table
def rules_table(kind: str, seeds: Sequence[int]) -> dict[str, dict[str, Any]]:
    """Rule -> faults missed and right ways called wrong, by name."""
    examples = Examples(kind)
    faults = {fault.id: told(fault, examples, (0,)) for fault in registry.faults(kind)}
    ways = {way.id: told(way, examples, seeds) for way in registry.benigns(kind)}
    return {rule: {"missed": [id for id, by in faults.items() if not by[rule]], "faults": len(faults),
                   "called_wrong": [id for id, by in ways.items() if by[rule]], "ways": len(ways)} for rule in RULES}


def assay_row(kind: str, seeds: Sequence[int]) -> dict[str, Any]:
    """The same for this specification, from the doctor."""
    kills = doctor.run([kind], benign=False)
    ways = doctor.run([kind], seeds=seeds, faults=False)
    return {"missed": kills.alive, "faults": len(kills.faults), "ways": len(ways.benigns),
            "called_wrong": sorted({one.planted for one in ways.benign_failures})}


def main() -> None:
    """Print a row a rule for every kind."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", default=["softmax", "attention"])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rules-only", action="store_true")
    asked = parser.parse_args()
    record: dict[str, Any] = {}
    for kind in asked.kinds:
        rows = {} if asked.rules_only else {"assay": assay_row(kind, range(asked.seeds))}
        rows |= rules_table(kind, range(asked.seeds))
        record[kind] = rows
        table = Table("rule", "faults missed", "right ways called wrong", title=kind, title_justify="left")
        for rule, row in rows.items():
            wrong = f"{len(row['called_wrong'])} of {row['ways']}"
            table.add_row(rule, f"{len(row['missed'])} of {row['faults']}", wrong)
        Console().print(table)
    if asked.json:
        asked.json.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
