"""Tensors with error bars: (value, bar) pairs that ATen rules carry through any torch code, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import lru_cache
from importlib import import_module
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from assay.errors import HarnessError, NoRuleError
from assay.numbers.arithmetic import EXACT, Format, Model, wider

Rule = Callable[..., Any]
RULES: dict[Any, Rule] = {}  # ATen overload -> rule(overload, *args, **kwargs)

DOUBLE_U = 2.0**-53
DTYPES = {"float32": torch.float32, "tf32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}

# What `==`, `!=`, `<=`, `>=` on measured tensors mean: set by the ledger, called as hook(op, left, right).
comparison_hook: ContextVar[Callable[[str, Any, Any], Any] | None] = ContextVar("comparison_hook", default=None)


class Engine:
    """The model in force, and whether any intermediate may have left the range of its format."""

    __slots__ = ("left_range", "model")

    def __init__(self, model: Model) -> None:
        self.model = model
        self.left_range = False


_ENGINE: ContextVar[Engine | None] = ContextVar("engine", default=None)
_MEASURING = Engine(EXACT)  # arithmetic on measured tensors outside any engine: what properties compute


def current() -> Engine:
    """The engine in force; outside any, exact float64 arithmetic."""
    return _ENGINE.get() or _MEASURING


class Bounded(torch.Tensor):  # type: ignore[misc]
    """A float64 value with an error bar: the exact number lies within `bar` of `value`, element by element."""

    _value: torch.Tensor
    _bar: torch.Tensor | None  # None: exact everywhere
    _is_view: bool
    said: str = ""  # what a message calls it, where that is not plain: "the gradient of k"

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(
        cls, value: torch.Tensor, bar: torch.Tensor | None = None, *, requires_grad: bool = False, is_view: bool = False
    ) -> Bounded:
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            value.shape,
            strides=value.stride(),
            dtype=torch.float64,
            device=value.device,
            requires_grad=requires_grad,
        )
        made._value, made._bar, made._is_view = value, bar, is_view
        return made  # type: ignore[no-any-return]

    @property
    def value(self) -> torch.Tensor:
        """The number itself, float64."""
        return self._value

    @property
    def bar(self) -> torch.Tensor:
        """How far the exact number may lie from the value, float64, same shape."""
        if self._bar is None:
            return torch.zeros_like(self._value)
        return self._bar

    @property
    def is_exact(self) -> bool:
        """Whether every bar is zero."""
        return self._bar is None or not bool(self._bar.any())

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"Bounded(value={self._value}, bar={self.bar})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return dispatch(func, args, kwargs or {}, bounded=True)

    def __eq__(self, other: object) -> Any:
        return _compare("==", torch.Tensor.__eq__, self, other)

    def __ne__(self, other: object) -> Any:
        return _compare("!=", torch.Tensor.__ne__, self, other)

    def __le__(self, other: object) -> Any:
        return _compare("<=", torch.Tensor.__le__, self, other)

    def __ge__(self, other: object) -> Any:
        return _compare(">=", torch.Tensor.__ge__, self, other)

    __hash__ = torch.Tensor.__hash__


def _compare(op: str, plain: Any, left: Bounded, right: object) -> Any:
    if _ENGINE.get() is not None:  # inside a reference: a mask computed from values
        return plain(left, right)
    hook = comparison_hook.get()
    if hook is None:
        raise HarnessError(
            f"comparison={op!r} on a measured tensor needs an open ledger, got none; decide inside a property"
        )
    return hook(op, left, right)


def lift(tensor: torch.Tensor, bar: torch.Tensor | None = None, *, requires_grad: bool = False) -> Bounded:
    """A tensor as a bounded one: exact, or with the bar given."""
    if isinstance(tensor, Bounded):
        return Bounded(tensor._value, tensor._bar if bar is None else bar, requires_grad=requires_grad)
    with _disable_current_modes():
        value = tensor.detach().to(torch.float64)
        known = None if bar is None else bar.to(torch.float64).expand(value.shape)
    return Bounded(value, known, requires_grad=requires_grad)


class _EngineMode(TorchDispatchMode):  # type: ignore[misc]
    """Sees every operation, also those on plain tensors (positions, frequencies, masks)."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled in here; the guard that torch would wrap around each operation costs 8 us

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return dispatch(func, args, kwargs or {}, bounded=Bounded in types)


@contextmanager
def modelled(model: Model) -> Iterator[Engine]:
    """A rounding model in force for `precision`, without bars: for runs that round at random instead."""
    entered = Engine(model)
    token = _ENGINE.set(entered)
    try:
        yield entered
    finally:
        _ENGINE.reset(token)


