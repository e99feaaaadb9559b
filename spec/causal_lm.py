"""What must hold of a causal language model made by a factory: DEC-2, MSK-1, KV-1, LM-2 … LM-5, GEN-6, and its state.

The model's weights are its own, so every statement is a relation between its own calls: bit for bit where shapes are equal,
within the model's own rounding (see `causal_lm_cases`) where they are not.
"""
from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from assay.cases import Example
from assay.hosting import Call
from assay.ledger import fact, identical
from assay.numbers.bound import Bounded
from assay.properties import CONDUCT, Specification
from assay.spec.causal_lm_cases import Model, ModelCases, model_of, same
from assay.spec.causal_lm_programs import program
from assay.spec.model_gradients import Gradients, all_learn
from assay.subject import Subject

spec = Specification("causal_lm", ModelCases())
KEEPS: dict[str, Any] = {"capacity": "none"}
BITS: dict[str, Any] = {"capacity": "none", "row_dependence": "none", "repeatability": "bitwise"}
LONGER: dict[str, Any] = {"T": lambda size: size > 2}


@spec.holds("LM-5", "LM-1", kills=("last_word_unscored",))
def logits_score_every_word(lm: Subject, example: Example) -> None:
    """Logits (B, T, V) are finite numbers, so that their softmax is a distribution over all V words at every position."""
    model = model_of(lm, example)
    logits = model.logits(model.ids(example), _cut(model, example)).double()
    assert fact(bool(logits.isfinite().all()), "a logit is infinite or NaN", check="logits are finite")


def _cut(model: Model, example: Example) -> torch.Tensor | None:
    """The mask, as long as the ids."""
    return None if example.mask is None else example.mask[:, : model.ids(example).shape[1]]


@spec.holds("DEC-2", "MSK-1", kills=("not_causal", "mean_over_positions", "mask_replaces_causal"),
            rests_on=(logits_score_every_word,),
            needs=("causal",), given={**LONGER, "padding": ("none", "right", "left")}, conventions=BITS)
def later_tokens_do_not_matter(lm: Subject, example: Example) -> None:
    """From tokens to logits: replacing all tokens after t leaves every logit up to t as it was, bit for bit, at every cut.

    At real tokens: a padded query may see no key at all, and what is then said of it means nothing.
    """
    model = model_of(lm, example)
    ids, other, mask = model.ids(example), model.ids(example, "later tokens"), _cut(model, example)
    before = model.logits(ids, mask)
    for t in range(1, ids.shape[1]):
        after = model.logits(torch.cat([ids[:, :t], other[:, t:]], 1), mask)
        real = torch.ones_like(ids[:, :t], dtype=torch.bool) if mask is None else mask[:, :t]
        assert identical(after[:, :t][real], before[:, :t][real], witness=bool((after[:, t:] != before[:, t:]).any()))


@spec.holds("LM-2", "DEC-2", kills=("not_causal", "mean_over_positions"), rests_on=(logits_score_every_word,),
            needs=("causal",), given={**LONGER, "padding": "none"}, conventions=KEEPS)
def one_pass_gives_what_a_pass_for_every_prefix_gives(lm: Subject, example: Example) -> None:
    """One teacher-forced pass gives at every position what a pass over the tokens so far gives at its last."""
    model = model_of(lm, example)
    ids = model.ids(example)
    whole = model.measured(ids)
    alone = torch.cat([model.logits(ids[:, : t + 1], grad_mode=False)[:, -1:] for t in range(ids.shape[1])], 1)
    left, right = same(alone, whole)
    assert left == right


# ------------------------------------------------------------------------------------------------ cache
@spec.holds("KV-1", "LM-2", kills=("cache_hidden", "positions_restart", "positions_one_too_high", "cache_in_wrong_order",
                                   "cache_forgets_oldest", "cache_shared_by_layers", "cache_in_bfloat16", "step_logits_scaled",
                                   "cached_padding_seen"),
            needs=("cache",), rests_on=(logits_score_every_word,), given=LONGER, conventions=KEEPS)
def steps_with_a_cache_give_what_one_pass_gives(lm: Subject, example: Example) -> None:
    """Token by token with a cache, the logits are those of one full pass, at every real token."""
    model = model_of(lm, example)
    ids, mask = model.ids(example), _cut(model, example)
    whole = model.measured(ids, mask)
    left, right = same(model.stepped(ids, mask, range(1, ids.shape[1] + 1)), whole, mask)
    assert left == right


