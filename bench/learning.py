"""Do the assembled references learn and generate? Teaches five small models and draws how it went.

    python bench/learning.py [--only NAME] [--seed 0]      # about half a minute on one core

Writes docs/learning.md and docs/learning.svg, unless only some tasks are asked for.
"""
from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

import torch
from learning_tasks import DRAWN, TASKS, Continuing, Curve, Reversing, Task, generated, learn, patterns
from torch import Tensor

DOCS = Path(__file__).resolve().parent.parent / "docs"
COLUMNS, WIDE, HIGH, LEFT, TOP = 2, 400, 220, 44, 40  # panels of the drawing, and the margins of one
STYLE = """
text { font: 12px system-ui, sans-serif; fill: #24292f } .title { font-weight: 600; font-size: 13px }
.small { font-size: 11px; fill: #57606a } .axis { stroke: #8c959f; fill: none } .wanted { stroke: #8c959f; stroke-dasharray: 3 4 }
.accuracy { stroke: #0969da; stroke-width: 2; fill: none } .loss { stroke: #bc4c00; stroke-width: 1.5; fill: none }
.key-accuracy { fill: #0969da } .key-loss { fill: #bc4c00 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .small { fill: #9198a1 } .axis, .wanted { stroke: #656c76 }
  .accuracy { stroke: #58a6ff } .loss { stroke: #f0883e } .key-accuracy { fill: #58a6ff } .key-loss { fill: #f0883e }
}"""


@dataclass(frozen=True)
class Lesson:
    """A task, how it went, and the processor seconds it took."""

    task: Task
    curve: Curve
    seconds: float

    @property
    def drawn_accuracy(self) -> float | None:
        """Accuracy where words are drawn by the sampler; None for a model that generates nothing."""
        learner = self.curve.learner
        return learner.accuracy(DRAWN) if isinstance(learner, Continuing | Reversing) else None

    @property
    def parameters(self) -> int:
        """How many numbers are learned."""
        return sum(weight.numel() for weight in self.curve.learner.parameters())


def taught(tasks: Sequence[Task], seed: int) -> list[Lesson]:
    """Each task, learned on one thread."""
    lessons = []
    for task in tasks:
        began = time.process_time()
        curve = learn(task, seed=seed)
        lessons.append(Lesson(task, curve, time.process_time() - began))
        print(f"{task.name}: loss {curve.losses[0]:.2f} to {curve.losses[-1]:.3f}, accuracy {curve.accuracies[0]:.0%} to "
              f"{curve.accuracies[-1]:.1%} in {lessons[-1].seconds:.1f} s")
    return lessons


# ------------------------------------------------------------------------------------------------ drawing
def svg(lessons: Sequence[Lesson]) -> str:
    """A panel for each task, readable on light and on dark ground."""
    rows = -(-len(lessons) // COLUMNS)
    panels = "\n".join(f'<g transform="translate({WIDE * (i % COLUMNS)} {HIGH * (i // COLUMNS)})">{panel(lesson)}</g>'
                       for i, lesson in enumerate(lessons))
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {COLUMNS * WIDE} {rows * HIGH}" role="img" '
            f'aria-label="Loss and accuracy of {len(lessons)} models while they learn">\n'
            f"<style>{STYLE}\n</style>\n{panels}\n</svg>\n")


def panel(lesson: Lesson) -> str:
    """Accuracy (0 … 1, left) and loss (0 … its first, right) over steps."""
    curve, bottom, right = lesson.curve, HIGH - 30, WIDE - 40
    highest = max(curve.losses)

    def path(kind: str, values: Sequence[float], top: float) -> str:
        places = " ".join(f"{LEFT + (right - LEFT) * step / curve.steps[-1]:.1f},{bottom - (bottom - TOP) * value / top:.1f}"
                          for step, value in zip(curve.steps, values, strict=True))
        return f'<polyline class="{kind}" points="{places}"/>'

    wanted = bottom - (bottom - TOP) * lesson.task.wanted
    return "".join((
        f'<text class="title" x="{LEFT}" y="16">{escape(lesson.task.name)}</text>',
        f'<text class="small" x="{LEFT}" y="31"><tspan class="key-accuracy">accuracy {curve.accuracies[-1]:.1%}</tspan> · '
        f'<tspan class="key-loss">loss {curve.losses[-1]:.3f}</tspan></text>',
        f'<path class="axis" d="M{LEFT} {TOP}V{bottom}H{right}V{TOP}"/>',
        f'<path class="wanted" d="M{LEFT} {wanted:.1f}H{right}"/>',
        path("loss", curve.losses, highest), path("accuracy", curve.accuracies, 1.0),
        f'<text class="small" x="{LEFT - 6}" y="{TOP + 4}" text-anchor="end">1</text>',
        f'<text class="small" x="{LEFT - 6}" y="{bottom}" text-anchor="end">0</text>',
        f'<text class="small" x="{right + 6}" y="{TOP + 4}">{highest:.1f}</text>',
        f'<text class="small" x="{LEFT}" y="{bottom + 16}">0</text>',
        f'<text class="small" x="{right}" y="{bottom + 16}" text-anchor="end">{curve.steps[-1]} steps</text>'))


