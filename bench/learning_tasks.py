"""Toy tasks that tell a Transformer from a heap of layers, and how the models of `learning_models` are taught them.

Every number comes from local generators, so a curve is the same in every run on one machine. What is measured is always
on patterns, strings and images that training never shows.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from learning_models import (
    MaskedLanguageModel,
    Translator,
    VisionTransformer,
    masked_language_model,
    mixture_of_experts,
    translator,
    vision_transformer,
)
from torch import Tensor

from assay.reference.causal_lm import CausalLanguageModel, Size, causal_lm
from assay.reference.cross_entropy import cross_entropy
from assay.reference.lm_loss import lm_loss
from assay.reference.logits_filter import logits_filter
from assay.reference.mlm_mask import IGNORED, mlm_mask
from assay.reference.sampler import sampler
from assay.reference.tokenizer import tokenizer

ASKED = 64  # patterns, strings or images that accuracy is measured on
HELD_OUT = 5  # one in so many is never trained on


# ------------------------------------------------------------------------------------------------ generation
@dataclass(frozen=True)
class Sampling:
    """How the next word is chosen; temperature 0 takes the most likely one."""

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0

    def chosen(self, logits: Tensor, turn: int) -> Tensor:
        """One word (B,1) for each row of logits (B,V), by the reference's filter and sampler."""
        kept = logits_filter(logits.detach(), temperature=self.temperature, top_k=self.top_k, top_p=self.top_p,
                             temperature_zero="greedy")
        first = self.seed + turn * len(kept)
        return torch.stack([sampler(row, seed=first + b, num_samples=1) for b, row in enumerate(kept)])


GREEDY = Sampling()
DRAWN = Sampling(temperature=0.7, top_k=4, top_p=0.9, seed=1)


def generated(step: Callable[[Tensor, Any], tuple[Tensor, Any]], prompt: Tensor, cache: Any, count: int,
              sampling: Sampling = GREEDY) -> Tensor:
    """`count` new words (B,count) after a prompt (B,T): each is chosen, fed back, and joins the cache."""
    words = []
    with torch.no_grad():
        logits, cache = step(prompt, cache)
        for turn in range(count):
            words.append(sampling.chosen(logits[:, -1], turn))
            logits, cache = step(words[-1], cache)
    return torch.cat(words, 1)


# ------------------------------------------------------------------------------------------------ tasks
class Learner(Protocol):
    """A model and what it is taught."""

    def parameters(self) -> Iterator[Tensor]:
        """What is learned."""

    def loss(self, source: torch.Generator) -> Tensor:
        """The mean loss of a batch drawn from the source."""

    def accuracy(self) -> float:
        """The share of right answers, on what was never trained on."""


def patterns(count: int, length: int, words: int, source: torch.Generator, *, held_out: bool, shortest: int = 2) -> Tensor:
    """Rows (count,length) of `shortest` … 3 words over and over; those whose sum a number divides are held out."""
    many = 4 * HELD_OUT * count  # four times as many as are needed on average
    motif = torch.rand(many, words, generator=source).argsort(-1)
    period = torch.randint(shortest, 4, (many, 1), generator=source)
    aside = torch.where(torch.arange(words) < period, motif, 0).sum(-1) % HELD_OUT == 0
    return motif.gather(1, torch.arange(length) % period)[aside == held_out][:count]


@dataclass
class Continuing:
    """A decoder continues a pattern of unknown period: two rounds of it are the prompt."""

    model: CausalLanguageModel
    batch: int = 64
    length: int = 12
    prompt: int = 6

    def parameters(self) -> Iterator[Tensor]:
        return self.model.parameters()

    def loss(self, source: torch.Generator) -> Tensor:
        ids = patterns(self.batch, self.length, self.model.vocab_size, source, held_out=False)
        return lm_loss(self.model(ids), ids, prompt_lengths=torch.full((self.batch,), 4))

    def accuracy(self, sampling: Sampling = GREEDY) -> float:
        """The share of right words among those generated with a cache."""
        asked = patterns(ASKED, self.length, self.model.vocab_size, torch.Generator().manual_seed(1), held_out=True)
        words = generated(self.model.step, asked[:, : self.prompt], None, self.length - self.prompt, sampling)
        return float((words == asked[:, self.prompt:]).double().mean())