@spec.holds("KV-1", kills=("causal_without_cache_only", "chunk_shares_position", "last_logits_repeated", "cache_hidden"),
            needs=("chunks",), rests_on=(logits_score_every_word,), given={**LONGER, "S": (2, 3, 4)}, conventions=KEEPS)
def chunks_with_a_cache_give_what_one_pass_gives(lm: Subject, example: Example) -> None:
    """Fed in chunks of any size with a cache, the logits are those of one full pass, at every real token."""
    model = model_of(lm, example)
    ids, mask = model.ids(example), _cut(model, example)
    length, size = ids.shape[1], example.dims["S"]
    whole = model.measured(ids, mask)
    for cuts in ([*range(size, length, size), length], [1, length], [length - 1, length]):
        left, right = same(model.stepped(ids, mask, cuts), whole, mask)
        assert left == right


@spec.holds("KV-1", CONDUCT, kills=("cache_in_model",), needs=("cache",), rests_on=(steps_with_a_cache_give_what_one_pass_gives,),
            given={**LONGER, "padding": "none"}, conventions=KEEPS)
def caches_do_not_touch_each_other(lm: Subject, example: Example) -> None:
    """Two sequences decoded in turn, each with its own cache, and a copy continued on its own, give what one pass gives."""
    model = model_of(lm, example)
    pair = (model.ids(example), model.ids(example, "second sequence"))
    wholes = [model.measured(ids) for ids in pair]
    caches: list[Any] = [None, None]
    for t in range(pair[0].shape[1]):
        for which, ids in enumerate(pair):
            out, caches[which] = model.step(ids[:, t : t + 1], caches[which])
            whole = Bounded(wholes[which].value[:, t : t + 1], wholes[which].bar[:, t : t + 1])
            left, right = same(out, whole)
            assert left == right


@spec.holds("KV-1", kills=("cache_in_model",), needs=("beams",), given={**LONGER, "padding": "none"},
            rests_on=(steps_with_a_cache_give_what_one_pass_gives,), conventions=KEEPS)
def copied_caches_continue_apart(lm: Subject, example: Example) -> None:
    """A cache that is copied can be continued in two ways: each gives what one pass over its tokens gives."""
    model = model_of(lm, example)
    ids, fork = model.ids(example), model.ids(example, "fork")
    start = ids.shape[1] - 1
    other = torch.cat([ids[:, :start], fork[:, start:]], 1)
    _, cache = model.step(ids[:, :start], None)
    for branch in (other, ids):
        out, _ = model.step(branch[:, start:], replace(cache, copy=True))
        whole = model.measured(branch)
        left, right = same(out, Bounded(whole.value[:, start:], whole.bar[:, start:]))
        assert left == right


@spec.holds("KV-1", CONDUCT, kills=("memory_of_two_sequences", "cache_in_model", "positions_restart", "cache_hidden",
                                    "longest_remembered"), needs=("cache",), given={"T": lambda size: size > 3},
            rests_on=(steps_with_a_cache_give_what_one_pass_gives,), conventions=KEEPS, examples=6)
def any_sequence_of_cache_operations_gives_what_one_pass_gives(lm: Subject, example: Example) -> None:
    """Sequences begun, continued, forked and begun anew in any order, with full passes between: each has the logits of one pass."""
    drawn = program(model_of(lm, example), example)
    for line in drawn.run():
        mask = drawn.mask(line.ids)
        left, right = same(torch.cat(line.logits, 1), drawn.model.measured(line.ids, mask), mask)
        assert left == right


@spec.holds("GEN-6", kills=("positions_restart", "cache_hidden"), needs=("cache",),
            rests_on=(logits_score_every_word,), given={"B": 1, "T": (4, 5, 8), "padding": "none"}, conventions=KEEPS, examples=6)
