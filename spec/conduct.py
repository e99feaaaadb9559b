"""Conduct: what every kind must stand, whatever it computes. `add_conduct(spec)` adds these properties to a kind."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from assay.cases import Cases, Example, at_least
from assay.contract.kinds import FLAT, KINDS, ONE_TENSOR
from assay.errors import NotExercisedError
from assay.hosting import RESULT_BEFORE, Answer, Recipe
from assay.ledger import fact, identical
from assay.properties import CONDUCT, Specification
from assay.subject import Subject

LAYOUTS = ("transposed", "sliced", "offset", "expanded", "head_last", "padded_rows")
MIXED = ("contiguous", "transposed", "sliced", "head_last", "offset")  # dealt out to the arguments of one call, in turn
Agreement = Callable[[Subject, Example], None]
WITH_CONTAINERS = frozenset({"block", "encoder", "decoder", "encoder_decoder"})  # parameters come in mappings and lists

# Arguments whose first axis holds entries that do not touch each other, each with the least axes at which it has that axis.
ENTRIES: Mapping[str, Mapping[str, int]] = {
    "softmax": {"x": 2},
    "attention": {"q": 4, "k": 4, "v": 4, "mask": 4, "bias": 4},
    "blockwise_attention": {"q": 4, "k": 4, "v": 4, "mask": 4},
    "qk_norm_attention": {"q": 4, "k": 4, "v": 4, "positions": 2}, "latent_attention": {"x": 3, "positions": 2},
    "paged_attention": {"q": 3, "block_table": 2, "lengths": 1},
    "multi_head_attention": {"x": 3, "context": 3, "values": 3, "key_mask": 2, "mask": 3, "positions": 2},
    "rotary": {"x": 4, "positions": 2},
    "layer_norm": {"x": 2}, "rms_norm": {"x": 2}, "add_rms_norm": {"x": 2, "residual": 2},
    "feed_forward": {"x": 2}, "gated_feed_forward": {"x": 2},
    "embedding": {"ids": 2}, "unembedding": {"h": 2}, "patchify": {"image": 4},
}


def formula(subject: Subject, example: Example) -> None:
    """The default agreement: every output lies within its bar of the formula."""
    got, want = subject(**example), subject.exact(**example)
    for one, other in zip(_several(got), _several(want), strict=True):
        assert one == other


def nothing_upstream(subject: Subject, example: Example) -> None:
    """An upstream gradient of zeros gives gradients of exactly zero; that another one does not is the evidence."""
    up = subject.upstream(**example)
    some = subject.gradients(**example, upstream=up)
    none = subject.gradients(**example, upstream=tuple(torch.zeros_like(one) for one in up))
    for name, gradient in none.items():
        assert identical(gradient.value, 0.0, witness=bool((some[name].value != 0).any()), check=f"gradient of {name}")


def add_conduct(spec: Specification, *, agree: Agreement = formula, without: tuple[str, ...] = (),
                dtypes: tuple[str, ...] | None = None, shown_by: str = "output_is_the_formula",
                entries: Mapping[str, Any] | None = None) -> Mapping[str, str]:
    """Add the conduct properties to a kind; returns their ids by short name.

    agree: how one call is judged (kinds with discrete outcomes decide by margins). without: short names of what a kind
    without tensors among its arguments cannot break. dtypes: the only types the kind speaks of. shown_by: the property that
    says what is right at all; where it fails, what is right elsewhere is no question any more. entries: what examples must be
    like for an entry of their batch to be one that right implementations take alone.
    """
    kind, ids = spec.kind, dict[str, str]()
    formula_id, add = f"{kind}/{shown_by}", _adding(spec, ids, without, dtypes)

    add("form", "results_have_the_right_form", _form, "Results have the shape, type and device that the contract gives, in "
        "memory of their own.", ("conduct_wrong_type",))
    add("inputs", "inputs_are_left_unchanged", _inputs, "Arguments, and the memory around them, are as before after the call.",
        ("conduct_input_overwritten", *(("conduct_entry_taken_out",) if kind in WITH_CONTAINERS else ())))
    add("repeats", "same_call_gives_same_result", _repeats, "The same call gives the same result, also between other calls.",
        ("conduct_every_second_call",), conventions={"repeatability": "bitwise"}, invariance="repeat")
    add("unwritten", "every_element_is_written", _written, "No element of a result is left as the memory happened to be.",
        ("conduct_last_element_unwritten",))
    add("state", "global_state_is_left_alone", _state, "Random state, default type, gradient mode, threads, environment, working "
        "directory and torch itself are as before.", ("conduct_default_dtype_changed",))
    add("layouts", "memory_layout_does_not_matter", _layouts(agree), "Transposed, sliced, offset and expanded inputs, rows of a "
        "wider tensor, and inputs that each lie differently, give what contiguous ones give.",
        ("conduct_strides_ignored", *_of_several(spec), *_of_rows(spec)),
        needs=("strided",), rests_on=(ids["form"], formula_id), invariance="strides")
    if not {"v", "v_cache"}.isdisjoint(KINDS[kind].arguments):
        add("apart", "keys_and_values_may_lie_differently", _apart(agree), "Queries, keys and values may each have strides of "
            "their own, also where their shapes are the same.", ("conduct_strides_of_the_keys",), needs=("strided",),
            rests_on=(ids["form"], formula_id), given=_alike(spec), invariance="strides")
    add("history", "earlier_calls_do_not_matter", _history(agree, spec.cases),
        "A call with other values of the same shapes gives the result for those values, and leaves the result before it alone.",
        ("conduct_remembered_by_shape", "conduct_result_overwritten_later"), rests_on=(ids["form"], formula_id),
        invariance="order of calls")
    add("recording", "recording_gradients_does_not_matter", _recording(agree), "The result is right with gradients recorded and "
        "without.", ("conduct_wrong_without_gradients",), rests_on=(ids["form"], formula_id), invariance="grad / no grad")
    add("copies", "copies_compute_the_same", _copies(agree), "A deep copy, a second one, and one after .to() are right, and so is "
        "the original after them; a plain function is its own copy.",
        ("conduct_lost_in_a_copy", "conduct_broken_by_to"), rests_on=(ids["form"], formula_id), invariance="copy, .to()")
    if kind in ENTRIES:
        several = _of_a_batch(spec) | dict(entries or {})
        add("batch", "splitting_the_batch_does_not_matter", _split(agree, ENTRIES[kind]), "The entries of a batch are right "
            "together, the first alone, and the others without it.", ("conduct_smaller_batch_after_larger",),
            rests_on=(ids["form"], formula_id), given=several, invariance="batch split")
        add("order", "order_of_the_batch_does_not_matter", _rolled(agree, ENTRIES[kind]), "The entries of a batch are right in one "
            "order and, afterwards, in another.", ("conduct_remembered_by_content",), rests_on=(ids["form"], formula_id),
            given=several, invariance="permutation")
    add("compiled", "compiling_does_not_matter", _compiled(agree), "Compiled by torch (what it cannot trace runs as it is) it is "
        "as right as it is eagerly.", ("conduct_wrong_when_compiled",), rests_on=(ids["form"], formula_id), examples=0,
        invariance="eager / compiled", deep=True)
    return ids


def _adding(spec: Specification, ids: dict[str, str], without: tuple[str, ...],
            dtypes: tuple[str, ...] | None) -> Callable[..., None]:
    """What adds one property to the kind, and its id to `ids`, unless the kind is without it."""
    def add(short: str, name: str, body: Agreement, sentence: str, kills: tuple[str, ...], **options: Any) -> None:
        def prop(subject: Subject, example: Example) -> None:
            body(subject, example)

        if short in without:
            return
        prop.__name__, prop.__doc__, prop.__module__ = name, sentence, spec.cases.__module__
        spec.holds(CONDUCT, kills=kills, dtypes=dtypes, **options)(prop)
        ids[short] = f"{spec.kind}/{name}"

    return add


def _of_a_batch(spec: Specification) -> dict[str, Any]:
    """A batch of two or three, for the kinds that have that letter."""
    return {"B": (2, 3)} if {2, 3} <= set(spec.cases.dims.get("B", ())) else {}


def _of_several(spec: Specification) -> tuple[str, ...]:
    """The fault of layouts that takes two tensors, for the kinds that have them."""
    return () if spec.kind in ONE_TENSOR else ("conduct_strides_of_the_first",)


def _of_rows(spec: Specification) -> tuple[str, ...]:
    """The fault of layouts that takes rows, for the kinds that have them."""
    return () if spec.kind in FLAT else ("conduct_rows_taken_as_packed",)


def _several(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def _form(subject: Subject, example: Example) -> None:
    answer = subject.answer(**example)
    subject(**example)  # number and shapes of results
    kind = subject.kind
    right = ("tensor", "value") if len(kind.outputs) == 1 else ("tuple", "other:list")
    fact(answer.structure in right, f"the call returns {_in_words(answer.structure)}, not {right[0]}", got=answer.structure,
         expected=right[0], check="a tensor or a tuple comes back")
    if len(answer.facts) != len(kind.outputs):  # and yet the second call gave the right number
        fact(False, f"the call returns {len(answer.facts)} results, not {len(kind.outputs)}", check="number of results")
        return
    wanted = {str(subject.dtype).removeprefix("torch."), *(["float32"] if subject.dtype.itemsize < 4 else [])}
    for name, facts, want in zip(kind.outputs, answer.facts, _several(subject.exact(**example)), strict=True):
        if facts is None:
            fact(not isinstance(want, torch.Tensor), f"{name} is no tensor", check=f"{name} is a tensor")
            continue
        if isinstance(want, torch.Tensor) and want.is_floating_point():
            allowed = wanted if name in kind.widenable else {str(subject.dtype).removeprefix("torch.")}
            if not _any_floating(example.arguments):
                allowed = {"float32", "float64"}  # no input has a type to follow: float32 or wider
            fact(facts.dtype in allowed, f"{name} is {facts.dtype}", got=facts.dtype, expected=" or ".join(sorted(allowed)),
                 check=f"type of {name}")
        elif isinstance(want, torch.Tensor):
            whole = str(want.dtype).startswith(("torch.int", "torch.uint"))
            fact(("int" in facts.dtype) == whole, f"{name} comes as {facts.dtype}", got=facts.dtype,
                 expected="integers" if whole else str(want.dtype).removeprefix("torch."), check=f"type of {name}")
        fact(facts.device.split(":")[0] == subject.device.split(":")[0], f"{name} is on {facts.device}", got=facts.device,
             expected=subject.device, check=f"device of {name}")
        fact(facts.is_plain_tensor, f"{name} is a tensor subclass or no tensor", check=f"{name} is a plain tensor")
        if not kind.may_alias:
            fact(not facts.shares_memory_with, f"{name} shares memory with {', '.join(facts.shares_memory_with)}",
                 check=f"{name} has memory of its own")


def _in_words(structure: str) -> str:
    """What came back, in words."""
    return {"tuple": "a tuple, though of one", "iterator": "a generator"}.get(structure, structure.removeprefix("other:"))


def _any_floating(value: Any) -> bool:
    """Whether there is a floating tensor anywhere among the arguments."""
    if isinstance(value, Mapping):
        return any(_any_floating(part) for part in value.values())
    if isinstance(value, (list, tuple)):
        return any(_any_floating(part) for part in value)
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _inputs(subject: Subject, example: Example) -> None:
    answers = [subject.answer(**example)]
    wrt = subject._wrt(example, None)
    if subject.declaration.claims("gradients") and wrt:
        answers.append(subject.answer(_wrt=wrt, _upstream=subject.upstream(**example), **example))
    for answer in answers:
        fact(not answer.mutated, f"the call changed {', '.join(answer.mutated)}", check="arguments unchanged")
        fact(not answer.guards_broken, f"the call wrote beside {', '.join(answer.guards_broken)}", check="memory around unchanged")


def _repeats(subject: Subject, example: Example) -> None:
    first = subject.answer(**example)
    between = subject.under(layouts={}, grad_mode=False)
    between.answer(**example)
    for other in (subject.answer(**example), subject.answer(**example)):
        _same_bits(first, other)


def _pairs(first: Answer, second: Answer) -> list[tuple[Any, Any]]:
    """The results of two calls side by side; that there are none, or not equally many, is recorded."""
    one, other = len(first.outputs), len(second.outputs)
    if one == 0 or one != other:
        fact(one == other, "two calls give results of different number", got=str(other), expected=str(one),
             check="two calls give as many results", decided=one + other > 0)
        return []
    return list(zip(first.outputs, second.outputs, strict=True))


def _same_bits(first: Answer, second: Answer) -> None:
    for one, other in _pairs(first, second):
        if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor) and one.shape == other.shape:
            identical(one.double(), other.double(), check="two calls give the same bits")
        else:
            fact(_plain_equal(one, other), "two calls give results of different form", check="two calls give the same form")


def _plain_equal(one: Any, other: Any) -> bool:
    return not isinstance(one, torch.Tensor) and not isinstance(other, torch.Tensor) and one == other


def _written(subject: Subject, example: Example) -> None:
    usual, filled = subject.answer(**example), subject.under(fill_empty=True).answer(**example)
    for one, other in _pairs(usual, filled):
        if not (isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor) and one.shape == other.shape):
            fact(True, "", check="no tensor", decided=False)
        elif one.is_floating_point():
            fact(not bool((other.isnan() & ~one.isnan()).any()), "elements come out as NaN when fresh memory is filled with NaN",
                 check="no element is left unwritten", decided=one.numel() > 0)
        else:
            repeatable = subject.conventions.get("repeatability", "bitwise") == "bitwise"
            fact(torch.equal(one, other) or not repeatable, "elements change when fresh memory is filled with a pattern",
                 check="no element is left unwritten", decided=one.numel() > 0 and repeatable)


def _state(subject: Subject, example: Example) -> None:
    answer = subject.answer(**example)
    fact(not answer.state, "; ".join(answer.state), check="global state unchanged")


def _layouts(agree: Agreement) -> Agreement:
    def body(subject: Subject, example: Example) -> None:
        for layout in LAYOUTS:
            under = subject.under(layouts=dict.fromkeys(example, layout), upstream_layout=layout)
            agree(under, example)
        agree(subject.under(layouts=mixed(example)), example)
    return body


def _apart(agree: Agreement) -> Agreement:
    return lambda subject, example: agree(subject.under(layouts=mixed(example)), example)


def _alike(spec: Specification) -> Mapping[str, Any]:
    """Keys and values of one shape, with several tokens to each sequence or block, so that a layout shows."""
    several = {letter: at_least(2) for letter in ("Tk", "T", "S") if letter in spec.cases.dims}
    return {**several, "D": (2, 4, 8), "Dv": "D"}


def mixed(example: Example) -> Mapping[str, str]:
    """A layout for every tensor of the call, no two neighbours the same: what is read with another's strides comes out wrong."""
    first = example.integer("mixed layouts", 0, len(MIXED) - 1)
    paths = [path for name, value in example.items() for path in _tensors(name, value)]
    return {path: MIXED[(first + place) % len(MIXED)] for place, path in enumerate(paths)}


