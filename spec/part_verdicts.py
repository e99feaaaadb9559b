"""Whether the parts of a model give what their formulas give: by their own weights, on what they received, with proven bounds.

All parts of one class in a model are of one variant: the one that most of them fit. A class that fits none is said to be none of
the known formulas, unless its name leaves no doubt; switches among its attributes are a doubt.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from assay.numbers.arithmetic import Arithmetic
from assay.numbers.bound import Bounded
from assay.numbers.evaluate import evaluate
from assay.numbers.forms import Form
from assay.recognition import Part
from assay.spec.part_formulas import VARIANTS, UnknownError, Variant

ARITHMETIC = Arithmetic.declared({"angles": "float32", "tables": "input"})
NAMED = ("rmsnorm", "layernorm", "rotaryembedding")  # what a class is called that can be nothing else


@dataclass
class Verdict:
    """What became of one part. status: right, wrong or unrecognised."""

    part: Part
    status: str
    variant: str = ""
    reason: str = ""
    got: Tensor | None = None
    want: Bounded | None = None
    out_of_range: bool = False  # an intermediate result may leave the range of the type: nothing is said

    @property
    def check(self) -> str:
        """What was compared, in words."""
        told = f", {self.variant}" if self.variant else ""
        return f"{self.part.name} ({self.part.type}) is {self.part.kind.replace('_', ' ')}{told}"

    @property
    def ratio(self) -> float:
        """Largest error over its bound."""
        if self.got is None or self.want is None:
            return 0.0
        gap = (self.got.double() - self.want.value).abs()
        return float(torch.where(gap == 0, 0.0, gap / self.want.bar).nan_to_num(nan=torch.inf).max()) if gap.numel() else 0.0


def read(told: Sequence[Mapping[str, Any]], tensors: Sequence[Tensor]) -> list[Part]:
    """Parts as a host handed them over."""
    left = iter(tensors)
    return [Part(**{**one, "tensors": {name: next(left) for name in one["tensors"]}}) for one in told]


def gathered(ask: Callable[[int], tuple[Any, ...]]) -> list[Part]:
    """All parts of one pass, asked for from where the last answer ended until each has come: ask(skip), see `harness/parts.py`."""
    found: list[Part] = []
    while True:
        told, *tensors = ask(len(found))
        new = read(told, tensors)[len(found):]
        more = next((place for place, part in enumerate(new) if part.kind and not part.options.get("kept")), len(new))
        found += new[: max(more, 1)]
        if more >= len(new):
            return found


def judged(parts: Sequence[Part]) -> list[Verdict]:
    """A verdict for each part, in order."""
    tried = [_tried(part) for part in parts]
    fits: dict[tuple[Any, ...], Counter[str]] = {}
    for part, found in zip(parts, tried, strict=True):
        if isinstance(found, list) and found[-1].ratio <= 1:
            fits.setdefault(part.sort, Counter())[found[-1].variant] += 1
    return [_settled(part, found, fits.get(part.sort, Counter())) for part, found in zip(parts, tried, strict=True)]


def _tried(part: Part) -> list[Verdict] | str:
    """The part held against the variants of its kind, up to the first that it fits; a reason where it cannot be."""
    if not part.kind or "out" not in part.tensors:
        return part.reason or "its tensors were not handed over"
    if not part.tensors["out"].is_floating_point():
        return f"its result is {part.tensors['out'].dtype}"
    found: list[Verdict] = []
    try:
        for variant in VARIANTS[part.kind](part):
            found.append(_held(part, variant))
            if found[-1].ratio <= 1:
                break
    except UnknownError as error:
        return str(error)
    return found or "its call cannot be told"


def _settled(part: Part, found: list[Verdict] | str, fits: Counter[str]) -> Verdict:
    """By the variant that most parts of the class fit."""
    if isinstance(found, str):
        return Verdict(part, "unrecognised", reason=found)
    named = any(name in part.type.lower() for name in NAMED) and (part.kind == "rotary" or not part.options["modes"])
    if not fits and not part.sure and not named:
        return Verdict(part, "unrecognised", reason=f"no known formula of a {part.kind.replace('_', ' ')} gives its result")
    best = fits.most_common(1)[0][0] if fits else min(found, key=lambda one: one.ratio).variant
    tried = {one.variant: one for one in found}
    others = (_held(part, variant) for variant in VARIANTS[part.kind](part) if variant.name == best)
    chosen = tried.get(best) or next(others, found[-1])  # the last: what it fits, where it has not that variant
    if chosen.out_of_range:
        return Verdict(part, "unrecognised", reason="a number inside may leave the range of its type")
    chosen.status = "right" if chosen.ratio <= 1 else "wrong"
    return chosen


def _held(part: Part, variant: Variant) -> Verdict:
    """One variant, exact and with its bar, beside what the part gave; the bar of the first form, where that is enough."""
    verdict = _compared(part, variant, variant.forms[:1])
    return verdict if verdict.ratio <= 1 or len(variant.forms) == 1 else _compared(part, variant, variant.forms)


def _compared(part: Part, variant: Variant, forms: Sequence[Form]) -> Verdict:
    evaluation = evaluate(forms, variant.arguments, part.tensors["out"].dtype, ARITHMETIC)
    got, found = _results(part), [one for one in evaluation.outputs if isinstance(one, Bounded)]
    if [one.shape for one in got] != [one.shape for one in found]:
        return Verdict(part, "", variant.name, got=torch.full((1,), torch.nan), want=Bounded(torch.zeros(1), torch.zeros(1)))
    value, bar, result = (_flat(parts) for parts in ([one.value for one in found], [one.bar for one in found], got))
    seen = part.tensors.get("mask")
    if seen is not None:  # what a query gives that sees no key means nothing
        rows = seen.any(-1, keepdim=True).expand(*result.shape[:-1], 1).expand(result.shape)
        value, bar, result = value[rows], bar[rows], result[rows]
    return Verdict(part, "", variant.name, got=result, want=Bounded(value, bar), out_of_range=evaluation.left_range)


def _results(part: Part) -> list[Tensor]:
    """What the part gave, laid out as the formula gives it."""
    out, second = part.tensors["out"], {"rotary": "sin", "rotation": "out_k"}.get(part.kind)
    return [out.transpose(1, 2) if part.kind == "attention" else out, *([part.tensors[second]] if second else [])]


def _flat(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat([one.reshape(-1) for one in parts])
