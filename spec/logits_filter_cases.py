"""How examples of a logits filter are drawn, and one call judged.

Which entries stay is judged by margin (`Filtered`): by the logits, by what they become, or by their probabilities, no dropped entry
may surely beat a kept one, and the number of kept ones must be one that some rounding of the running sum leads to.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from assay import registry
from assay.cases import Cases, Configuration, Example, draw_values, generator
from assay.contract.declaration import Declaration
from assay.errors import ExampleOverError
from assay.ledger import fact
from assay.numbers.bound import Bounded
from assay.spec.margins import evaluated, highest, lowest
from assay.subject import Subject


class LogitsFilterCases(Cases):
    """Rows of V logits: ties and no ties, entries that are −∞ already, k at and above V, p near 0 and 1."""

    kind = "logits_filter"
    dims = {"N": (3, 1, 2, 5, 0), "V": (5, 1, 2, 3, 8, 17, 33, 64, 65, 129)}
    flags = {
        "temperature": (1.0, 0.5, 2.0, 0.7, 1.3),
        "top_k": (None, 2, 1, 3, 5, 40, 200),
        "top_p": (None, 0.9, 0.5, 0.3, 0.99, 1.0),
        "masked": (False, True, False),
    }
    families = ("integers", "normal", "peaked", "positive", "small", "heavy", "constant", "very_peaked")

    def adapt(self, configuration: Configuration, claims: Declaration) -> Configuration | None:
        if configuration.dims["N"] == 0 and not claims.claims("empty"):
            configuration = configuration.but(N=1)
        return configuration

    def build(self, configuration: Configuration, dtype: torch.dtype) -> Example:
        rows, size, flags = configuration.dims["N"], configuration.dims["V"], configuration.flags
        logits = draw_values(configuration.family, (rows, size), generator(configuration.seed, "logits"), dtype)
        if flags["masked"] and size > 1:
            hidden = torch.rand(rows, size, generator=generator(configuration.seed, "masked")) < 0.4
            hidden[:, configuration.seed % size] = False
            logits = logits.masked_fill(hidden, -math.inf)
        options: dict[str, Any] = {"top_k": flags["top_k"], "top_p": flags["top_p"]}
        arguments = {"logits": logits} | {name: value for name, value in options.items() if value is not None}
        if flags["temperature"] != 1.0:
            arguments["temperature"] = flags["temperature"]
        return Example(configuration, dtype, arguments)


@dataclass(frozen=True)
class Filtered:
    """One call's outcome: what came back with the bar of the scaled logits, those, and which entries stay."""

    out: Bounded
    scaled: Bounded
    kept: torch.Tensor


def filtered(subject: Subject, example: Example) -> Filtered:
    """One call, its kept set found within reach; ends the example where it is not."""
    out = subject(**example)
    if not fact(not bool(out.value.isnan().any()), "an entry is NaN", check="no NaN", decided=False):
        raise ExampleOverError("NaN")
    temperature = example.arguments.get("temperature", 1.0)
    scaled = subject.bars(logits=example.logits, temperature=temperature)
    kept = out.value > -math.inf
    numbers = evaluated(subject, registry.reference("logits_filter").DECIDERS, logits=example.logits, temperature=temperature)
    for row in range(len(kept)):
        reason = _Row(subject, example, [one[row] for one in numbers], row).refusal(kept[row])
        if reason:
            want = subject.exact(**example).value[row] > -math.inf
            fact(
                False,
                f"row {row} {reason}",
                got=f"{int(kept[row].sum())} kept: {few(kept[row])}",
                expected=f"such as {few(want)}",
                check="kept entries",
            )
            raise ExampleOverError("wrong set")
    fact(True, "", decided=not bool((kept | (example.logits == -math.inf)).all()), check="kept entries")
    return Filtered(Bounded(out.value, scaled.bar), Bounded(scaled.value, torch.zeros_like(scaled.bar)), kept)


def few(kept: torch.Tensor) -> str:
    """Places of the kept entries, the first twelve."""
    found = kept.nonzero().flatten().tolist()
    return str(found) if len(found) <= 12 else f"{found[:12]} and {len(found) - 12} more"


class _Row:
    """One row's reachable outcomes."""

    def __init__(self, subject: Subject, example: Example, numbers: list[Bounded], row: int) -> None:
        self.subject, self.options = subject, {"temperature": 1.0, "top_k": None, "top_p": None, **example.arguments}
        self.logits = example.logits[row].double()
        self.numbers = [Bounded(self.logits, torch.zeros_like(self.logits)), *numbers]
        self.there = self.logits > -math.inf
        self.total = int(self.there.sum())

    def refusal(self, kept: torch.Tensor) -> str:
        """Why the kept set cannot be; empty where it can."""
        if bool((kept & ~self.there).any()):
            return "has an entry that was −∞"
        if not bool(kept.any()):
            return "keeps nothing"
        count = int(kept.sum())
        if not any(self._counts(size, count) for size in self._sizes(kept)):
            return "keeps a wrong number of entries"
        if all(self._beaten(numbers, kept) for numbers in self.numbers):
            return "drops an entry that surely beats a kept one"
        return ""

    def _beaten(self, numbers: Bounded, kept: torch.Tensor) -> bool:
        left = torch.where(kept | ~self.there, -math.inf, lowest(numbers)).amax()
        return bool(left > torch.where(kept, highest(numbers), math.inf).amin())

    def _sizes(self, kept: torch.Tensor) -> set[int]:
        """How many entries top-k may leave."""
        k = self.options["top_k"]
        if k is None or k >= self.total:
            return {self.total}
        if self.subject.conventions["topk_ties"] == "exactly_k":
            return {k}
        return {size for numbers in self.numbers for size in self._tied(numbers, k)}

    def _tied(self, numbers: Bounded, k: int) -> range:
        """Sizes of the set of all that equal the k-th: from those that surely do to those that may."""
        low, high = lowest(numbers)[self.there], highest(numbers)[self.there]
        kth_low, kth_high = low.sort(descending=True).values[k - 1], high.sort(descending=True).values[k - 1]
        surely = (low >= kth_high) if bool((low == high).all()) else low > kth_high
        return range(max(k, int(surely.sum())), int((high >= kth_low).sum()) + 1)

    def _counts(self, size: int, count: int) -> bool:
        """Whether top-p may keep this many of the `size` entries that top-k left."""
        p = self.options["top_p"]
        if p is None or p >= 1:
            return count == size
        if not 1 <= count <= size:
            return False
        ordered = self.logits[self.there].sort(descending=True).values[:size].to(self.subject.dtype).unsqueeze(0)
        forms = registry.reference("logits_filter").EXCESS
        (over,) = evaluated(self.subject, forms, ordered=ordered, temperature=self.options["temperature"], top_p=p)
        low, high = lowest(over)[0], highest(over)[0]
        strict = self.subject.conventions["topp_boundary"] == "exceed"
        needed = count == 1 or bool(low[count - 2] <= 0 if strict else low[count - 2] < 0)
        enough = count == size or bool(high[count - 1] > 0 if strict else high[count - 1] >= 0)
        return needed and enough


def agree(subject: Subject, example: Example) -> None:
    """The kept set is within reach, and kept logits are the input's divided by the temperature."""
    found = filtered(subject, example)
    assert found.out[found.kept] == found.scaled[found.kept]


def temperatures(example: Example, temperature: float) -> Example:
    """The same logits at a temperature, unfiltered."""
    return example.without("top_k", "top_p", "temperature").but(temperature=temperature)