def _tensors(path: str, value: Any) -> Iterator[str]:
    """Paths of all tensors of an argument, as a host names them."""
    if isinstance(value, torch.Tensor):
        yield path
    held = value.parameters if isinstance(value, Recipe) else value
    parts = held.items() if isinstance(held, Mapping) else enumerate(held) if isinstance(held, (list, tuple)) else ()
    for key, part in parts:
        yield from _tensors(f"{path}/{key}", part)


def _history(agree: Agreement, cases: Cases) -> Agreement:
    def body(subject: Subject, example: Example) -> None:
        configuration = example.configuration
        changed = replace(configuration, seed=configuration.seed + 1)
        other = cases.build(changed, example.dtype)
        subject.answer(**example)
        later = subject.answer(**other)
        fact(RESULT_BEFORE not in later.mutated, f"the call changed {RESULT_BEFORE}", check="earlier results left alone",
             decided=False)
        agree(subject, other)
        agree(subject, example)
    return body


def _recording(agree: Agreement) -> Agreement:
    def body(subject: Subject, example: Example) -> None:
        for grad_mode in (True, False):
            agree(subject.under(grad_mode=grad_mode), example)
    return body


def _copies(agree: Agreement) -> Agreement:
    def body(subject: Subject, example: Example) -> None:
        for other in (subject.under(instance=-1), subject.under(instance=1), subject.under(moved=True), subject):
            agree(other, example)
    return body


