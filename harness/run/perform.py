"""One call of an implementation, and everything that can be observed of it: the same code in every kind of host."""
from __future__ import annotations

import contextlib
import functools
import re
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from time import perf_counter  # bound now: an implementation may replace `time.perf_counter` later
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from assay.errors import NotExercisedError
from assay.hosting import Answer, Call, Refusal
from assay.numbers.arithmetic import FORMATS, Arithmetic, Model
from assay.numbers.perturbing import Perturbing
from assay.run.arguments import Arguments, Kept
from assay.run.conduct import Conduct
from assay.run.counting import Counter, declared
from assay.run.outputs import Earlier, Ship, facts_of

MESSAGE_LIMIT = 2000
_GRAD_BREACH = "it changed whether gradients are recorded, which was {} before the call"
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b.?")
_NO_MEMORY = re.compile(r"can't allocate memory|not enough memory|out of memory|Cannot allocate memory", re.IGNORECASE)
_NOT_IMPLEMENTED = re.compile(r"not implemented for|not currently implemented|Could not run .* with arguments from",
                              re.DOTALL)

Prepare = Callable[[Arguments], Callable[[], Any]]


class _FillEmpty(TorchDispatchMode):
    """Fills what `torch.empty` and its kin give with NaN (integers: a byte pattern), so that unwritten output shows."""

    _MAKERS = frozenset({
        "aten::empty", "aten::empty_like", "aten::new_empty", "aten::empty_strided", "aten::new_empty_strided"})

    supports_higher_order_operators = True  # flex_attention is one

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Whatever a compiler makes for itself is none of ours."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        schema = getattr(func, "_schema", None)  # a higher-order operator has none
        if schema is not None and schema.name in self._MAKERS and isinstance(out, torch.Tensor):
            filler = torch.nan if out.is_floating_point() or out.is_complex() else out.dtype == torch.bool or 0x5A
            out.fill_(filler)
        return out


def _perturbing(call: Call) -> contextlib.AbstractContextManager[Any]:
    """Every operation's result moved by about a rounding of its own type, where the call asks for it."""
    if not call.perturb:
        return contextlib.nullcontext()
    return Perturbing(_own_model, torch.Generator().manual_seed(call.perturb), unit=2.0)


@functools.cache
def _own_model(dtype: torch.dtype) -> Model | None:
    name = str(dtype).removeprefix("torch.")
    return Arithmetic().model(name) if name in FORMATS else None


@dataclass
class _Observed:
    """What a call has come to so far; `stage` says where an exception belongs."""

    stage: str = "forward"
    answer: Answer = field(default_factory=Answer)
    started: float = 0.0
    ship: Ship | None = None


def perform(call: Call, prepare: Prepare, *, kept: Kept | None = None, conduct: Conduct | None = None,
            own_files: tuple[str, ...] = (), interruptible: bool = False,
            cost: Callable[[Arguments], Any] | None = None, earlier: Earlier | None = None) -> Answer:
    """Run one call and report what came out and what was observed; an exception becomes a `Refusal`.

    prepare: turns the arguments into the call itself; no foreign code runs before that is called. conduct: the state
    as it was before; None takes it now. own_files: source files that count as the implementation's own in a refusal's
    `where`. interruptible: let KeyboardInterrupt through: in the user's own process it is the user's Ctrl-C. cost: what
    the implementation declares of its operations and memory, for calls that ask for counts. earlier: the results of the
    call before, if it is to be seen that this one leaves them alone.
    """
    arguments = Arguments(call, kept or Kept())
    state = conduct or Conduct()
    invoke = prepare(arguments)
    observed, gradients_on = _Observed(), torch.is_grad_enabled()
    # Set by hand, for a context manager would undo, unseen, what the implementation does to the mode.
    torch.set_grad_enabled(call.grad_mode)
    counter = Counter(arguments.placed) if call.count else None
    try:
        with counter or contextlib.nullcontext(), _perturbing(call):
            _run(call, invoke, arguments, kept or Kept(), observed)
        if counter is not None:
            told = declared(cost(arguments)) if cost is not None else {}
            observed.answer = replace(observed.answer, counts={**counter.counts, **told})
    except BaseException as error:  # the boundary to foreign code: it may raise SystemExit and worse
        if interruptible and isinstance(error, KeyboardInterrupt):
            torch.set_grad_enabled(gradients_on)
            raise
        refused = refusal(error, own_files, observed.stage)
        observed.answer = replace(observed.answer, refusal=refused, seconds=perf_counter() - observed.started)
    switched = (_GRAD_BREACH.format(call.grad_mode),) if torch.is_grad_enabled() != call.grad_mode else ()
    torch.set_grad_enabled(gradients_on)
    breaches = switched + state.breaches()
    mutated, broken = arguments.inspect()
    if earlier is not None:
        mutated += earlier.follow(observed.ship)
    return replace(observed.answer, mutated=mutated, guards_broken=broken, state=breaches)


