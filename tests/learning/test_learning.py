"""It is a Transformer: five models assembled from the references learn, and the decoders generate with a cache."""
from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))

import learning_tasks as tasks  # noqa: E402

NAMED = {task.name: task for task in tasks.TASKS}
DRAWN_ACCURACY = 0.85  # share of right answers where words are drawn instead of taken: some draws are off


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """One thread: sums in one order whatever the machine, and quicker at this size."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@cache
def learned(name: str) -> tasks.Curve:
    return tasks.learn(NAMED[name], points=4)


@pytest.mark.parametrize("name", NAMED)
def test_it_learns(name: str) -> None:
    """From chance to the accuracy that the task states, on what was never trained on."""
    curve = learned(name)
    chance = 0.65 if name == "vision Transformer" else 0.2
    assert curve.accuracies[0] <= chance
    assert curve.accuracies[-1] >= NAMED[name].wanted, curve.accuracies
    assert curve.losses[-1] <= curve.losses[0] / 5, curve.losses


@pytest.mark.parametrize("name", ["decoder-only", "encoder–decoder", "decoder with experts"])
def test_it_generates_through_filter_and_sampler(name: str) -> None:
    """Words drawn at a temperature among the top k and top p, with a cache, are mostly right too; a seed repeats them."""
    learner = learned(name).learner
    assert isinstance(learner, tasks.Continuing | tasks.Reversing)
    found = learner.accuracy(tasks.DRAWN)
    assert found >= DRAWN_ACCURACY
    assert learner.accuracy(tasks.DRAWN) == found


@pytest.mark.parametrize("name", ["decoder-only", "decoder with experts"])
def test_a_cache_changes_no_word(name: str) -> None:
    """Generation with a cache gives the words that a full pass over everything so far gives."""
    learner = learned(name).learner
    assert isinstance(learner, tasks.Continuing)
    asked = tasks.patterns(16, learner.prompt, tasks.WORDS, torch.Generator().manual_seed(3), held_out=True)
    words = tasks.generated(learner.model.step, asked, None, 4)
    assert torch.equal(words, tasks.generated(without_cache(learner.model), asked, asked[:, :0], 4))


def test_a_cache_changes_no_letter() -> None:
    """The same of the encoder–decoder: its step is held against the reference's full pass."""
    learner = learned("encoder–decoder").learner
    assert isinstance(learner, tasks.Reversing)
    bytewise = tasks.tokenizer()
    src, mask = bytewise.pad([bytewise.encode(text) for text in ("abc", "hgfeda", "bb")])
    start = torch.tensor([bytewise.encode(learner.start)]).expand(3, 1)
    with torch.no_grad():
        words = tasks.generated(learner.model.step, start, learner.model.read(src, mask), 6)
    full = without_cache(lambda tgt: learner.model(src, tgt, mask))
    assert torch.equal(words, tasks.generated(full, start, start[:, :0], 6))


def without_cache(model: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """A step whose "cache" is everything so far, read anew."""
    def step(ids: torch.Tensor, so_far: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        ids = torch.cat([so_far, ids], 1)
        return model(ids), ids

    return step


def test_without_attention_a_pattern_is_not_learned() -> None:
    """What attention carries is what is learned: with its output left at 0 the same steps do not get there."""
    task = NAMED["decoder-only"]

    def deaf(seed: int) -> tasks.Learner:
        learner = task.make(seed)
        assert isinstance(learner, tasks.Continuing)
        for name, weight in list(learner.model.weights.items()):
            if name.endswith("attn.w_o"):
                learner.model.weights[name] = torch.zeros_like(weight).requires_grad_(False)
        learner.model.parameters = lambda: (w for w in learner.model.weights.values() if w.requires_grad)  # type: ignore[method-assign]
        return learner

    curve = tasks.learn(tasks.Task(task.name, task.asks, task.wanted, 100, deaf), points=1)
    assert curve.accuracies[-1] < 0.5


def test_a_seed_repeats_a_curve() -> None:
    """Local generators alone: torch's global state neither matters nor moves."""
    task = NAMED["decoder with experts"]
    torch.manual_seed(1)
    first, state = tasks.learn(task, steps=4, points=2), torch.get_rng_state()
    torch.manual_seed(2)
    second = tasks.learn(task, steps=4, points=2)
    torch.manual_seed(1)
    assert torch.equal(state, torch.get_rng_state())
    assert (first.losses, first.accuracies) == (second.losses, second.accuracies)
    assert tasks.learn(task, seed=1, steps=1).losses[0] != first.losses[0]


def test_the_page_shows_every_task() -> None:
    """docs/learning.md and its drawing were written for the tasks as they are."""
    text = (ROOT / "docs" / "learning.md").read_text()
    rows = {cells[1].strip(): cells for line in text.splitlines() if len(cells := line.split("|")) == 11}
    for task in tasks.TASKS:
        assert task.asks in rows[task.name][2]
        assert (rows[task.name][4].strip(), rows[task.name][7].strip()) == (str(task.steps), f"{task.wanted:.0%}")
    drawing = ElementTree.parse(ROOT / "docs" / "learning.svg").getroot()
    assert len(drawing.findall("{http://www.w3.org/2000/svg}g")) == len(tasks.TASKS)