@dataclass
class Reversing:
    """An encoder–decoder reads a string and writes it backwards: bytes in, bytes out."""

    model: Translator
    batch: int = 64
    letters: str = "abcdefgh"
    longest: int = 6
    start: str = "\x02"
    end: str = "\x03"

    def parameters(self) -> Iterator[Tensor]:
        return self.model.parameters()

    def texts(self, count: int, source: torch.Generator, *, held_out: bool) -> list[str]:
        """Strings of 2 … longest letters."""
        found: list[str] = []
        while len(found) < count:
            size = int(torch.randint(2, self.longest + 1, (), generator=source))
            places = torch.randint(0, len(self.letters), (size,), generator=source)
            if (int(places.sum()) % HELD_OUT == 0) == held_out:
                found.append("".join(self.letters[i] for i in places))
        return found

    def loss(self, source: torch.Generator) -> Tensor:
        texts, bytewise = self.texts(self.batch, source, held_out=False), tokenizer()
        src, src_mask = bytewise.pad([bytewise.encode(text) for text in texts])
        tgt, tgt_mask = bytewise.pad([bytewise.encode(self.start + text[::-1] + self.end) for text in texts])
        return lm_loss(self.model(src, tgt, src_mask, tgt_mask), tgt, mask=tgt_mask)

    def answers(self, texts: list[str], sampling: Sampling = GREEDY) -> list[str]:
        """What the model writes for each string, with a cache, until the end mark."""
        bytewise = tokenizer()
        src, mask = bytewise.pad([bytewise.encode(text) for text in texts])
        start = torch.tensor([bytewise.encode(self.start)]).expand(len(texts), -1)
        with torch.no_grad():
            cache = self.model.read(src, mask)
        words = generated(self.model.step, start, cache, self.longest + 1, sampling)
        return [bytewise.decode(row.tolist()).split(self.end)[0] for row in words]

    def accuracy(self, sampling: Sampling = GREEDY) -> float:
        """The share of strings that are written backwards without a mistake."""
        texts = self.texts(ASKED, torch.Generator().manual_seed(1), held_out=True)
        right = [answer == text[::-1] for answer, text in zip(self.answers(texts, sampling), texts, strict=True)]
        return sum(right) / len(right)


@dataclass
class Filling:
    """An encoder fills in hidden words of a pattern, seen from both sides."""

    model: MaskedLanguageModel
    words: int
    batch: int = 64
    length: int = 12
    p: float = 0.2

    def parameters(self) -> Iterator[Tensor]:
        return self.model.parameters()

    def hidden(self, count: int, source: torch.Generator, *, held_out: bool) -> tuple[Tensor, Tensor]:
        """Patterns with hidden words, and the labels; the word after the last stands for a hidden one."""
        ids = patterns(count, self.length, self.words, source, held_out=held_out, shortest=3)
        return mlm_mask(ids, torch.zeros_like(ids, dtype=torch.bool), mask_id=self.words, vocab_size=self.words + 1, p=self.p,
                        seed=int(torch.randint(0, 1 << 31, (), generator=source)))

    def loss(self, source: torch.Generator) -> Tensor:
        ids, labels = self.hidden(self.batch, source, held_out=False)
        logits = self.model(ids)
        return cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1), ignore_index=IGNORED)

    def accuracy(self) -> float:
        """The share of hidden words that are found."""
        ids, labels = self.hidden(ASKED, torch.Generator().manual_seed(1), held_out=True)
        with torch.no_grad():
            words = self.model(ids).argmax(-1)
        asked = labels != IGNORED
        return float((words == labels)[asked].double().mean())


