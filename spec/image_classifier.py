"""What must hold of an image classifier made by a factory: VIT-2, its state, and what a library's model has besides.

The model's weights are its own, so every statement is a relation between its own calls: bit for bit where shapes are equal,
within the model's own rounding (see `own_rounding`) where they are not.

An object has `__call__(image)` of images (B,Ci,Hi,Wi), `parameters()`, `image_shape` (Ci,Hi,Wi) and `num_classes` (K). Offered:
loss: `loss(image, labels)`, the mean over the images. saving: `reloaded(image)`, logits of the model that was saved and loaded.
kernels: `through(image)`, logits with another attention in force. parts: `parts(image, skip=0)`, as `harness/parts.py` makes them.
"""
from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from assay import registry
from assay.cases import Cases, Configuration, Example
from assay.errors import ExampleOverError, NotExercisedError
from assay.hosting import Answer
from assay.ledger import equal, fact, identical
from assay.numbers.arithmetic import Arithmetic
from assay.numbers.bound import Bounded
from assay.numbers.evaluate import evaluate
from assay.properties import CONDUCT, Specification
from assay.spec.model_gradients import Gradients, all_learn
from assay.spec.own_rounding import ROWS_TOGETHER, gauged
from assay.spec.part_verdicts import gathered, judged
from assay.subject import Subject

SEVERAL: dict[str, Any] = {"B": (2, 3)}
BITWISE = {"repeatability": "bitwise"}


class ImageCases(Cases):
    """B images of the model's own size, drawn from the seed; weights: the seed of the model."""

    kind = "image_classifier"
    dims = {"B": (2, 1, 3, 5)}
    flags = {"weights": (0, 1, 2)}
    families = ("normal",)
    layouts = ("contiguous",)

    def build(self, configuration: Configuration, dtype: torch.dtype) -> Example:
        return Example(configuration, dtype, {}, {})


@dataclass(frozen=True)
class Model:
    """One model with the weights of one seed, as a property talks to it."""

    subject: Subject
    example: Example
    seed: int
    shape: tuple[int, int, int]  # of an image
    classes: int
    instance: int = 0

    def images(self, label: str = "") -> torch.Tensor:
        """The example's images, or (with a label) other ones."""
        source = self.example.generator(f"images {label}")
        return torch.randn(self.example.dims["B"], *self.shape, generator=source).to(self.subject.dtype)

    def ask(self, method: str, arguments: dict[str, Any], **circumstances: Any) -> Answer:
        """One call of this very object."""
        return self.subject.ask(method, arguments, seed=self.seed, **{"instance": self.instance, **circumstances})

    def logits(self, image: torch.Tensor, *, method: str = "__call__", **circumstances: Any) -> torch.Tensor:
        """Logits (B,K), as they come."""
        outputs = self.ask(method, {"image": image}, **circumstances).outputs
        found, wanted = (outputs[0] if outputs else None), (len(image), self.classes)
        right = isinstance(found, torch.Tensor) and found.is_floating_point() and tuple(found.shape) == wanted
        got = f"{found.dtype} {tuple(found.shape)}" if isinstance(found, torch.Tensor) else type(found).__name__
        if not fact(right, "the logits have not the shape (B, K)", got=got, expected=str(wanted), check="shape of logits",
                    decided=False):
            raise ExampleOverError("no logits")
        assert isinstance(found, torch.Tensor)
        return found

    def measured(self, image: torch.Tensor) -> Bounded:
        """Logits with the bar that the model's own rounding gives."""
        return gauged(self.logits, (image,), together=self.subject.declaration.allows("B", ROWS_TOGETHER * len(image)))


def model_of(subject: Subject, example: Example) -> Model:
    """The model with the example's weights."""
    seed = int(example.configuration.flags["weights"])
    told = subject.ask("image_shape", {}, seed=seed).outputs
    shape = [size for one in told for size in (one if isinstance(one, list) else [one])]
    classes: Any = next(iter(subject.ask("num_classes", {}, seed=seed).outputs), None)
    right = len(shape) == 3 and all(type(size) is int and size > 0 for size in (*shape, classes))
    if not fact(right, "image_shape is not three whole numbers above 0, or num_classes not one", got=f"{shape!r}, {classes!r}"[:80],
                expected="(Ci, Hi, Wi), K", check="image_shape and num_classes", decided=False):
        raise ExampleOverError("no image shape")
    return Model(subject, example, seed, (shape[0], shape[1], shape[2]), classes)


def same(left: torch.Tensor, right: Bounded) -> bool:
    """Whether they agree under the one bar; a ledger entry."""
    return bool(Bounded(left.double(), right.bar) == right)