def greedy_generation_agrees_with_and_without_cache(lm: Subject, example: Example) -> None:
    """Each word is fed back; greedy generation with a cache and without draws the same words while the best two are apart."""
    model = model_of(lm, example)
    ids = model.ids(example)
    if model.longest is not None:
        ids = ids[:, : max(1, model.longest - 6)]
    room = 6 if model.longest is None else min(6, model.longest - ids.shape[1])
    start, plain = ids.shape[1], ids
    out, cache = model.step(ids, None)
    for _ in range(room):
        ids = torch.cat([ids, out[:, -1:].argmax(-1)], 1)
        out, cache = model.step(ids[:, -1:], cache)
        plain = torch.cat([plain, model.logits(plain, grad_mode=False)[:, -1:].argmax(-1)], 1)
    whole = model.measured(ids)
    for t in range(start, ids.shape[1]):
        two = torch.topk(whole.value[0, t - 1], min(2, model.vocabulary)).values
        if not float(two[0] - two[-1]) > 2 * float(whole.bar[0, t - 1].max()):
            fact(True, "", decided=False, check="the best two words are too near to tell")
            return
        assert fact(int(ids[0, t]) == int(plain[0, t]), "generation with a cache draws another word", got=str(int(ids[0, t])),
                    expected=str(int(plain[0, t])), check="greedy word")


# ------------------------------------------------------------------------------------------------ rows and padding
@spec.holds("LM-3", kills=("rows_mixed", "positions_of_first_row"), rests_on=(logits_score_every_word,), given={"B": (2, 3)},
            conventions=KEEPS)
def rows_do_not_touch_each_other(lm: Subject, example: Example) -> None:
    """A sequence's logits in a batch are those that it has alone."""
    model = model_of(lm, example)
    ids, mask = model.ids(example), _cut(model, example)
    together = model.measured(ids, mask)
    alone = torch.cat([model.logits(ids[b : b + 1], None if mask is None else mask[b : b + 1], grad_mode=False)
                       for b in range(len(ids))])
    left, right = same(alone, together, mask)
    assert left == right


@spec.holds("LM-4", kills=("mask_replaces_causal",), needs=("mask", "padding"), rests_on=(logits_score_every_word,),
            given={"B": (2, 3), "T": (5, 8, 9), "padding": "right"}, conventions=KEEPS)
def right_padding_moves_nothing(lm: Subject, example: Example) -> None:
    """The logits at every real position, the last one above all, are those of the sequence without its padding."""
    model = model_of(lm, example)
    ids, mask = model.ids(example), _cut(model, example)
    padded = model.measured(ids, mask)
    for b in range(len(ids)):
        length = int(mask[b].sum()) if mask is not None else ids.shape[1]
        left, right = same(model.logits(ids[b : b + 1, :length], grad_mode=False), padded[b : b + 1, :length])
        assert left == right


@spec.holds("LM-4", "MSK-4", kills=("mask_ignored",), needs=("mask", "left_padding"), rests_on=(logits_score_every_word,),
            given={"B": (2, 3), "T": (5, 8, 9), "padding": "left"}, conventions=BITS)
def padded_tokens_do_not_matter(lm: Subject, example: Example) -> None:
    """Replacing the tokens behind the mask leaves the logits at all real tokens as they were, bit for bit."""
    model = model_of(lm, example)
    ids, mask = model.ids(example), example.mask
    mask = mask[:, : ids.shape[1]]
    other = torch.where(mask, ids, model.ids(example, "behind the mask"))
    before, seen = model.logits(ids, mask), model.logits(torch.where(mask, model.ids(example, "behind the mask"), ids), mask)
    reaches = bool((seen != before)[mask].any()) and bool((other != ids).any())
    assert identical(model.logits(other, mask)[mask], before[mask], witness=reaches)


@spec.holds("LM-4", kills=("left_padding_counted", "positions_of_first_row", "mask_ignored"), needs=("mask", "left_padding"),
            rests_on=(logits_score_every_word,), given={"B": (2, 3), "T": (5, 8, 9), "padding": "left"},
            conventions={**KEEPS, "positions": "from_mask"})
def left_padding_moves_nothing(lm: Subject, example: Example) -> None:
    """Where positions count from the first real token, left padding leaves the logits at real tokens as they are without."""
    model = model_of(lm, example)
    ids, mask = model.ids(example), example.mask
    mask = mask[:, : ids.shape[1]]
    padded = model.measured(ids, mask)
    for b in range(len(ids)):
        real = mask[b]
        left, right = same(model.logits(ids[b : b + 1, real], grad_mode=False), padded[b : b + 1, real])
        assert left == right


