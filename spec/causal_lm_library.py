"""What must hold of what a library's model has besides the call, where it is offered: its loss, saving, several kernels.

loss: `loss(ids, labels)`, position t scored against label t + 1, -100 left out. saving: `reloaded(ids)`, logits of the model that
was saved and loaded. kernels: `through(ids, mask=None)`, logits with another attention in force.
"""
from __future__ import annotations

import torch

from assay import registry
from assay.cases import Example
from assay.numbers.arithmetic import Arithmetic
from assay.numbers.bound import Bounded
from assay.numbers.evaluate import evaluate
from assay.properties import CONDUCT
from assay.spec.causal_lm import KEEPS, LONGER, logits_score_every_word, spec
from assay.spec.causal_lm_cases import model_of, same
from assay.subject import Subject

IGNORED = -100


@spec.holds("LM-2", kills=("loss_not_shifted", "loss_counts_ignored"), needs=("loss",), rests_on=(logits_score_every_word,),
            given={**LONGER, "padding": "none"}, conventions=KEEPS)
def the_loss_is_the_cross_entropy_of_the_logits(lm: Subject, example: Example) -> None:
    """The model's own loss is the mean cross-entropy of its logits against the next tokens, labels of -100 left out."""
    model = model_of(lm, example)
    ids = model.ids(example)
    left_out = torch.rand(ids.shape, generator=example.generator("ignored")) < 0.3
    left_out[0, 1] = False  # something is scored
    labels = ids.masked_fill(left_out, IGNORED)
    logits = model.logits(ids)
    rows = {"logits": logits[:, :-1].reshape(-1, model.vocabulary), "targets": labels[:, 1:].reshape(-1), "ignore_index": IGNORED,
            "reduction": "mean"}
    expected = evaluate(registry.forms("cross_entropy"), rows, logits.dtype, Arithmetic()).outputs[0]
    found = model.ask("loss", {"ids": ids, "labels": labels}).outputs[0]
    assert Bounded(found.double(), expected.bar) == Bounded(expected.value, torch.zeros_like(expected.bar))


@spec.holds(CONDUCT, kills=("table_lost_on_saving",), needs=("saving",), rests_on=(logits_score_every_word,),
            given={"padding": "none"}, conventions=KEEPS)
def a_saved_model_gives_the_same(lm: Subject, example: Example) -> None:
    """A model that was saved and loaded again gives the same logits.

    Within its rounding and not bit for bit: what is loaded lies elsewhere in memory, where torch may add in another order.
    """
    model = model_of(lm, example)
    ids = model.ids(example)
    left, right = same(model.ask("reloaded", {"ids": ids}, grad_mode=False).outputs[0], model.measured(ids))
    assert left == right


@spec.holds("ATT-1", "MSK-1", kills=("kernel_without_causal_mask",), needs=("kernels",), rests_on=(logits_score_every_word,),
            given=LONGER, conventions=KEEPS)
def every_kernel_gives_the_same(lm: Subject, example: Example) -> None:
    """With another attention in force the logits at real tokens are the same, within the rounding of the model."""
    model = model_of(lm, example)
    ids = model.ids(example)
    mask = None if example.mask is None else example.mask[:, : ids.shape[1]]
    plain = model.measured(ids, mask)
    given = {"ids": ids} | ({} if mask is None else {"mask": mask})
    left, right = same(model.ask("through", given, grad_mode=False).outputs[0], plain, mask)
    assert left == right