def _run(call: Call, invoke: Callable[[], Any], arguments: Arguments, kept: Kept, observed: _Observed) -> None:
    """Forward, gradients, and shipping: every step that may run the implementation's code."""
    observed.started = perf_counter()
    with _FillEmpty() if call.fill_empty else contextlib.nullcontext():
        result = invoke()
        _synchronize(call.device)
        seconds = perf_counter() - observed.started
    observed.ship = ship = Ship(result, call.keep, kept, arguments.placed)
    observed.answer = Answer(outputs=ship.outputs, structure=ship.structure, facts=ship.facts, seconds=seconds)
    if not (arguments.wrt or call.wrt) or not call.upstream:
        return
    observed.stage, started = "backward", perf_counter()
    gradients = _gradients(call, ship.tensors, arguments)
    _synchronize(call.device)
    observed.answer = replace(
        observed.answer, seconds=seconds + perf_counter() - started,
        gradients={path: None if g is None else g.detach().to("cpu", copy=True).contiguous()
                   for path, g in gradients.items()},
        gradient_facts={path: facts_of(g, arguments.placed) for path, g in gradients.items() if g is not None})


def _synchronize(device: str) -> None:
    """Wait for the accelerator, so that its errors arise here and not in a later call."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def _gradients(call: Call, outputs: list[torch.Tensor], arguments: Arguments) -> Mapping[str, torch.Tensor | None]:
    """Gradients by path; none at all where an output has not the shape of its upstream (wrong before any gradient)."""
    floating = [out for out in outputs if out.is_floating_point()]
    pairs = list(zip(floating, arguments.upstream, strict=False))
    if len(floating) < len(arguments.upstream) or any(out.shape != up.shape for out, up in pairs):
        return {}
    pairs = [(out, up.to(out.dtype)) for out, up in pairs if out.requires_grad]
    wrt = arguments.wrt
    if not pairs or not wrt:
        return dict.fromkeys(wrt)
    with _FillEmpty() if call.fill_empty else contextlib.nullcontext():
        found = torch.autograd.grad(
            [out for out, _ in pairs], list(wrt.values()), [up for _, up in pairs], allow_unused=True)
    return dict(zip(wrt, found, strict=True))


def refusal(error: BaseException, own_files: tuple[str, ...] = (), stage: str = "forward") -> Refusal:
    """What was raised, short and printable."""
    message = clean(_text(error))
    torch_said = isinstance(error, RuntimeError) and _NOT_IMPLEMENTED.search(message) is not None
    return Refusal(
        type=clean(type(error).__name__)[:100], message=message,
        not_implemented=isinstance(error, NotImplementedError) or torch_said,
        out_of_memory=isinstance(error, (MemoryError, torch.OutOfMemoryError))
        or (isinstance(error, (RuntimeError, OSError)) and _NO_MEMORY.search(message) is not None),
        where=_where(error, own_files), stage=stage, not_exercised=isinstance(error, NotExercisedError))


def _text(error: BaseException) -> str:
    """The message, without building a long one where the exception holds a string."""
    if type(error).__str__ is BaseException.__str__ and len(error.args) == 1 and type(error.args[0]) is str:
        return error.args[0][:8 * MESSAGE_LIMIT]
    try:
        return str(error)[:8 * MESSAGE_LIMIT]
    except BaseException as second:  # noqa: BLE001 -- an exception's own __str__ is foreign code as well
        return f"(its message could not be read: {type(second).__name__})"


def clean(text: str, limit: int = MESSAGE_LIMIT) -> str:
    """Without escape sequences and control characters (line breaks stay), cut at the limit."""
    text = _ESCAPES.sub("", text)
    text = "".join(c if c.isprintable() or c == "\n" else " " for c in text[:limit + 1])
    return text if len(text) <= limit else text[:limit - 1] + "…"


def _where(error: BaseException, own_files: tuple[str, ...]) -> str:
    """file:line of the innermost frame in the implementation's own files; else of the innermost one outside torch."""
    frames = list(_frames(error))
    own = [place for place in frames if place[0] in own_files]
    foreign = [place for place in frames if place[1].partition(".")[0] not in ("torch", "assay")]
    chosen = (own or foreign)[-1:]
    return f"{chosen[0][0]}:{chosen[0][2]}" if chosen else ""


def _frames(error: BaseException) -> Iterator[tuple[str, str, int]]:
    for frame, line in traceback.walk_tb(error.__traceback__):
        yield frame.f_code.co_filename, str(frame.f_globals.get("__name__", "")), line