# ------------------------------------------------------------------------------------------------ state and refusals
@spec.holds(CONDUCT, kills=("seed_ignored",), needs=("seed",), rests_on=(logits_score_every_word,), given={"padding": "none"},
            conventions={"repeatability": "bitwise"})
def the_seed_decides_the_weights(lm: Subject, example: Example) -> None:
    """Models made with one seed give the same logits; another seed gives others."""
    model = model_of(lm, example)
    ids = model.ids(example)
    first = model.logits(ids)
    other = Model(lm, model.seed + 7)
    apart = other.logits(other.ids(example)) if other.vocabulary == model.vocabulary else first + 1
    assert identical(model.twin(1).logits(ids), first, witness=bool((apart != first).any()))


@spec.holds(CONDUCT, kills=("copy_drawn_again",), rests_on=(logits_score_every_word,), given={"padding": "none"},
            conventions={"repeatability": "bitwise"})
def a_copy_gives_the_same(lm: Subject, example: Example) -> None:
    """A deep copy of a model gives the same logits."""
    model = model_of(lm, example)
    ids = model.ids(example)
    first = model.logits(ids)
    assert identical(model.twin(-1).logits(ids), first, witness=bool((first != first[:1, :1]).any()))


@spec.holds(CONDUCT, kills=("longest_remembered",), rests_on=(logits_score_every_word,), given={"padding": "none", "T": (3, 4, 5)},
            conventions={"repeatability": "bitwise"})
def earlier_calls_do_not_matter(lm: Subject, example: Example) -> None:
    """The same call gives the same logits after calls with other tokens, longer sequences, and more rows."""
    model = model_of(lm, example)
    ids = model.ids(example)
    before = model.logits(ids)
    longer = torch.cat([model.ids(example, "another"), ids, ids], 1)
    longer = longer if model.longest is None else longer[:, : model.longest]
    other = model.logits(torch.cat([longer, longer.flip(0)]) if model.subject.declaration.allows("B", 2 * len(ids)) else longer)
    assert identical(model.logits(ids), before, witness=bool((other[: len(ids), : ids.shape[1]] != before).any()))


@spec.holds(CONDUCT, "EMB-1", kills=("ids_wrap",), needs=("refused_ids",), rests_on=(logits_score_every_word,),
            given={"padding": "none"}, examples=3)
def ids_outside_the_vocabulary_are_refused(lm: Subject, example: Example) -> None:
    """An id of V or above has no row in the table: the call is refused."""
    model = model_of(lm, example)
    ids = model.ids(example).clone()
    ids[0, 0] = model.vocabulary
    _refused(model, ids)


@spec.holds(CONDUCT, kills=("positions_wrap",), rests_on=(logits_score_every_word,), given={"padding": "none"}, examples=3)
def sequences_beyond_max_length_are_refused(lm: Subject, example: Example) -> None:
    """A model with a max_length refuses a longer sequence."""
    model = model_of(lm, example)
    if model.longest is None:
        fact(True, "", check="the model has no max_length")
        return
    times = -(-(model.longest + 1) // model.ids(example).shape[1])
    _refused(model, model.ids(example).repeat(1, times)[:, : model.longest + 1])


def _refused(model: Model, ids: torch.Tensor) -> None:
    subject = model.subject
    answer = subject.host.call(Call(subject.kind.name, subject.declaration.name, {"ids": ids}, device=subject.device,
                                    method="__call__", seed=model.seed))
    fact(answer.refusal is not None, "the call should have been refused with a message", got="a result",
         expected="an exception with a message")


@spec.holds("DEC-2", kills=("unembedding_detached",), gradient=True, rests_on=(logits_score_every_word,),
            given={"padding": "none", "T": (5, 8, 9)})
def every_parameter_learns(lm: Subject, example: Example) -> None:
    """Every parameter that asks for a gradient gets one that is finite and not all 0."""
    model = model_of(lm, example)

    def draw(number: int) -> Gradients:
        other = replace(model, seed=model.seed + 10 * number)
        ids = other.ids(example, "" if number == 0 else f"draw {number}")
        logits = other.logits(ids)
        above = torch.randn(logits.shape, generator=example.generator("upstream"), dtype=torch.float64).to(logits.dtype)
        return other.ask("__call__", {"ids": ids}, wrt=("parameters",), upstream=(above,)).gradients

    all_learn(draw)
