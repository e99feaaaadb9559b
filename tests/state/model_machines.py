"""State of language models: caches under any sequence of operations, and generation in turns."""
from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import torch
from held import Machine, identical, one_pass, over, source, within
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, initialize, precondition, rule
from torch import Tensor

from assay.numbers.bound import Bounded
from assay.reference.logits_filter import logits_filter
from assay.reference.sampler import sampler

LONGEST = 10
SEEDS = st.integers(0, 5)


def words(seed: int, rows: int, size: int, vocabulary: int) -> Tensor:
    return torch.randint(0, vocabulary, (rows, size), generator=source(seed))


@dataclass
class Line:
    """Sequences (B,n) that share a cache, which of their tokens are real, which have ended, and the model that holds the cache."""

    model: Any
    ids: Tensor
    real: Tensor
    ended: Tensor
    cache: Any = None

    @classmethod
    def of(cls, model: Any, rows: int) -> Line:
        """Sequences without a token."""
        return cls(model, torch.zeros(rows, 0, dtype=torch.int64), torch.zeros(rows, 0, dtype=torch.bool),
                   torch.zeros(rows, dtype=torch.bool))

    @property
    def mask(self) -> Tensor | None:
        """None where every token is real."""
        return None if bool(self.real.all()) else self.real


class CacheMachine(Machine):
    """After any operations, new logits are those that a model just made gives for each sequence, alone and in one pass."""

    lines = Bundle("lines")

    @initialize()
    def start(self) -> None:
        self.models = [self.make(seed=0)]

    @rule(target=lines, rows=st.integers(1, 3), size=st.integers(1, 4), seed=SEEDS, padding=st.integers(0, 2))
    def open(self, rows: int, size: int, seed: int, padding: int) -> Line:
        """New sequences, read as one chunk; the first has so much padding on its left."""
        return self.read(Line.of(self.models[-1], rows), size, seed, padding)

    @rule(line=lines)
    def end_first_row(self, line: Line) -> None:
        """It has said all: what comes from now on is padding."""
        line.ended = line.ended | (torch.arange(len(line.ids)) == 0)

    @rule(line=lines, seed=SEEDS)
    def append_token(self, line: Line, seed: int) -> None:
        self.read(line, 1, seed)

    @rule(line=lines, size=st.integers(2, 4), seed=SEEDS)
    def append_chunk(self, line: Line, size: int, seed: int) -> None:
        self.read(line, size, seed)

    @rule(target=lines, line=lines)
    def fork(self, line: Line) -> Line:
        """A copy goes its own way."""
        return Line(line.model, line.ids, line.real, line.ended, copy.deepcopy(line.cache))

    @rule(target=lines, line=lines, chosen=st.lists(st.integers(0, 2), min_size=1, max_size=3))
    def reorder_beams(self, line: Line, chosen: list[int]) -> Line:
        """Rows of the batch, some dropped, some twice."""
        rows = torch.tensor(chosen) % len(line.ids)
        cache = over(line.cache, lambda t: t.index_select(0, rows))
        return Line(line.model, line.ids[rows], line.real[rows], line.ended[rows], cache)

    @rule(line=lines, left=st.integers(1, LONGEST))
    def crop(self, line: Line, left: int) -> None:
        """The newest tokens are taken back."""
        left = min(left, line.ids.shape[1])
        line.ids, line.real, line.cache = line.ids[:, :left], line.real[:, :left], over(line.cache, lambda t: t[:, :, :left])

    @rule(line=lines, size=st.integers(1, 3), seed=SEEDS, padding=st.integers(0, 2))
    def reset(self, line: Line, size: int, seed: int, padding: int) -> None:
        """Begun anew, the old cache dropped."""
        line.ids, line.real, line.ended, line.cache = line.ids[:, :0], line.real[:, :0], line.ended & False, None
        self.read(line, size, seed, padding)

    @rule(line=lines)
    def move(self, line: Line) -> None:
        """To another type and back, which loses nothing, into other memory."""
        line.cache = over(line.cache, lambda t: t.to(torch.float64).to(t.dtype))

    @precondition(lambda self: len(self.models) < 3)
    @rule(line=lines)
    def copy_model(self, line: Line) -> None:
        """A deep copy of the model takes over a line, and whatever begins from now on."""
        self.models.append(copy.deepcopy(line.model))
        line.model = self.models[-1]

    @rule(size=st.integers(1, LONGEST), seed=SEEDS)
    def full_pass_between(self, size: int, seed: int) -> None:
        """The same object is used without a cache."""
        self.models[-1](words(seed, 2, size, self.models[-1].vocab_size))

    def read(self, line: Line, size: int, seed: int, padding: int = 0) -> Line:
        past = line.ids.shape[1]
        size = min(size, LONGEST - past)
        if size:
            new = words(seed, len(line.ids), size, line.model.vocab_size)
            real = ~line.ended[:, None].repeat(1, size)
            real[0, : min(padding, size - 1)] = False
            line.ids, line.real = torch.cat([line.ids, new], 1), torch.cat([line.real, real], 1)
            try:
                logits, line.cache = line.model.step(new, line.cache, mask=line.mask)
            except RuntimeError as error:
                raise AssertionError(f"{size} tokens after {past} cached ones are refused: {error}") from error
            for b, counted in enumerate(real):
                whole = self.whole(line.ids[b : b + 1], line.real[b : b + 1])
                exact = Bounded(whole.value[0, past:][counted], whole.bar[0, past:][counted])
                within(logits[b][counted], exact, f"logits of row {b} after {past} cached tokens", sides=2)
        return line

    def whole(self, ids: Tensor, real: Tensor) -> Bounded:
        """What a model just made gives for one sequence."""
        key = f"{ids.tolist()} {real.tolist()}"
        if key not in self.known:
            self.known[key] = one_pass(self.make(seed=0), ids, None if bool(real.all()) else real)
        return self.known[key]


