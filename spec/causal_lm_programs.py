"""Programs of cache operations, drawn from an example's seed: what a server does with a model, in any order.

Sequences are begun, continued by a token or a chunk, forked, begun anew; the model is used without a cache and by another
caller in between. A cache stays with the host and can be of any type, so nothing here looks inside one.
"""
from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch

from assay.cases import Example
from assay.hosting import Handle
from assay.spec.causal_lm_cases import Model

BEGUN, LINES, OPERATIONS = 3, 4, 8  # sequences at first and at most, and what is done to them in one program
CHOICES = ("begin", "token", "token", "token", "chunk", "chunk", "fork", "fork", "anew", "full pass")


@dataclass
class Line:
    """Sequences (B,n) that share a cache, the logits that came for them, and the cache itself."""

    ids: torch.Tensor
    logits: list[torch.Tensor] = field(default_factory=list)
    cache: Handle | None = None


@dataclass
class Program:
    """One run of drawn operations on a model."""

    model: Model
    example: Example
    source: torch.Generator
    room: int
    lines: list[Line] = field(default_factory=list)
    closed: list[Line] = field(default_factory=list)

    def run(self) -> list[Line]:
        """Every sequence that was ever begun, as it was when the program ended or when it was begun anew."""
        for _ in range(BEGUN):
            self.begin()
        for _ in range(OPERATIONS):
            getattr(self, CHOICES[self.below(len(CHOICES))].replace(" ", "_"))()
        return self.closed + self.lines

    def below(self, count: int) -> int:
        """A whole number 0 … count − 1."""
        return int(torch.randint(0, count, (), generator=self.source))

    def some(self) -> Line:
        """One of the open sequences."""
        return self.lines[self.below(len(self.lines))]

    def words(self, size: int) -> torch.Tensor:
        """New tokens (B,size)."""
        return torch.randint(0, self.model.vocabulary, (self.example.dims["B"], size), generator=self.source)

    # -------------------------------------------------------------------------------------------- operations
    def begin(self) -> None:
        """A new sequence, while there are few; its first tokens come at once, where the model takes several."""
        if len(self.lines) < LINES:
            self.lines.append(Line(self.words(0)))
            self.read(self.lines[-1], 1 + self.below(3))

    def token(self) -> None:
        """One more token."""
        self.read(self.some(), 1)

    def chunk(self) -> None:
        """Several more, where the model takes several."""
        self.read(self.some(), 2 + self.below(3))

    def fork(self) -> None:
        """A sequence goes on in two ways, where caches can be copied: the copy first, then the original."""
        if len(self.lines) < LINES and self.model.subject.declaration.claims("beams"):
            old = self.some()
            if old.cache is not None and old.ids.shape[1] < self.room:
                self.lines.append(Line(old.ids, list(old.logits), replace(old.cache, copy=True)))
                self.read(self.lines[-1], 1)
                self.read(old, 1)

    def anew(self) -> None:
        """A cache is dropped, and its place taken by a sequence that begins."""
        self.closed.append(self.lines.pop(self.below(len(self.lines))))
        self.begin()

    def full_pass(self) -> None:
        """The same object is called without a cache."""
        ids = self.words(1 + self.below(self.room))
        self.model.logits(ids, self.mask(ids), grad_mode=False)

    def read(self, line: Line, size: int) -> None:
        """New tokens through the cache."""
        past = line.ids.shape[1]
        size = min(size if self.model.subject.declaration.claims("chunks") else 1, self.room - past)
        if size > 0:
            new = self.words(size)
            line.ids = torch.cat([line.ids, new], 1)
            found, line.cache = self.model.step(new, line.cache, self.mask(line.ids))
            line.logits.append(found)

    def mask(self, ids: torch.Tensor) -> torch.Tensor | None:
        """Which tokens are real, one flag for each so far."""
        return None if self.example.mask is None else self.example.mask[:, : ids.shape[1]]


def program(model: Model, example: Example) -> Program:
    """The program of an example; sequences grow to its T, or to what the model takes."""
    longest = example.dims["T"] if model.longest is None else min(model.longest, example.dims["T"])
    return Program(model, example, example.generator("program"), longest)
