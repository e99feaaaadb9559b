"""What a failure is consistent with: another convention, an argument left out, a known fault, a looser arithmetic (layer 4).

Asked at a failure alone, in the judge. Each alternative is computed for the very calls that the implementation answered, on
the smallest failing example and on a few others, and is told when every answer lies within the bar of it while at least one
lies outside the bar of what is right. The order is fixed and the clock has no say, so that the same failure is told alike.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from assay import registry
from assay.contract.conventions import CONVENTIONS, FIXED
from assay.contract.kinds import REQUIRED
from assay.errors import AssayError
from assay.hosting import Answer, Call, Handle
from assay.ledger import SIGNAL_SHARE, open_ledger
from assay.numbers.bound import Bounded
from assay.run.hosts import LocalHost
from assay.subject import Subject

LARGEST = 1 << 15  # elements of all arguments of a call that is compared
CALLS = 4  # of one example that are compared; those that are wrong come first
HERE = 2  # alternatives at most that are told although they fit the failing examples alone
NEARER = 2  # times as near to a fault's float64 values as to the right ones: in the type itself the fault may fit
TOLD = 3  # alternatives that are named; of more, how many
LOOSER: Mapping[str, Any] = {  # the choice of each sort that is the least exact
    "internal": "input", "accumulate": "input", "tf32": True, "angles": "input", "tables": "input", "exp": "fast", "erf": "fast",
    "tanh": "fast"}
REFUSED = (ValueError, TypeError, RuntimeError, LookupError, ArithmeticError, AttributeError, AssertionError, AssayError)

Results = dict[str, torch.Tensor]  # output number or path of a gradient -> values, float64 where floating


@dataclass(frozen=True)
class Heard:
    """One call that the implementation answered, with what would have been right."""

    call: Call
    got: Results
    right: Results
    bars: Results

    @property
    def wrong(self) -> bool:
        return any(name not in self.got or not bool(_within(self.got[name], right, self.bars[name]).all())
                   for name, right in self.right.items())

    @property
    def alike(self) -> bool:
        """Whether there are as many results as there should be, of the right shapes: only then is anything else compared."""
        return set(self.got) == set(self.right) and all(self.got[name].shape == right.shape for name, right in self.right.items())


@dataclass(frozen=True)
class Alternative:
    """Something else that might have been computed: what to say of it, and its results for a call, with bars of its own."""

    text: str
    results: Callable[[Heard], tuple[Results, Results] | None]
    fault: str = ""  # id of a planted fault
    looser: bool = False  # the right values, with wider bars

    def fits(self, heard: Heard) -> bool:
        """Whether the implementation's answer could be this."""
        found = self.results(heard)
        if found is None or set(found[0]) != set(heard.got):
            return False
        values, bars = found
        return all(values[name].shape == got.shape and bool(_within(got, values[name], bars[name]).all())
                   for name, got in heard.got.items())

    def differs(self, heard: Heard) -> bool:
        """Whether it could not be what is right, on this call."""
        found = self.results(heard)
        if found is None:
            return False
        values, bars = found
        if self.looser:  # it must not be so loose that anything would fit
            return all(bool((bars[name] < SIGNAL_SHARE * right.abs()).any()) for name, right in heard.right.items())
        return any(right.shape != values[name].shape or bool((~_within(values[name], right, heard.bars[name])).any())
                   for name, right in heard.right.items())


def _within(got: torch.Tensor, expected: torch.Tensor, bar: torch.Tensor) -> torch.Tensor:
    """Element by element; not where shapes differ, or where the bar is not a number."""
    if got.shape != expected.shape:
        return torch.zeros((), dtype=torch.bool)
    return (got == expected) | (got.isnan() & expected.isnan()) | ((got - expected).abs() <= bar)


# ------------------------------------------------------------------------------------------------ what was heard
def heard(subject: Subject, exchanges: Sequence[tuple[Call, Answer]]) -> list[Heard]:
    """The calls of one example that were answered and that the formula speaks of, the wrong and small ones first."""
    found = []
    for call, answer in exchanges:
        size = sum(map(elements, call.arguments.values()))
        if answer.refusal is not None or call.method or call.count or holds(call.arguments, Handle) or size > LARGEST:
            continue
        one = hear(subject, call, answer)
        if one is not None and one.alike:
            found.append(one)
    return sorted(found, key=lambda one: (not one.wrong, sum(t.numel() for t in one.got.values())))[:CALLS]


def elements(value: Any) -> int:
    """Elements of all tensors of an argument."""
    if isinstance(value, torch.Tensor):
        return value.numel()
    return sum(map(elements, _items(value)))


def holds(value: Any, sorts: type | tuple[type, ...]) -> bool:
    """Whether an argument is of one of these sorts, or holds such a value."""
    return isinstance(value, sorts) or any(holds(item, sorts) for item in _items(value))