# ------------------------------------------------------------------------------------------------ generation
@dataclass
class Stream:
    """One generation: how it began, how words are chosen, what came."""

    prompt: Tensor
    temperature: float
    top_k: int | None
    seed: int
    chosen: list[Tensor] = field(default_factory=list)
    logits: list[Tensor] = field(default_factory=list)
    cache: Any = None


class GenerationMachine(Machine):
    """Streams generated in turns by one model are those that a model just made generates one at a time, bit for bit."""

    streams = Bundle("streams")
    draw = staticmethod(sampler)

    @initialize()
    def start(self) -> None:
        self.model, self.begun = self.model_made(), list[Stream]()

    def teardown(self) -> None:
        """Every stream is held against its replay, whether a rule has asked for that or not."""
        for stream in self.begun:
            self.replayed(stream)

    def model_made(self) -> Any:
        return self.make(seed=0)

    @rule(target=streams, rows=st.integers(1, 2), size=st.integers(1, 4), seed=SEEDS, temperature=st.sampled_from((0.0, 0.7, 1.3)),
          top_k=st.sampled_from((None, 3)))
    def begin(self, rows: int, size: int, seed: int, temperature: float, top_k: int | None) -> Stream:
        stream = Stream(words(seed, rows, size, self.model.vocab_size), temperature, top_k, seed)
        self.begun.append(stream)
        self.advance_in(self.model, stream)
        return stream

    @rule(stream=streams, times=st.integers(1, 3))
    def advance(self, stream: Stream, times: int) -> None:
        for _ in range(min(times, LONGEST - 4 - len(stream.chosen))):
            self.advance_in(self.model, stream)

    @rule(stream=streams)
    def replay(self, stream: Stream) -> None:
        """In the midst of all others."""
        self.replayed(stream)

    def replayed(self, stream: Stream) -> None:
        """Generated again from its prompt, by a model just made and alone."""
        again = Stream(stream.prompt, stream.temperature, stream.top_k, stream.seed)
        fresh = self.model_made()
        for turn, (chosen, logits) in enumerate(zip(stream.chosen, stream.logits, strict=True)):
            self.advance_in(fresh, again)
            identical(again.logits[turn], logits, f"logits of turn {turn}")
            identical(again.chosen[turn], chosen, f"words of turn {turn}")

    def advance_in(self, model: Any, stream: Stream) -> None:
        turn = len(stream.chosen)
        logits, stream.cache = model.step(stream.chosen[-1] if turn else stream.prompt, stream.cache)
        kept = logits_filter(logits[:, -1], temperature=stream.temperature, top_k=stream.top_k, temperature_zero="greedy")
        first = 1000 * stream.seed + 10 * turn
        stream.logits.append(logits)
        stream.chosen.append(torch.stack([self.draw(row, seed=first + b, num_samples=1) for b, row in enumerate(kept)]))


class SampledGenerationMachine(GenerationMachine):
    """The same, of a sampler in the loop with the reference's model."""

    @property
    def draw(self) -> Any:  # type: ignore[override]
        return self.make

    def model_made(self) -> Any:
        from assay.reference.causal_lm import causal_lm

        return causal_lm(seed=0)