spec = Specification("image_classifier", ImageCases())


# ------------------------------------------------------------------------------------------------ from pixels to logits
@spec.holds("VIT-2", kills=("last_class_unscored",))
def logits_score_every_class(classifier: Subject, example: Example) -> None:
    """Logits (B, K) are finite numbers, one for every class."""
    model = model_of(classifier, example)
    logits = model.logits(model.images()).double()
    assert fact(bool(logits.isfinite().all()), "a logit is infinite or NaN", check="logits are finite")


@spec.holds("VIT-2", kills=("images_mixed", "first_image_for_all"), rests_on=(logits_score_every_class,), given=SEVERAL,
            conventions={"row_dependence": "none"})
def images_do_not_touch_each_other(classifier: Subject, example: Example) -> None:
    """An image's logits in a batch are those that it has alone."""
    model = model_of(classifier, example)
    images = model.images()
    together = model.measured(images)
    alone = torch.cat([model.logits(images[b : b + 1], grad_mode=False) for b in range(len(images))])
    assert same(alone, together)


@spec.holds("VIT-2", kills=("last_patch_dropped",), rests_on=(logits_score_every_class,))
def every_quarter_of_an_image_matters(classifier: Subject, example: Example) -> None:
    """Other pixels in any quarter of the images give other logits, by more than the model's rounding."""
    model = model_of(classifier, example)
    images, other = model.images(), model.images("another quarter")
    before = model.measured(images)
    for rows in torch.arange(model.shape[1]).chunk(2):
        for columns in torch.arange(model.shape[2]).chunk(2):
            changed = images.clone()
            changed[:, :, rows[:, None], columns] = other[:, :, rows[:, None], columns]
            assert _moved(model, changed, before, f"pixels of rows {_span(rows)} and columns {_span(columns)}")