def _items(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()


def hear(subject: Subject, call: Call, answer: Answer) -> Heard | None:
    """An answer with what would have been right; nothing where the formula does not speak of the call."""
    bounded = formula(subject, call)
    return None if bounded is None else Heard(call, _of_answer(answer, call.wrt, bounded[0]), *bounded)


def formula(subject: Subject, call: Call) -> tuple[Results, Results] | None:
    """Values and bars of the formula, by the subject's declaration."""
    try:
        with open_ledger():
            outputs = subject.bars(**call.arguments)
            gradients = subject.gradient_bars(wrt=call.wrt, upstream=call.upstream, **call.arguments) if call.wrt else {}
    except REFUSED:  # arguments that the formula refuses: nothing to compare with
        return None
    listed = outputs if isinstance(outputs, (tuple, list)) else [outputs]
    named = {**{str(place): value for place, value in enumerate(listed)}, **gradients}
    tensors = {name: value for name, value in named.items() if isinstance(value, torch.Tensor)}
    values = {name: value.value if isinstance(value, Bounded) else value.double() for name, value in tensors.items()}
    bars = {name: value.bar if isinstance(value, Bounded) else torch.zeros_like(values[name]) for name, value in tensors.items()}
    return values, bars


def _of_answer(answer: Answer, wrt: Sequence[str], like: Results) -> Results:
    """The same of an answer; a gradient that did not arrive is zero."""
    found = {str(place): value.double() for place, value in enumerate(answer.outputs) if isinstance(value, torch.Tensor)}
    for path in wrt:
        gradient = answer.gradients.get(path)
        if gradient is not None:
            found[path] = gradient.double()
        elif path in like:
            found[path] = torch.zeros_like(like[path])
    return found


# ------------------------------------------------------------------------------------------------ the alternatives
def alternatives(subject: Subject, flags: Mapping[str, Sequence[Any]]) -> Iterator[Alternative]:
    """All that is tried: conventions, arguments, known faults, arithmetic, in this order. flags: what a kind's options may be."""
    declaration = subject.declaration
    for name, value in (*_conventions(subject), *_fixed(subject)):
        other = replace(declaration, conventions={**declaration.conventions, name: value})
        text = f"{name.replace('_', ' ')} {value} (if that is meant, declare conventions={{{name!r}: {value!r}}})"
        yield Alternative(text, _byformula(_as(subject, other)))
    for name in subject.kind.options:
        if name in declaration.keywords:
            for choice in flags.get(name, ()):
                if isinstance(choice, (str, bool)):
                    yield Alternative(f"{name}={choice}", _with_argument(subject, name, choice))
            yield Alternative(f"{name} left out", _without_argument(subject, name))
    faults = registry.own_faults(subject.kind.name)
    host = LocalHost([fault.declaration for fault in faults])
    for fault in faults:
        known = f"the known fault {fault.id.partition('/')[2]} ({fault.summary})"
        yield Alternative(known, _by_fault(host, fault, subject.dtype), fault.id)
    for name, choice in LOOSER.items():
        if getattr(declaration.arithmetic, name) != choice:
            other = replace(declaration, arithmetic=replace(declaration.arithmetic, **{name: choice}))
            yield Alternative(f"arithmetic {name}={choice}, which is not declared", _byformula(_as(subject, other)), looser=True)


def _conventions(subject: Subject) -> Iterator[tuple[str, Any]]:
    for name in subject.kind.conventions:
        yield from ((name, value) for value in CONVENTIONS[name].values if value != subject.conventions.get(name))


def _fixed(subject: Subject) -> Iterator[tuple[str, Any]]:
    """Other values of the choices that the signature has settled."""
    for name, settled in subject.declaration.fixed.items():
        yield from ((name, value) for value in FIXED[name] or () if value != settled)


def _as(subject: Subject, declaration: Any) -> Subject:
    return Subject(declaration, subject.host, subject.dtype, subject.example, device=subject.device,
                   evaluations=subject.evaluations)


def _byformula(subject: Subject) -> Callable[[Heard], tuple[Results, Results] | None]:
    return lambda heard: formula(subject, heard.call)


def _with_argument(subject: Subject, name: str, choice: Any) -> Callable[[Heard], tuple[Results, Results] | None]:
    def results(heard: Heard) -> tuple[Results, Results] | None:
        given = heard.call.arguments
        if type(given.get(name, subject.kind.options[name])) is not type(choice):
            return None  # drawn under the same name, yet not what the call takes
        return formula(subject, replace(heard.call, arguments={**given, name: choice}))
    return results


def _without_argument(subject: Subject, name: str) -> Callable[[Heard], tuple[Results, Results] | None]:
    default = subject.kind.options[name]

    def results(heard: Heard) -> tuple[Results, Results] | None:
        given = heard.call.arguments
        if name not in given or given[name] is default or default is REQUIRED:
            return None if default is REQUIRED else (heard.right, heard.bars)
        return formula(subject, replace(heard.call, arguments={k: v for k, v in given.items() if k != name}))
    return results


def _by_fault(host: LocalHost, fault: registry.Fault,
              dtype: torch.dtype) -> Callable[[Heard], tuple[Results, Results] | None]:
    """What a planted fault gives: in float64, where only its mistake shows; or, where that does not fit, in the type itself."""
    def results(heard: Heard) -> tuple[Results, Results] | None:
        for call in (_wide(heard.call), heard.call):
            try:
                answer = host.call(replace(call, implementation=fault.declaration.name))
            except REFUSED:  # it lacks an argument of this call
                return None
            if answer.refusal is not None:
                continue
            found = _of_answer(answer, call.wrt, heard.right)
            bars = {name: _scaled(heard, name, value) for name, value in found.items() if name in heard.right}
            fits = set(bars) == set(heard.got) and all(
                bool(_within(got, found[name], bars[name]).all()) for name, got in heard.got.items())
            if fits:
                return {name: found[name] for name in bars}, bars
            if not _like(heard, found):
                return None  # the mistake shows in float64, and is another one
        return None
    return results


def _like(heard: Heard, found: Results) -> bool:
    """Whether what a fault gives in float64 is so near to the answer, or to what is right, that in the type itself it may fit."""
    for name, right in heard.right.items():
        if name not in found or name not in heard.got or found[name].shape != right.shape:
            return False
        got, other, want = (torch.nan_to_num(one[name].double()) for one in (heard.got, found, heard.right))
        apart, off = float((got - other).abs().sum()), float((got - want).abs().sum())
        if NEARER * apart > off and not bool(_within(other, want, heard.bars[name]).all()):
            return False
    return True


def _scaled(heard: Heard, name: str, found: torch.Tensor) -> torch.Tensor:
    """The bar of what is right, as wide in proportion where the alternative's values are larger."""
    right, bar = heard.right[name], heard.bars[name]
    if found.shape != right.shape:
        return torch.zeros_like(found)
    largest = [float(t[t.isfinite()].abs().max()) if bool(t.isfinite().any()) else 0.0 for t in (found, right)]
    return bar * max(1.0, largest[0] / largest[1]) if largest[1] else bar


def _wide(call: Call) -> Call:
    return replace(call, arguments=_doubled(call.arguments), upstream=tuple(up.double() for up in call.upstream))


def _doubled(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.double() if value.is_floating_point() else value
    if isinstance(value, Mapping):
        return {name: _doubled(item) for name, item in value.items()}
    return type(value)(_doubled(item) for item in value) if type(value) in (list, tuple) else value


# ------------------------------------------------------------------------------------------------ the search
@dataclass(frozen=True)
class Found:
    """What is told: sentences, and the ids of planted faults among them."""

    texts: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()


def consistent(subject: Subject, first: Sequence[Heard], failing: Iterator[Sequence[Heard]], more: Iterator[Sequence[Heard]],
               flags: Mapping[str, Sequence[Any]]) -> Found:
    """Alternatives that fit the failing example and all others. failing: calls of further examples that fail; more: of any others.

    One or two that fit whatever fails, yet not all others, are told as what they are.
    """
    wrong = [one for one in first if one.wrong]
    if not wrong:
        return Found()
    fitting = list[Alternative]()
    for alternative in alternatives(subject, flags):
        if alternative.looser and fitting:
            break
        if all(alternative.fits(one) for one in first) and any(alternative.differs(one) for one in wrong):
            fitting.append(alternative)
    fitting = _kept(fitting, failing)
    everywhere = _kept(fitting, more)
    if everywhere:
        return _told(everywhere)
    if 0 < len(fitting) <= HERE and not any(one.looser for one in fitting):
        return Found(tuple(f"{text}, where it fails; elsewhere not" for text in _told(fitting).texts))
    return Found()


def _kept(left: Sequence[Alternative], examples: Iterator[Sequence[Heard]]) -> list[Alternative]:
    """Those that fit every further example; no example is made once none is left."""
    kept = list(left)
    while kept:
        others = next(examples, None)
        if others is None:
            break
        kept = [one for one in kept if all(one.fits(other) for other in others)]
    return kept


def _told(left: Sequence[Alternative]) -> Found:
    """The first few by name; faults that say what a convention or an argument has said already are left to the ids."""
    plain = dict.fromkeys(one.text for one in [one for one in left if not one.fault] or left)  # a flag may list a value twice
    shown = list(plain)[:TOLD]
    more = len(plain) - len(shown)
    return Found((*shown, *((f"{more} more",) if more else ())), tuple(one.fault for one in left if one.fault))
