"""State of layers: running statistics of batch normalisation, and what a seed decides in dropout and sampling."""
from __future__ import annotations

from dataclasses import dataclass, field

import torch
from held import Machine, formula, identical, source, within
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, initialize, rule
from torch import Tensor

FEATURES, MOMENTUM, EPS = 3, 0.25, 1e-5


@dataclass
class Layer:
    """Running statistics, and the batches that made them."""

    mean: Tensor = field(default_factory=lambda: torch.zeros(FEATURES))
    var: Tensor = field(default_factory=lambda: torch.ones(FEATURES))
    seen: list[Tensor] = field(default_factory=list)


class RunningStatisticsMachine(Machine):
    """Two layers in turns: statistics are those of the batches since the last reset, and evaluation leaves them alone."""

    layers = Bundle("layers")

    @initialize(target=layers)
    def start(self) -> Layer:
        return Layer()

    @rule(target=layers)
    def another(self) -> Layer:
        return Layer()

    @rule(layer=layers, seed=st.integers(0, 9), rows=st.integers(2, 5))
    def train(self, layer: Layer, seed: int, rows: int) -> None:
        x = self.batch(seed, rows)
        y, mean, var = self.called(layer, x, training=True)
        for name, found, exact in zip(("output", "mean", "variance"), (y, mean, var), self.exact(layer, x, True), strict=True):
            within(found, exact, f"{name} of batch {len(layer.seen) + 1} in training")
        layer.mean, layer.var = mean, var
        layer.seen.append(x)

    @rule(layer=layers, seed=st.integers(0, 9), rows=st.integers(1, 4))
    def evaluate(self, layer: Layer, seed: int, rows: int) -> None:
        x = self.batch(seed, rows)
        y, mean, var = self.called(layer, x, training=False)
        within(y, self.exact(layer, x, False)[0], f"output in evaluation after {len(layer.seen)} batches")
        identical(mean, layer.mean, "mean after evaluation")
        identical(var, layer.var, "variance after evaluation")
        layer.mean, layer.var = mean, var

    @rule(layer=layers)
    def reset(self, layer: Layer) -> None:
        layer.mean, layer.var, layer.seen = Layer().mean, Layer().var, []

    @rule(target=layers, layer=layers)
    def save_and_load(self, layer: Layer) -> Layer:
        """A copy goes its own way."""
        return Layer(layer.mean.clone(), layer.var.clone(), list(layer.seen))

    @rule(layer=layers)
    def replay(self, layer: Layer) -> None:
        """The same batches from the start give the same statistics."""
        again = Layer()
        for x in layer.seen:
            _, again.mean, again.var = self.called(again, x, training=True)
        identical(again.mean, layer.mean, f"mean of {len(layer.seen)} batches, replayed")
        identical(again.var, layer.var, f"variance of {len(layer.seen)} batches, replayed")

    def batch(self, seed: int, rows: int) -> Tensor:
        drawn = torch.randn(rows + 1, FEATURES, generator=source(seed))
        return drawn[1:] * (0.5 + drawn[0].abs()) + 3 * drawn[0]

    def arguments(self, layer: Layer, x: Tensor, training: bool) -> dict[str, object]:
        weight, bias = torch.linspace(0.5, 2, FEATURES), torch.linspace(-1, 1, FEATURES)
        return {"x": x, "weight": weight, "bias": bias, "running_mean": layer.mean, "running_var": layer.var,
                "training": training, "momentum": MOMENTUM, "eps": EPS}

    def called(self, layer: Layer, x: Tensor, *, training: bool) -> tuple[Tensor, Tensor, Tensor]:
        y, mean, var = self.make(**self.arguments(layer, x, training))
        return y, mean.clone(), var.clone()

    def exact(self, layer: Layer, x: Tensor, training: bool) -> list[object]:
        named = {name: self.declaration.conventions[name] for name in ("bn_momentum", "bn_variance")}
        return list(formula("batch_norm", self.arguments(layer, x, training), named))


class DropoutMachine(Machine):
    """One seed, one mask, whatever was called before; evaluation and p = 0 change nothing."""

    @initialize()
    def start(self) -> None:
        self.known: dict[tuple[int, float, int], Tensor] = {}

    @rule(place=st.integers(0, 1), p=st.sampled_from((0.5, 0.25)), seed=st.integers(0, 2))
    def train(self, place: int, p: float, seed: int) -> None:
        x = self.input(place)
        y = self.make(x, p=p, training=True, seed=seed)
        identical(y, self.known.setdefault((place, p, seed), y.clone()), f"dropout of seed {seed}, called again,")
        other = self.known.get((place, p, seed - 1))
        assert other is None or bool(((y == 0) != (other == 0)).any()), f"seeds {seed - 1} and {seed} drop the same"

    @rule(place=st.integers(0, 1), p=st.sampled_from((0.5, 0.25)), seed=st.integers(0, 2))
    def evaluate(self, place: int, p: float, seed: int) -> None:
        identical(self.make(self.input(place), p=p, training=False, seed=seed), self.input(place), "dropout in evaluation")

    @rule(place=st.integers(0, 1), seed=st.integers(0, 2))
    def train_at_rate_0(self, place: int, seed: int) -> None:
        identical(self.make(self.input(place), p=0.0, training=True, seed=seed), self.input(place), "dropout at p = 0")

    @rule(seed=st.integers(0, 3))
    def move_the_global_generator(self, seed: int) -> None:
        torch.manual_seed(seed)

    def input(self, place: int) -> Tensor:
        return 1 + torch.rand(16, 16, generator=source(place))


class SamplerMachine(Machine):
    """One seed, the same draws, whatever was called before; another seed, others."""

    @initialize()
    def start(self) -> None:
        self.known: dict[tuple[int, int], Tensor] = {}

    @rule(place=st.integers(0, 1), seed=st.integers(0, 2))
    def draw(self, place: int, seed: int) -> None:
        logits = torch.randn(7, generator=source(place))
        found = self.make(logits, seed=seed, num_samples=200)
        identical(found, self.known.setdefault((place, seed), found.clone()), f"draws of seed {seed}, called again,")
        other = self.known.get((place, seed - 1))
        assert other is None or not torch.equal(found, other), f"seeds {seed - 1} and {seed} draw the same"

    @rule(seed=st.integers(0, 3))
    def move_the_global_generator(self, seed: int) -> None:
        torch.manual_seed(seed)