@dataclass
class Seeing:
    """A vision Transformer tells horizontal from vertical stripes, of any phase, width and brightness, under noise."""

    model: VisionTransformer
    batch: int = 32
    side: int = 8
    noise: float = 1.0

    def parameters(self) -> Iterator[Tensor]:
        return self.model.parameters()

    def images(self, count: int, source: torch.Generator) -> tuple[Tensor, Tensor]:
        """Images (count,1,side,side), and 1 where the stripes are vertical."""
        width = torch.randint(1, 3, (count, 1), generator=source)
        phase = torch.randint(0, 4, (count, 1), generator=source)
        stripes = 2.0 * ((torch.arange(self.side) + phase) // width % 2) - 1  # (count,side)
        vertical = torch.randint(0, 2, (count,), generator=source)
        rows = stripes[:, :, None].expand(count, self.side, self.side)
        image = torch.where(vertical[:, None, None] == 1, rows.transpose(1, 2), rows)
        light = torch.randn(count, 1, 1, generator=source)
        noisy = image + light + self.noise * torch.randn(image.shape, generator=source)
        return noisy[:, None], vertical

    def loss(self, source: torch.Generator) -> Tensor:
        image, vertical = self.images(self.batch, source)
        return cross_entropy(self.model(image), vertical)

    def accuracy(self) -> float:
        """The share of images that are told."""
        image, vertical = self.images(4 * ASKED, torch.Generator().manual_seed(1))
        with torch.no_grad():
            return float((self.model(image).argmax(-1) == vertical).double().mean())


# ------------------------------------------------------------------------------------------------ learning
@dataclass(frozen=True)
class Task:
    """A model, what it is to learn, in how many steps, and to what accuracy."""

    name: str
    asks: str
    wanted: float
    steps: int
    make: Callable[[int], Learner]
    rate: float = 1e-2


@dataclass
class Curve:
    """Loss and accuracy, as learning went."""

    learner: Learner
    steps: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)


WORDS = 16
PATTERN = Size(vocabulary=WORDS, width=16, heads=4, groups=2, hidden=32, layers=2)
EXPERTS = Size(vocabulary=WORDS, width=16, heads=4, groups=2, hidden=16, layers=2)
TASKS: tuple[Task, ...] = (
    Task("decoder-only", "continues a pattern of 2 or 3 words that it has never seen", 0.95, 300,
         lambda seed: Continuing(causal_lm(seed=seed, size=PATTERN))),
    Task("encoder–decoder", "writes a string of letters backwards, from bytes to bytes", 0.95, 300,
         lambda seed: Reversing(translator(seed, vocabulary=tokenizer().vocab_size, longest=8))),
    Task("masked language model", "finds the hidden words of a pattern that it has never seen", 0.95, 200,
         lambda seed: Filling(masked_language_model(seed, vocabulary=WORDS + 1, longest=12), WORDS)),
    Task("vision Transformer", "tells horizontal from vertical stripes", 0.95, 100,
         lambda seed: Seeing(vision_transformer(seed, side=8, patch_size=4))),
    Task("decoder with experts", "continues such a pattern, every word through 2 of 4 experts", 0.9, 400,
         lambda seed: Continuing(mixture_of_experts(seed, EXPERTS, experts=4))),
)


def learn(task: Task, *, seed: int = 0, steps: int | None = None, points: int = 20) -> Curve:
    """Teach the task by AdamW, the rate falling to 0 along a cosine; measured at so many points."""
    last = task.steps if steps is None else steps
    learner, source = task.make(seed), torch.Generator().manual_seed(seed)
    optimiser = torch.optim.AdamW(list(learner.parameters()), lr=task.rate, weight_decay=0.01)
    fall = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, last)
    curve = Curve(learner)
    for step in range(last + 1):
        loss = learner.loss(source)
        if step % max(1, last // points) == 0 or step == last:
            curve.steps.append(step)
            curve.losses.append(float(loss.detach()))
            curve.accuracies.append(learner.accuracy())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        fall.step()
    return curve