@contextmanager
def engine(model: Model) -> Iterator[Engine]:
    """Run torch code under a rounding model; floating results come out bounded."""
    with modelled(model) as entered, _EngineMode():
        yield entered


PRECISIONS: dict[str, Callable[[Model], Model]] = {
    "angles": lambda m: replace(m, internal=m.angles, accumulate=wider(m.accumulate, m.angles)),
    "tables": lambda m: replace(
        m, internal=m.internal if m.internal.u > m.tables.u else m.tables, accumulate=wider(m.accumulate, m.tables)
    ),
    "statistics": lambda m: replace(m, internal=wider(m.accumulate, m.internal)),
    "spilled": lambda m: replace(
        m, accumulate=m.internal if m.internal.u > m.accumulate.u else m.accumulate, additions=1
    ),
}


@contextmanager
def precision(name: str) -> Iterator[None]:
    """Part of a formula that runs in a format of its own; no effect on plain tensors outside an engine.

    angles: positions, frequencies and their products, in the declared format of angles.
    tables: cosines and sines as stored: in the declared format of tables, or as any intermediate result may be.
    statistics: row maxima, sums, log-sum-exp: kept in the accumulation format.
    spilled: sums whose partial results are stored in between, in the internal format.
    """
    entered = None if torch.compiler.is_compiling() else _ENGINE.get()  # no compiler traces a context variable
    if entered is None:
        yield
        return
    before = entered.model
    entered.model = PRECISIONS[name](before)
    try:
        yield
    finally:
        entered.model = before


def freely_chosen(tensor: torch.Tensor) -> torch.Tensor:
    """A number that the formula's result does not depend on (a softmax's shift): its value, cut from gradient and
    bar."""
    if isinstance(tensor, Bounded):
        return Bounded(tensor._value, None)
    return tensor.detach()


def stored(tensor: torch.Tensor) -> torch.Tensor:
    """A result that lies in memory between two kernels: rounded to the stored type, however finely it was computed, and
    so is the gradient that comes back to it."""
    model = current().model
    if isinstance(tensor, Bounded) and model.store.u > model.internal.u:
        return _Stored.apply(tensor)
    return tensor


class _Stored(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, tensor: Bounded) -> Bounded:
        return _as_stored(tensor)

    @staticmethod
    def backward(ctx: Any, upstream: Bounded) -> Bounded:
        return _as_stored(upstream)


def _as_stored(tensor: Bounded) -> Bounded:
    store = current().model.store
    with _disable_current_modes():
        return rounded(tensor._value, tensor._bar, lambda: True, store)


