"""An implementation as a property sees it (layer 2): call it, and what comes back carries its derived bar."""
from __future__ import annotations

import contextlib
import hashlib
import inspect
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import torch

from assay import ledger, registry
from assay.cases import Example, draw_values
from assay.contract.declaration import Declaration
from assay.contract.kinds import KINDS
from assay.errors import (
    AssayError,
    ExampleOverError,
    HostOutOfMemoryError,
    NotClaimedError,
    NotExercisedError,
    NotSupportedError,
    PathNotTakenError,
)
from assay.hosting import Answer, Call, Host, Meanwhile, Recipe, bytes_of, nothing
from assay.numbers.arithmetic import Arithmetic
from assay.numbers.bound import Bounded
from assay.numbers.evaluate import Evaluation, evaluate
from assay.numbers.forms import Form
from assay.numbers.sampled import FEWER, RUNS, sampled
from assay.recipes import build

CACHED = 256  # reference evaluations kept: implementations of a kind, one after another, are given the same examples


class Evaluations:
    """References already evaluated, by kind, arguments, precision and arithmetic; shared by all properties of a judge."""

    def __init__(self, size: int = CACHED) -> None:
        self._kept: OrderedDict[str, Evaluation] = OrderedDict()
        self._size = size
        self.refusal_allowed = False  # whether raising takes this example out instead of failing it
        self.weigh = False  # whether errors are also compared with those of the formula in the type under test
        self.every_form = True  # False: the form whose bar is usually widest stands for all

    def get(self, forms: Sequence[Form], arguments: Mapping[str, Any], dtype: torch.dtype, arithmetic: Arithmetic, *,
            upstream: Sequence[torch.Tensor] | None = None, wrt: tuple[str, ...] = ()) -> Evaluation:
        by_runs = getattr(sys.modules[forms[0].forward.__module__], "BOUND", "") == "sampled"
        tried = forms if self.every_form or by_runs else _usual(forms, arguments)
        key = _digest((forms[0].forward.__module__, arguments, str(dtype), arithmetic, upstream, wrt, len(tried),
                       by_runs and self.every_form))
        if key not in self._kept:
            known = {name: build(value) if isinstance(value, Recipe) else value for name, value in arguments.items()}
            self._kept[key] = sampled(
                forms, known, dtype, arithmetic, upstream=upstream, wrt=wrt, seed=int(key[:12], 16),
                runs=RUNS if self.every_form else FEWER,
            ) if by_runs else evaluate(tried, known, dtype, arithmetic, upstream=upstream, wrt=wrt)
            if len(self._kept) > self._size:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]


def _usual(forms: Sequence[Form], arguments: Mapping[str, Any]) -> Sequence[Form]:
    """The one form to try first: one that is marked so and applies, else the formula as written."""
    usual = [form for form in forms if form.usual and (form.applies is None or form.applies(arguments))]
    return (usual or forms)[:1]


def _digest(value: Any) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for piece in _pieces(value):
        digest.update(piece)
    return digest.hexdigest()


def _pieces(value: Any) -> Iterator[bytes]:
    if isinstance(value, torch.Tensor):
        yield f"{value.dtype}{tuple(value.shape)}".encode()
        yield bytes_of(value).numpy().tobytes()
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield f"{name}:".encode()
            yield from _pieces(item)
    elif isinstance(value, (list, tuple)):
        yield b"["
        for item in value:
            yield from _pieces(item)
        yield b"]"
    elif isinstance(value, Recipe):
        yield value.name.encode()
        yield from _pieces(value.parameters)
    else:
        yield f"{value!r};".encode()


@dataclass(frozen=True)
class Under:
    """Circumstances of a call that must not matter."""

    layouts: Mapping[str, str] = field(default_factory=dict)
    upstream_layout: str = "contiguous"
    grad_mode: bool = True
    fill_empty: bool = False
    instance: int = 0
    moved: bool = False
    compiled: bool = False