# ------------------------------------------------------------------------------------------------ page
def page(lessons: Sequence[Lesson], seed: int) -> str:
    """The page as Markdown."""
    rows = "\n".join(map(row, lessons))
    return f"""<!-- Written by `python bench/learning.py`; do not edit. -->
# The assembled references learn and generate

Parts that each hold their statements should make a Transformer. Five whole models are put together from `reference/` and
nothing else (no layer of a library; AdamW is torch's), and each learns a toy task. Accuracy is measured on patterns and
strings that training never shows, for the decoders by **generation with a cache**, through `logits_filter` and `sampler`.

![Loss and accuracy of five models while they learn](learning.svg)

| model | what it learns | parameters | steps | loss | accuracy | asked | drawn | time |
|---|---|---:|---:|---:|---:|---:|---:|---:|
{rows}

*asked*: the accuracy that `tests/learning/` asks for (dashed in the drawing). *drawn*: accuracy where words are drawn at
temperature {DRAWN.temperature}, top-k {DRAWN.top_k}, top-p {DRAWN.top_p}, instead of taking the most likely. *time*: seconds of
one core, measuring included. Seed {seed}; every random number comes from a local generator: a run repeats bit for bit.

## What they say

{examples(lessons)}

To draw this page again: `python bench/learning.py`. The models are in `bench/learning_models.py`, the tasks in
`bench/learning_tasks.py`.
"""


def row(lesson: Lesson) -> str:
    """A task's row of the table."""
    task, curve, drawn = lesson.task, lesson.curve, lesson.drawn_accuracy
    cells = (task.name, task.asks, f"{lesson.parameters:,}", str(task.steps), f"{curve.losses[0]:.2f} → {curve.losses[-1]:.3f}",
             f"{curve.accuracies[0]:.0%} → **{curve.accuracies[-1]:.1%}**", f"{task.wanted:.0%}",
             "–" if drawn is None else f"{drawn:.1%}", f"{lesson.seconds:.1f} s")
    return f"| {' | '.join(cells)} |"


def examples(lessons: Sequence[Lesson]) -> str:
    """What each model that generates makes of three prompts."""
    told = []
    for lesson in lessons:
        learner = lesson.curve.learner
        if isinstance(learner, Reversing):
            texts = learner.texts(3, torch.Generator().manual_seed(2), held_out=True)
            pairs = list(zip(texts, learner.answers(texts), strict=True))
        elif isinstance(learner, Continuing):
            asked = patterns(3, learner.length, learner.model.vocab_size, torch.Generator().manual_seed(2), held_out=True)
            words = generated(learner.model.step, asked[:, : learner.prompt], None, learner.length - learner.prompt)
            pairs = [(_row(a[: learner.prompt]), _row(w)) for a, w in zip(asked, words, strict=True)]
        else:
            continue
        told.append(f"* {lesson.task.name}: " + "; ".join(f"`{asked}` → `{said}`" for asked, said in pairs))
    return "\n".join(told)


def _row(ids: Tensor) -> str:
    return " ".join(map(str, ids.tolist()))


def main() -> None:
    """Teach, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=[task.name for task in TASKS])
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    lessons = taught([task for task in TASKS if asked.only in (None, task.name)], asked.seed)
    if asked.only is None:
        (DOCS / "learning.svg").write_text(svg(lessons))
        (DOCS / "learning.md").write_text(page(lessons, asked.seed))


if __name__ == "__main__":
    main()