def row_maximum(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    """The shift of a softmax, as plain code differentiates it: freely chosen, yet with a gradient.

    The gradient that reaches the shift sums to zero exactly, but in rounded arithmetic its error is real, and lands
    on whichever
    entries the implementation took for the largest: any whose bar reaches the maximum.
    """
    if isinstance(tensor, Bounded):
        return _RowMaximum.apply(tensor, dim)
    return tensor.amax(dim, keepdim=True)


class _RowMaximum(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, tensor: Bounded, dim: int) -> Bounded:
        ctx.tensor = tensor.detach()
        ctx.dim = dim
        return Bounded(tensor.amax(dim, keepdim=True)._value, None)

    @staticmethod
    def backward(ctx: Any, upstream: Bounded) -> tuple[Bounded, None]:
        with torch._C._DisableTorchDispatch():
            return _landing(ctx.tensor, ctx.dim, upstream), None


def _landing(tensor: Bounded, dim: int, upstream: Bounded) -> Bounded:
    error = upstream._value.abs() + upstream.bar
    value, bar = tensor._value, tensor.bar
    reachable = value + bar >= (value - bar).amax(dim, keepdim=True)
    return Bounded(torch.zeros_like(value), torch.where(reachable, error, 0.0))


def rule(*overloads: Any) -> Callable[[Rule], Rule]:
    """Register an error rule for ATen overloads; an overload has one rule."""

    def register(function: Rule) -> Rule:
        for overload in overloads:
            if overload in RULES:
                raise HarnessError(f"rule={overload} is registered twice; keep one")
            RULES[overload] = function
        return function

    return register


def dispatch(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, bounded: bool) -> Any:
    """Apply the rule of an operation; operations on integers and masks run as they are."""
    if not RULES:  # the rules import this module
        import_module("assay.numbers.rules")
    found = RULES.get(func)
    if not bounded and (found is None or not getattr(found, "makes", False)):
        out = func(*args, **kwargs)
        if not _floating(out):
            return out
    if found is None:
        decomposed = func.decompose(*args, **kwargs)  # operations that torch itself writes out in others
        if decomposed is not NotImplemented:
            return decomposed
        raise NoRuleError(f"operation={func} has no error rule; add one in harness/numbers/rules_*.py")
    return found(func, *args, **kwargs)


def _floating(out: Any) -> bool:
    if isinstance(out, torch.Tensor):
        return bool(out.is_floating_point())
    return isinstance(out, (tuple, list)) and any(_floating(part) for part in out)


# --- what rules are written with -------------------------------------------------------------------------------------


def representable(value: torch.Tensor, fmt: Format) -> torch.Tensor | bool:
    """Which values the format holds exactly."""
    if fmt.name == "float64":
        return True
    return value.to(DTYPES[fmt.name]).to(torch.float64) == value


def parts(operand: Any) -> tuple[Any, Any]:
    """Value and bar of an operand (bar None: exact). Plain numbers and tensors round to the internal format."""
    if isinstance(operand, Bounded):
        return operand._value, operand._bar
    fmt = current().model.internal
    if isinstance(operand, torch.Tensor):
        value = operand.to(torch.float64)
        held = representable(value, fmt)
        if held is True or bool(held.all()):  # type: ignore[union-attr]
            return value, None
        return value, torch.where(held, 0.0, value.abs() * fmt.u + fmt.eta)
    return _number(float(operand), fmt)


@lru_cache(maxsize=1024)
def _number(number: float, fmt: Format) -> tuple[float, float | None]:
    """A plain number as the format holds it, and what that may be off."""
    if fmt.name == "float64" or bool(representable(torch.tensor(number, dtype=torch.float64), fmt)):
        return number, None
    return number, abs(number) * fmt.u + fmt.eta


def plus(left: Any, right: Any) -> Any:
    """The sum of two bars, either of which may be None."""
    if left is None:
        return right
    return left if right is None else left + right


def finish(
    value: torch.Tensor, bar: torch.Tensor | None, largest: float | None = None, size: torch.Tensor | None = None
) -> Bounded:
    """Wrap a result; note when it may leave the range. Infinite and NaN values carry no bar: they are what they are.

    size: the value's magnitude, where it is known already.
    """
    if value.numel() == 0:
        return Bounded(value, None)
    entered = current()
    limit = entered.model.internal.largest if largest is None else largest
    size = value.abs() if size is None else size
    reach = size if bar is None else size + bar
    if not float(reach.max()) <= limit:
        finite = value.isfinite()
        if bar is not None:
            bar = torch.where(finite, bar.nan_to_num(nan=torch.inf, posinf=torch.inf), 0.0)
            reach = size + bar
        entered.left_range |= bool((finite & ~(reach <= limit)).any())
    if bar is not None and bar.shape != value.shape:
        bar = bar.expand(value.shape)
    return Bounded(value, bar)


def rounding(reach: torch.Tensor, fmt: Format) -> torch.Tensor:
    """Error of rounding a number of at most this magnitude: relative, plus underflow; what must be zero stays zero.

    Our own float64 evaluation errs alike, by at most 4 units of 2**-53 (library functions), which is added here.
    """
    return torch.add(reach * (fmt.u + 4.0 * DOUBLE_U), reach.sign(), alpha=fmt.underflow)


def rounded(
    value: torch.Tensor, bar: Any, exact: Callable[[], Any] | None = None, fmt: Format | None = None
) -> Bounded:
    """Round an elementwise result to the internal format.

    exact: tells (lazily) where float64 computed it without error from exact inputs; what the format holds then does not
    round. None: rounds everywhere.
    """
    fmt = fmt or current().model.internal
    size = value.abs()
    if bar is None:
        unrounded = None if exact is None else representable(value, fmt) & exact()
        if unrounded is True or (isinstance(unrounded, torch.Tensor) and bool(unrounded.all())):
            return finish(value, None, size=size)
        total = rounding(size, fmt)
        kept = unrounded is None or unrounded is False
        return finish(value, total if kept else total.masked_fill(unrounded, 0.0), size=size)
    if not isinstance(bar, torch.Tensor):
        bar = torch.full_like(value, bar)
    total = bar + rounding(size + bar, fmt)
    if exact is not None:
        sure = bar == 0
        if bool(sure.any()):
            total = total.masked_fill(sure & representable(value, fmt) & exact(), 0.0)
    return finish(value, total, size=size)


def values(operand: Any) -> Any:
    """The value of a bounded operand, anything else as it is (lists too)."""
    if isinstance(operand, Bounded):
        return operand._value
    if isinstance(operand, (list, tuple)):
        return type(operand)(values(part) for part in operand)
    return operand