class Subject:
    """One implementation on one device in one dtype, for one example.

    `subject(**arguments)` is measured: the implementation's values with the bar of how far they may lie from the exact ones.
    `subject.exact(**arguments)` is the formula itself. `subject.gradients(**arguments)` and `exact_gradients` likewise, by
    argument name. `subject.under(layouts=…)` is the same implementation under other circumstances.
    """

    def __init__(self, declaration: Declaration, host: Host, dtype: torch.dtype, example: Example, *, device: str = "cpu",
                 evaluations: Evaluations | None = None, under: Under | None = None) -> None:
        self.declaration = declaration
        self.kind = KINDS[declaration.kind]
        self.host = host
        self.dtype = dtype
        self.example = example
        self.device = device
        self.evaluations = evaluations if evaluations is not None else Evaluations()
        self._conventions: dict[str, Any] | None = None  # what the formula takes of them
        self.circumstances = under or Under(layouts=dict.fromkeys(example, example.configuration.layout),
                                            upstream_layout=example.configuration.layout)

    def under(self, **changes: Any) -> Subject:
        """The same implementation, called under other circumstances: fields of `Under`."""
        return Subject(self.declaration, self.host, self.dtype, self.example, device=self.device,
                       evaluations=self.evaluations, under=replace(self.circumstances, **changes))

    @property
    def conventions(self) -> Mapping[str, str]:
        return self.declaration.conventions

    # ------------------------------------------------------------------------------------------------ outputs
    def __call__(self, *args: Any, **arguments: Any) -> Any:
        """Measured outputs: one, or a tuple where the kind has several; discrete outputs are plain tensors."""
        named = self._named(args, arguments)
        answer = self._answered(named)
        expected = self._evaluation(named)
        measured = [self._measured(name, got, want) for name, got, want in
                    zip(self.kind.outputs, self._outputs(answer, expected.outputs), expected.outputs, strict=True)]
        if self.evaluations.weigh:
            self._weigh(named, measured, expected.outputs)
        return measured[0] if len(measured) == 1 else tuple(measured)

    def _weigh(self, named: Mapping[str, Any], measured: Sequence[Any], expected: Sequence[Any]) -> None:
        """Note how the error compares with that of the formula evaluated in the very type under test, both root mean square;
        an evaluation that happens to be exact counts as one rounding."""
        for got, plain, want in zip(measured, self._plain(named), expected, strict=True):
            if isinstance(got, Bounded) and got.numel() and bool(want.value.isfinite().all()):
                usual = (plain.double() - want.value).square().mean().sqrt()
                rounding = want.value.square().mean().sqrt() * torch.finfo(self.dtype).eps / 2
                error = (got.value - want.value).square().mean().sqrt()
                if bool(usual.isfinite()) and bool(rounding > 0):
                    ledger.current().noise.append(float(error / torch.maximum(usual, rounding)))

    def values(self, *args: Any, **arguments: Any) -> Any:
        """The outputs as they came, in float64 and without bars: for comparisons bit for bit."""
        answer = self.answer(**self._named(args, arguments))
        found = [out.double() if isinstance(out, torch.Tensor) and out.is_floating_point() else out for out in answer.outputs]
        return found[0] if len(found) == 1 else tuple(found)

    def exact(self, *args: Any, **arguments: Any) -> Any:
        """What the formula gives, with a bar of zero."""
        outputs = [_exactly(want) for want in self._evaluation(self._named(args, arguments)).outputs]
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def bars(self, *args: Any, **arguments: Any) -> Any:
        """The formula with the bar that an implementation is allowed, for decisions by margin."""
        outputs = list(self._evaluation(self._named(args, arguments)).outputs)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    # ------------------------------------------------------------------------------------------------ gradients
    def gradients(self, *args: Any, wrt: Sequence[str] | None = None, upstream: Sequence[torch.Tensor] | None = None,
                  **arguments: Any) -> dict[str, Bounded]:
        """Measured gradients by argument name, for an upstream gradient drawn from the example's family."""
        named = self._named(args, arguments)
        names = self._wrt(named, wrt)
        up = tuple(upstream) if upstream is not None else self.upstream(**named)
        answer = self._answered(named, up, names)
        expected = self._evaluation(named, up, names).gradients
        return {name: self._measured_gradient(name, answer.gradients.get(name), expected[name]) for name in names}

    def exact_gradients(self, *args: Any, wrt: Sequence[str] | None = None,
                        upstream: Sequence[torch.Tensor] | None = None, **arguments: Any) -> dict[str, Bounded]:
        named = self._named(args, arguments)
        up = tuple(upstream) if upstream is not None else self.upstream(**named)
        expected = self._evaluation(named, up, self._wrt(named, wrt)).gradients
        return {name: _exactly(value) for name, value in expected.items()}

    def gradient_bars(self, *args: Any, wrt: Sequence[str] | None = None,
                      upstream: Sequence[torch.Tensor] | None = None, **arguments: Any) -> dict[str, Bounded]:
        """The formula's gradients with the bars that an implementation is allowed, for decisions by margin."""
        named = self._named(args, arguments)
        up = tuple(upstream) if upstream is not None else self.upstream(**named)
        return dict(self._evaluation(named, up, self._wrt(named, wrt)).gradients)

    def upstream(self, **arguments: Any) -> tuple[torch.Tensor, ...]:
        """An upstream gradient for every floating output: never all ones, rounded to the type under test."""
        found = []
        for index, want in enumerate(self._plain(arguments)):
            if isinstance(want, torch.Tensor) and want.is_floating_point():
                source = self.example.generator(f"upstream {index}")
                family = "integers" if self.example.configuration.family == "integers" else "normal"
                found.append(draw_values(family, tuple(want.shape), source, self.dtype))
        return tuple(found)

    def _wrt(self, arguments: Mapping[str, Any], wrt: Sequence[str] | None) -> tuple[str, ...]:
        if wrt is not None:
            return tuple(wrt)
        return tuple(path for name in self.kind.differentiable for path in _floating_paths(name, arguments.get(name)))

    # ------------------------------------------------------------------------------------------------ costs
    def counts(self, *args: Any, gradients: bool = False, **arguments: Any) -> Mapping[str, int]:
        """Operations and memory of one call, with the gradients' or without recording any: `multiply_adds`, `largest_bytes`,
        `peak_bytes`, `read/<argument>` (see `counting.Counter`), or what the implementation declares by `cost=`."""
        named = self._named(args, arguments)
        plain = self.under(layouts={}, upstream_layout="contiguous", grad_mode=gradients)
        wrt, up = (self._wrt(named, None), self.upstream(**named)) if gradients else ((), ())
        counted = plain.answer(_wrt=wrt, _upstream=up, _count=True, **named).counts
        if counted.get("multiply_adds", 0) == 0:
            raise NotExercisedError("no product of this implementation can be counted: declare cost=")
        return counted

    # ------------------------------------------------------------------------------------------------ objects
    def method(self, name: str, *args: Any, seed: int = 0, instance: int = 0, **arguments: Any) -> Any:
        """What a method (or attribute) of the object that a factory made gives: one result, or a tuple of several.

        Arguments are handed over as they are written here, by position or by name.
        """
        positional = {str(place): value for place, value in enumerate(args)}
        answer = self.host.call(Call(self.kind.name, self.declaration.name, {**positional, **arguments}, device=self.device,
                                     method=name, seed=seed, instance=instance))
        self._returned(answer)
        return answer.outputs if answer.structure in ("tuple", "iterator") else answer.outputs[0] if answer.outputs else None

    def ask(self, method: str, arguments: Mapping[str, Any], **circumstances: Any) -> Answer:
        """What the host observed of a method of the object, when it did not raise; circumstances: fields of `Call`."""
        answer = self.host.call(Call(self.kind.name, self.declaration.name, dict(arguments), device=self.device, method=method,
                                     **circumstances))
        self._returned(answer)
        return answer

    # ------------------------------------------------------------------------------------------------ refusals
    def refuses(self, *args: Any, **arguments: Any) -> ledger.Decision:
        """Right when the call is refused with any message; a result, of any sort, is wrong."""
        answer = self._call(self._named(args, arguments), (), ())
        refused = answer.refusal is not None and bool(answer.refusal.message.strip() or answer.refusal.not_implemented)
        return ledger.fact(refused, "the call should have been refused with a message", got="a result" if
                           answer.refusal is None else "an exception without a message", expected="an exception with a message")

    def attempt(self, *args: Any, **arguments: Any) -> Answer:
        """What came of a call that may be refused: the answer, refusal and all."""
        return self._call(self._named(args, arguments), (), ())

    def refused(self, *args: Any, **arguments: Any) -> bool:
        """Whether the call is refused, where either is right; nothing is decided."""
        return self._call(self._named(args, arguments), (), ()).refusal is not None

    def refused_by(self, method: str, *args: Any, **arguments: Any) -> bool:
        """Whether a method of the object refuses, where either is right; nothing is decided."""
        positional = {str(place): value for place, value in enumerate(args)}
        return self.host.call(Call(self.kind.name, self.declaration.name, {**positional, **arguments}, device=self.device,
                                   method=method)).refusal is not None

    # ------------------------------------------------------------------------------------------------ underneath
    def answer(self, *, _wrt: tuple[str, ...] = (), _upstream: tuple[torch.Tensor, ...] = (), _count: bool = False,
               **arguments: Any) -> Answer:
        """What the host observed, when the call did not raise; raising ends the example."""
        answer = self._call(arguments, _wrt, _upstream, count=_count)
        self._returned(answer)
        return answer

    def _answered(self, arguments: Mapping[str, Any], upstream: tuple[torch.Tensor, ...] | None = None,
                  wrt: tuple[str, ...] = ()) -> Answer:
        """`answer`, with the formula evaluated while the host works: it is asked for next."""
        def formula() -> None:
            with contextlib.suppress(AssayError):  # then it is raised where the formula's value is asked for
                self._evaluate(arguments, upstream, wrt)

        answer = self._call(arguments, wrt, upstream or (), meanwhile=formula)
        self._returned(answer)
        return answer

    def _returned(self, answer: Answer) -> None:
        """End the example where the call raised."""
        refusal = answer.refusal
        if refusal is None:
            return
        if refusal.not_exercised and self.declaration.builtin:  # a bridge of ours, which proves the path that it stands for
            raise PathNotTakenError(refusal.message)
        if refusal.not_implemented or refusal.not_exercised or self.evaluations.refusal_allowed:
            raise NotSupportedError(refusal.message)
        if refusal.out_of_memory:
            raise HostOutOfMemoryError(f"{refusal.type}: {refusal.message}")
        where = f" at {refusal.where}" if refusal.where else ""
        ledger.fact(False, f"the {refusal.stage} call raised {refusal.type}: {refusal.message}{where}", check="the call returns")
        raise ExampleOverError(refusal.message)

    def _call(self, arguments: Mapping[str, Any], wrt: tuple[str, ...], upstream: tuple[torch.Tensor, ...], *,
              count: bool = False, meanwhile: Meanwhile = nothing) -> Answer:
        under = self.circumstances
        taken = self._taken(arguments)
        layouts = {path: layout for path, layout in under.layouts.items() if path.partition("/")[0] in taken}
        return self.host.call(Call(
            self.kind.name, self.declaration.name, taken, device=self.device,
            layouts=layouts, wrt=wrt, upstream=upstream, upstream_layout=under.upstream_layout, grad_mode=under.grad_mode,
            fill_empty=under.fill_empty, instance=under.instance, moved=under.moved, compiled=under.compiled,
            count=count), meanwhile)

    def _named(self, args: Sequence[Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
        return {**dict(zip(self.kind.arguments, args, strict=False)), **arguments}

    def _taken(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments that the implementation's signature takes; the others must be at the value it stands for."""
        taken = {}
        for name, value in arguments.items():
            if name not in self.kind.options or name in self.declaration.keywords:
                taken[name] = value
                continue
            fixed = self.declaration.conventions.get(name, self.kind.options[name])
            if not (value is fixed or (isinstance(value, (bool, int, float, str)) and value in
                                       (fixed, self.kind.options[name]))):
                raise NotClaimedError(f"{name}={value!r} is not claimed by {self.declaration.name}: its signature lacks {name}")
        return taken

    def _evaluation(self, arguments: Mapping[str, Any], upstream: tuple[torch.Tensor, ...] | None = None,
                    wrt: tuple[str, ...] = ()) -> Evaluation:
        found = self._evaluate(arguments, upstream, wrt)
        if found.left_range:
            ledger.current().out_of_range = "an intermediate result or its bar may leave the range of the declared type"
        return found

    def _evaluate(self, arguments: Mapping[str, Any], upstream: tuple[torch.Tensor, ...] | None,
                  wrt: tuple[str, ...]) -> Evaluation:
        return self.evaluations.get(registry.forms(self.kind.name), {**arguments, **self._agreed(arguments)}, self.dtype,
                                    self.declaration.arithmetic, upstream=upstream, wrt=wrt)

    def _plain(self, arguments: Mapping[str, Any]) -> Sequence[Any]:
        """The formula in the arguments' own types, for shapes alone."""
        known = {name: build(value) if isinstance(value, Recipe) else value for name, value in arguments.items()}
        forward = registry.forms(self.kind.name)[0].forward
        with torch.no_grad():
            out = forward(**known, **self._agreed(arguments))
        return tuple(out) if isinstance(out, (tuple, list)) else (out,)

    def _agreed(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The declared conventions that the formula takes as keywords, and the fixed choices that the signature lacks."""
        if self._conventions is None:
            accepted = _parameters(registry.forms(self.kind.name)[0].forward)
            renamed = getattr(registry.reference(self.kind.name), "CONVENTION_KEYWORDS", {})
            named = {renamed.get(name, name): value for name, value in self.conventions.items() if name not in self.kind.options
                     or name in renamed}
            known = {**named, **self.declaration.fixed}
            self._conventions = {name: value for name, value in known.items() if name in accepted}
        return {name: value for name, value in self._conventions.items() if name not in arguments}

    def _outputs(self, answer: Answer, expected: Sequence[Any]) -> Sequence[Any]:
        if len(answer.outputs) != len(expected):
            ledger.fact(False, f"the call returns {len(answer.outputs)} results, not {len(expected)}", check="results returned",
                        got=answer.structure, expected=", ".join(self.kind.outputs))
            raise ExampleOverError("wrong number of results")
        return answer.outputs

    def hold_form(self, call: Call, answer: Answer) -> None:
        """Record a failure, and end the example, where results are not as many, or not of the shapes, that the formula has."""
        if self.kind.factory or answer.refusal is not None:
            return
        expected = self._plain(call.arguments)
        for name, got, want in zip(self.kind.outputs, self._outputs(answer, expected), expected, strict=True):
            if isinstance(want, torch.Tensor):
                self._shaped(name, got, want)

    def _shaped(self, name: str, got: Any, want: torch.Tensor) -> torch.Tensor:
        if not isinstance(got, torch.Tensor):
            ledger.fact(False, f"{name} is {type(got).__name__}, not a tensor", check=f"{name} is a tensor")
            raise ExampleOverError("no tensor")
        if tuple(got.shape) != tuple(want.shape):
            ledger.fact(False, f"{name} has shape {tuple(got.shape)}, expected {tuple(want.shape)}", check=f"shape of {name}",
                        got=str(tuple(got.shape)), expected=str(tuple(want.shape)))
            raise ExampleOverError("wrong shape")
        return got

    def _measured(self, name: str, got: Any, want: torch.Tensor) -> torch.Tensor:
        got = self._shaped(name, got, want)
        if not isinstance(want, Bounded):
            return got
        measured, laid = Bounded(got.to(torch.float64), want.bar), self._laid()
        measured.said = f"the output{laid}" if laid else ""
        return measured

    def _laid(self) -> str:
        """How inputs lie, where it is not as the example says."""
        layouts = set(self.circumstances.layouts.values()) - {self.example.configuration.layout}
        return "" if not layouts else f" of {layouts.pop()} inputs" if len(layouts) == 1 else " of inputs that lie differently"

    def _measured_gradient(self, name: str, got: torch.Tensor | None, want: Bounded) -> Bounded:
        if got is None:  # no gradient reached the argument: it counts as zero
            got = torch.zeros_like(want.value)
        if tuple(got.shape) != tuple(want.shape):
            ledger.fact(False, f"the gradient of {name} has shape {tuple(got.shape)}, expected {tuple(want.shape)}",
                        check=f"shape of the gradient of {name}")
            raise ExampleOverError("wrong shape")
        measured = Bounded(got.to(torch.float64), want.bar)
        measured.said = f"the gradient of {name}{self._laid()}"
        return measured


@lru_cache
def _parameters(forward: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(forward).parameters)


def _exactly(value: Any) -> Any:
    return Bounded(value.value, torch.zeros_like(value.value)) if isinstance(value, Bounded) else value


def _floating_paths(name: str, value: Any) -> Iterator[str]:
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        yield name
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _floating_paths(f"{name}/{key}", item)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _floating_paths(f"{name}/{index}", item)