def _entries(example: Example, axes: Mapping[str, int]) -> Mapping[str, torch.Tensor]:
    """The arguments with an axis of entries; NotExercisedError where that has fewer than two."""
    found = {name: example[name] for name in axes if isinstance(example.arguments.get(name), torch.Tensor)}
    size = next(iter(found.values())).shape[:1]
    held = {name: one for name, one in found.items() if one.dim() >= axes[name] and one.shape[:1] == size}
    normalised = "dim" in example.arguments and example["dim"] % next(iter(found.values())).dim() == 0  # softmax over that axis
    if len(size) == 0 or size[0] < 2 or next(iter(found)) not in held or normalised:
        raise NotExercisedError("no batch of two entries or more was drawn")
    return held


def _split(agree: Agreement, axes: Mapping[str, int]) -> Agreement:
    def body(subject: Subject, example: Example) -> None:
        held = _entries(example, axes)
        if {"B", "T", "N"} & set(subject.declaration.limits):
            raise NotExercisedError("it declares limits on the batch")
        for part in (slice(None), slice(1), slice(1, None)):
            agree(subject, example.but(**{name: one[part] for name, one in held.items()}))
    return body


def _rolled(agree: Agreement, axes: Mapping[str, int]) -> Agreement:
    def body(subject: Subject, example: Example) -> None:
        held = _entries(example, axes)
        for shift in (0, 1):
            agree(subject, example.but(**{name: one.roll(shift, 0) for name, one in held.items()}))
    return body


def _compiled(agree: Agreement) -> Agreement:
    def body(subject: Subject, example: Example) -> None:
        compiled = subject.under(compiled=True)
        told = compiled.attempt(**example).refusal
        if told is not None and subject.attempt(**example).refusal is None:
            raise NotExercisedError(f"torch.compile does not take it: {told.type}: {told.message.partition(chr(10))[0][:120]}")
        agree(compiled, example)
    return body