@spec.holds("VIT-2", kills=("positions_forgotten",), needs=("places",), rests_on=(logits_score_every_class,))
def places_matter(classifier: Subject, example: Example) -> None:
    """With the left and the right half of the images exchanged the logits are others, by more than the model's rounding."""
    model = model_of(classifier, example)
    images = model.images()
    if model.shape[2] % 2:
        raise NotExercisedError("its images have no halves")
    assert _moved(model, images.roll(model.shape[2] // 2, 3), model.measured(images), "the places of the halves")


def _moved(model: Model, images: torch.Tensor, before: Bounded, what: str) -> bool:
    gap = (model.logits(images, grad_mode=False).double() - before.value).abs()
    return bool(fact(bool((gap > 2 * before.bar).any()), f"{what} do not matter", got=f"logits moved by {float(gap.max()):.3g}",
                     expected="other logits", check=what))


def _span(places: torch.Tensor) -> str:
    return f"{int(places[0])} to {int(places[-1])}"


@spec.holds("VIT-2", kills=("head_detached",), gradient=True, rests_on=(logits_score_every_class,))
def every_parameter_learns(classifier: Subject, example: Example) -> None:
    """Every parameter that asks for a gradient gets one that is finite and not all 0."""
    model = model_of(classifier, example)

    def draw(number: int) -> Gradients:
        other = replace(model, seed=model.seed + 10 * number)
        images = other.images("" if number == 0 else f"draw {number}")
        above = torch.randn(len(images), other.classes, generator=example.generator("upstream")).to(other.logits(images).dtype)
        return other.ask("__call__", {"image": images}, wrt=("parameters",), upstream=(above,)).gradients

    all_learn(draw)


# ------------------------------------------------------------------------------------------------ state
@spec.holds(CONDUCT, kills=("dropout_left_on", "statistics_updated"), rests_on=(logits_score_every_class,), conventions=BITWISE)
def earlier_calls_do_not_matter(classifier: Subject, example: Example) -> None:
    """The same call gives the same logits again, and after calls with other images and more of them."""
    model = model_of(classifier, example)
    images, other = model.images(), model.images("others")
    before = model.logits(images)
    assert identical(model.logits(images), before, check="the same call again")
    several = model.subject.declaration.allows("B", 2 * len(images))
    after = model.logits(torch.cat([other, other.flip(0)]) if several else other)[: len(images)]
    assert identical(model.logits(images), before, witness=bool((after != before).any()), check="the same call after others")


@spec.holds(CONDUCT, kills=("image_normalised_in_place",), rests_on=(logits_score_every_class,))
def images_are_left_unchanged(classifier: Subject, example: Example) -> None:
    """The images are as before after the call, and so is all state that is shared with others."""
    model = model_of(classifier, example)
    answer = model.ask("__call__", {"image": model.images()}, grad_mode=False)
    assert fact(not answer.mutated, f"the call changed {', '.join(answer.mutated)}", check="images unchanged")
    assert fact(not answer.state, "; ".join(answer.state), check="global state unchanged")


@spec.holds(CONDUCT, kills=("strides_ignored",), needs=("strided",), rests_on=(logits_score_every_class,))
def memory_layout_does_not_matter(classifier: Subject, example: Example) -> None:
    """Images whose channels lie last in memory, or that are part of a larger one, give what contiguous ones give."""
    model = model_of(classifier, example)
    images = model.images()
    usual = model.measured(images)
    for layout in ("head_last", "transposed", "sliced", "offset"):
        assert same(model.logits(images, layouts={"image": layout}, grad_mode=False), usual)


@spec.holds(CONDUCT, kills=("seed_ignored",), rests_on=(logits_score_every_class,), conventions=BITWISE)
def the_seed_decides_the_weights(classifier: Subject, example: Example) -> None:
    """Models made with one seed give the same logits; another seed gives others."""
    model = model_of(classifier, example)
    images = model.images()
    first = model.logits(images)
    apart, twin = replace(model, seed=model.seed + 7).logits(images), replace(model, instance=1).logits(images)
    assert identical(twin, first, witness=bool((apart != first).any()))


@spec.holds(CONDUCT, kills=("copy_drawn_again",), rests_on=(logits_score_every_class,), conventions=BITWISE)
def a_copy_gives_the_same(classifier: Subject, example: Example) -> None:
    """A deep copy of a model gives the same logits."""
    model = model_of(classifier, example)
    images = model.images()
    first = model.logits(images)
    assert identical(replace(model, instance=-1).logits(images), first, witness=bool((first != first[:1, :1]).any()))


# ------------------------------------------------------------------------------------------------ what a library's model has
@spec.holds(CONDUCT, kills=("loss_summed",), needs=("loss",), rests_on=(logits_score_every_class,))
def the_loss_is_the_cross_entropy_of_the_logits(classifier: Subject, example: Example) -> None:
    """The model's own loss is the mean cross-entropy of its logits against the labels."""
    model = model_of(classifier, example)
    images = model.images()
    labels = torch.randint(0, model.classes, (len(images),), generator=example.generator("labels"))
    rows = {"logits": model.logits(images), "targets": labels}
    expected = evaluate(registry.forms("cross_entropy"), rows, rows["logits"].dtype, Arithmetic()).outputs[0]
    found = model.ask("loss", {"image": images, "labels": labels}).outputs[0]
    assert equal(Bounded(found.double(), expected.bar), Bounded(expected.value, torch.zeros_like(expected.bar)), check="loss")


@spec.holds(CONDUCT, kills=("head_lost_on_saving",), needs=("saving",), rests_on=(logits_score_every_class,))
def a_saved_model_gives_the_same(classifier: Subject, example: Example) -> None:
    """A model that was saved and loaded again gives the same logits, within its rounding: its weights lie elsewhere in memory."""
    model = model_of(classifier, example)
    assert same(model.logits(model.images(), method="reloaded", grad_mode=False), model.measured(model.images()))


@spec.holds("ATT-1", kills=("kernel_without_scale",), needs=("kernels",), rests_on=(logits_score_every_class,))
def every_kernel_gives_the_same(classifier: Subject, example: Example) -> None:
    """With another attention in force the logits are the same, within the rounding of the model."""
    model = model_of(classifier, example)
    assert same(model.logits(model.images(), method="through", grad_mode=False), model.measured(model.images()))


@spec.holds("ATT-1", "LN-1", "FFN-1", kills=("norm_of_a_layer_uncentred",), needs=("parts",), rests_on=(logits_score_every_class,),
            given={"B": (1, 2)}, examples=3)
def every_part_gives_its_formula(classifier: Subject, example: Example) -> None:
    """Every part that is recognised gives what its formula gives, by its own weights on what it receives inside the model."""
    model = model_of(classifier, example)
    images = model.images()
    parts = gathered(lambda skip: model.ask("parts", {"image": images, "skip": skip}, grad_mode=False).outputs)
    verdicts = [one for one in judged(parts) if one.status != "unrecognised"]
    if not verdicts:
        raise NotExercisedError("no part of this model is recognised")
    for one in verdicts:
        if one.want is not None and one.got is not None:
            assert equal(Bounded(one.got.double(), one.want.bar), Bounded(one.want.value, one.want.bar * 0), check=one.check)
