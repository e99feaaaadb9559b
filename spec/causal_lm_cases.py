"""How examples of language models are drawn, and how a property talks to one."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from assay.cases import Cases, Configuration, Example, generator
from assay.contract.declaration import Declaration
from assay.errors import ExampleOverError
from assay.hosting import Answer, Handle
from assay.ledger import fact
from assay.numbers.bound import Bounded
from assay.spec.own_rounding import ROWS_TOGETHER, gauged
from assay.subject import Subject

ENDS = 0.15  # share of ids that are the first or the last word


class ModelCases(Cases):
    """B sequences of T tokens: real lengths differ, padding stands right or left; S splits them into chunks."""

    kind = "causal_lm"
    dims = {"B": (2, 1, 3), "T": (5, 2, 3, 4, 8, 9, 13, 1), "S": (2, 1, 3, 4)}
    flags = {"padding": ("none", "right", "left"), "weights": (0, 1, 2)}
    families = ("integers",)
    layouts = ("contiguous",)

    def adapt(self, configuration: Configuration, claims: Declaration) -> Configuration | None:
        side = configuration.flags["padding"]
        claimed = claims.claims("mask") and claims.claims("padding") and (side != "left" or claims.claims("left_padding"))
        return configuration if side == "none" or claimed else configuration.but(padding="none")

    def build(self, configuration: Configuration, dtype: torch.dtype) -> Example:
        d, source = configuration.dims, generator(configuration.seed, "ids")
        drawn = torch.rand(d["B"], d["T"], generator=source, dtype=torch.float64)
        ends = torch.rand(d["B"], d["T"], generator=source) < ENDS
        lengths = torch.randint(1, d["T"] + 1, (d["B"], 1), generator=source)
        lengths[configuration.seed % d["B"]] = d["T"]  # one row is all real
        places = torch.arange(d["T"])
        side = configuration.flags["padding"]
        real = places < lengths if side == "right" else places >= d["T"] - lengths
        return Example(configuration, dtype, {}, {"drawn": torch.where(ends, drawn.round(), drawn),
                                                  "mask": real if side != "none" else None})


@dataclass
class Model:
    """One model with the weights of one seed, as a property talks to it."""

    subject: Subject
    seed: int
    instance: int = 0
    vocabulary: int = 0
    longest: int | None = None
    released: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        size, longest = self._told("vocab_size"), self._told("max_length")
        if not fact(type(size) is int and size > 0, "vocab_size is no whole number above 0", got=repr(size)[:40],
                    expected="V", check="vocab_size", decided=False):
            raise ExampleOverError("no vocabulary")
        self.vocabulary = size
        self.longest = longest if isinstance(longest, int) else None

    def _told(self, name: str) -> Any:
        outputs = self.subject.ask(name, {}, seed=self.seed, instance=self.instance).outputs
        return outputs[0] if outputs else None

    def ids(self, example: Example, label: str = "") -> torch.Tensor:
        """The example's ids within this vocabulary, or (with a label) other ones; cut to what the model takes."""
        source = example.generator(label)
        drawn = torch.rand(example.drawn.shape, generator=source, dtype=torch.float64) if label else example.drawn
        words = (drawn * self.vocabulary).long().clamp(max=self.vocabulary - 1)
        return words if self.longest is None else words[:, : self.longest]

    def ask(self, method: str, arguments: dict[str, Any], **circumstances: Any) -> Answer:
        """One call of this very object."""
        return self.subject.ask(method, arguments, seed=self.seed, **{"instance": self.instance, **circumstances})

    def logits(self, ids: torch.Tensor, mask: torch.Tensor | None = None, **circumstances: Any) -> torch.Tensor:
        """Logits (B,T,V) of a full pass, as they come."""
        answer = self.ask("__call__", _masked({"ids": ids}, mask), **circumstances)
        return self._scores(answer.outputs, tuple(ids.shape))

    def _scores(self, outputs: Sequence[Any], shape: tuple[int, ...]) -> torch.Tensor:
        found = outputs[0] if outputs else None
        right = isinstance(found, torch.Tensor) and found.is_floating_point() and tuple(found.shape) == (*shape, self.vocabulary)
        got = f"{found.dtype} {tuple(found.shape)}" if isinstance(found, torch.Tensor) else type(found).__name__
        if not fact(right, "the logits have not the shape (B, T, V)", got=got, expected=str((*shape, self.vocabulary)),
                    check="shape of logits", decided=False):
            raise ExampleOverError("no logits")
        assert isinstance(found, torch.Tensor)
        return found

    def measured(self, ids: torch.Tensor, mask: torch.Tensor | None = None) -> Bounded:
        """Logits of a full pass with the bar that its own rounding gives."""
        return gauged(self.logits, (ids, mask), together=self.subject.declaration.allows("B", ROWS_TOGETHER * len(ids)))

    def step(self, ids: torch.Tensor, cache: Handle | None, mask: torch.Tensor | None = None) -> tuple[torch.Tensor, Handle]:
        """Logits (B,S,V) of new tokens, and the cache, which stays with the model."""
        answer = self.ask("step", _masked({"ids": ids, "cache": cache}, mask), keep=(1,), grad_mode=False)
        if not fact(len(answer.outputs) == 2, f"step returns {len(answer.outputs)} results", expected="(logits, cache)",
                    check="results of step", decided=False):
            raise ExampleOverError("no cache")
        return self._scores(answer.outputs, tuple(ids.shape)), answer.outputs[1]

    def stepped(self, ids: torch.Tensor, mask: torch.Tensor | None, cuts: Sequence[int]) -> torch.Tensor:
        """Logits of all tokens, fed in chunks that end at the cuts."""
        parts, cache, start = [], None, 0
        for end in cuts:
            out, cache = self.step(ids[:, start:end], cache, None if mask is None else mask[:, :end])
            parts.append(out)
            start = end
        return torch.cat(parts, 1).double()

    def twin(self, instance: int) -> Model:
        """Another object with the same weights."""
        return replace(self, instance=instance)


def _masked(arguments: dict[str, Any], mask: torch.Tensor | None) -> dict[str, Any]:
    return arguments if mask is None else {**arguments, "mask": mask}


def model_of(subject: Subject, example: Example) -> Model:
    """The model with the example's weights."""
    return Model(subject, int(example.configuration.flags["weights"]))


def same(left: torch.Tensor, right: Bounded, where: torch.Tensor | None = None) -> tuple[Bounded, Bounded]:
    """Both sides of a comparison under one bar, at the positions (B,T) that count."""
    one = Bounded(left.double(), right.bar)
    if where is None:
        return one, right
    return Bounded(one.value[where], one.bar[where]), Bounded(right.value[where], right.bar[where])
