"""A counterexample as a script of torch alone: the calls of one example written out, with what is right and the bound."""
from __future__ import annotations

import base64
import inspect
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from assay.cases import Configuration
from assay.contract.declaration import Declaration
from assay.errors import UsageError
from assay.hosting import Answer, Call, Handle, Recipe
from assay.properties import Property
from assay.run import standalone
from assay.run.arguments import bind
from assay.run.consistent import Heard, Results, formula, hear
from assay.run.hosts import LocalHost, RemoteHost
from assay.run.judge import Judge, Trial, Tried
from assay.run.layouts import place
from assay.run.plan import CaseSpec
from assay.run.session import Session, Target
from assay.run.telling import subject_of

LITERAL = 64  # elements written out as numbers; more as base64 of their bytes


def script(session: Session, target: Target, case: CaseSpec, prop: Property, configuration: Configuration) -> str:
    """The text of the script. UsageError where the example is no call of a function with plain arguments."""
    declaration = next(made for made in target.declarations if (made.kind, made.name) == (case.kind, case.implementation))
    host = RemoteHost(session.address or "", target.name, target.kind, timeout=session.request.settings.timeout) \
        if target.isolated else LocalHost(list(target.declarations))
    try:
        trial = Trial(Judge(session.request.settings), case, prop, declaration, host)
        return _written(trial, trial.run(configuration), declaration)
    finally:
        host.close()


def _written(trial: Trial, tried: Tried, declaration: Declaration) -> str:
    if tried.outcome != "wrong":
        raise UsageError(f"script= needs an example that fails; this one of {trial.case.id} is {tried.outcome} now")
    exchanges: list[tuple[Call, Answer | None]] = [*tried.exchanges, *((call, None) for call in tried.unanswered)]
    _plain_calls(exchanges, trial.case.id)
    subject = subject_of(trial, tried)
    heard = [None if answer is None else hear(subject, call, answer) for call, answer in exchanges]
    first_wrong = next((place for place, one in enumerate(heard) if one is not None and one.wrong), None)
    kept = exchanges if first_wrong is None else exchanges[: first_wrong + 1]
    relation = first_wrong is None and tried.ended is None
    calls = [_call(call, answer, declaration, told, formula(subject, call), relation)
             for (call, answer), told in zip(kept, heard, strict=False)]
    source = inspect.getsource(standalone).partition('"""')[2].partition('"""')[2].lstrip()
    origin = "built in" if declaration.builtin else _by_file(declaration.origin)
    return (f"{_docstring(trial, tried)}{source}\n\nCALLS = [\n{''.join(calls)}]\n\n"
            f"sys.exit(main(load({origin!r}, {declaration.kind!r}, {declaration.name!r}), CALLS, relation={relation}))\n")


def _by_file(origin: str) -> str:
    if origin == "this process" or origin.startswith("entry point"):
        raise UsageError(f"script= needs an implementation in a file or module, got one from {origin}; name its file")
    return origin


def _docstring(trial: Trial, tried: Tried) -> str:
    text = f"{trial.case.id}\n\n{trial.prop.sentence}\n{tried.configuration.key()}\n"
    needs = "assay for the built-in implementation" if trial.declaration.builtin else "the implementation's own file"
    safe = text.replace("\\", "/").replace('"""', "'''")
    return f'"""{safe}\nNeeds torch and {needs}. Exits with 1 when the failure shows, with 0 when it does not.\n"""\n'


def _plain_calls(exchanges: Sequence[tuple[Call, Answer | None]], case: str) -> None:
    if not exchanges:
        raise UsageError(f"script= cannot be written for {case}: the example makes no call")
    for call, _ in exchanges:
        if call.method or _holds(call.arguments, (Handle, Recipe)):
            raise UsageError(f"script= cannot be written for {case}: its calls take objects, not plain tensors; "
                             "use `assay replay` without --script")


def _holds(value: Any, sorts: tuple[type, ...]) -> bool:
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
    return isinstance(value, sorts) or any(_holds(item, sorts) for item in items)


# ------------------------------------------------------------------------------------------------ as Python
def _call(call: Call, answer: Answer | None, declaration: Declaration, told: Heard | None,
          right: tuple[Results, Results] | None, relation: bool) -> str:
    """One call as a dict literal."""
    positional, keywords = bind(declaration, call.arguments)
    names = [name for name in declaration.positional if name in call.arguments]
    lines = ["    {\n"]
    lines += [f"        {text!r}: {value},\n" for text, value in (
        ("grad_mode", call.grad_mode), ("fill_empty", call.fill_empty),
        ("keywords", "{" + ", ".join(f"{name!r}: {_value(value, call, name, name)}" for name, value in keywords.items()) + "}"),
        ("names", "{" + ", ".join(f"{name!r}: {_value(value, call, name, name)}"
                                  for name, value in zip(names, positional, strict=True)) + "}"),
        ("upstream", "[" + ", ".join(_tensor(up, call.upstream_layout, False, call.device) for up in call.upstream) + "]"),
        ("right", _right(right if not relation or told is not None else None)),
        ("got", _got(answer) if relation else "{}"))]
    return "".join(lines) + "    },\n"


def _value(value: Any, call: Call, path: str, name: str) -> str:
    """An argument as Python text; tensors in the layout that the call asks for."""
    if isinstance(value, torch.Tensor):
        asked = any(path == one or path.startswith(one + "/") for one in call.wrt) and value.is_floating_point()
        return _tensor(value, call.layouts.get(path, call.layouts.get(name, "contiguous")), asked, call.device)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key!r}: {_value(item, call, f'{path}/{key}', name)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        inside = "".join(f"{_value(item, call, f'{path}/{index}', name)}, " for index, item in enumerate(value))
        return f"[{inside.removesuffix(', ')}]" if isinstance(value, list) else f"({inside})"
    if isinstance(value, float) and not math.isfinite(value):
        return f"float({str(value)!r})"
    return repr(value)


def _tensor(value: torch.Tensor, layout: str = "contiguous", grad: bool = False, device: str = "cpu") -> str:
    parts = [repr(str(value.dtype).removeprefix("torch.")), str(list(value.shape)), _elements(value)]
    if layout != "contiguous":
        laid = place(value, layout).tensor
        if not laid.is_contiguous() or laid.storage_offset():
            parts += [f"strides={list(laid.stride())}", f"offset={laid.storage_offset()}"]
    parts += ["grad=True"] if grad else []
    parts += [f"device={device!r}"] if device != "cpu" else []
    return f"tensor({', '.join(parts)})"


def _elements(value: torch.Tensor) -> str:
    flat = value.detach().cpu().contiguous().reshape(-1)
    if flat.numel() <= LITERAL:
        finite = not flat.is_floating_point() or bool(flat.isfinite().all())
        return str(flat.tolist()) if finite else f"[{', '.join(_number(one) for one in flat.tolist())}]"
    return repr(base64.b64encode(flat.view(torch.uint8).numpy().tobytes()).decode())


def _number(value: float) -> str:
    return repr(value) if math.isfinite(value) else f"float({str(value)!r})"


def _right(right: tuple[Results, Results] | None) -> str:
    if right is None:
        return "{}"
    values, bars = right
    return "{" + ", ".join(f"{name!r}: ({_tensor(values[name])}, {_tensor(bars[name])})" for name in values) + "}"


def _got(answer: Answer | None) -> str:
    outputs = () if answer is None else answer.outputs
    return "{" + ", ".join(f"'{n}': {_tensor(out)}" for n, out in enumerate(outputs) if isinstance(out, torch.Tensor)) + "}"


# ------------------------------------------------------------------------------------------------ to a file
def write(text: str, path: Path) -> None:
    """Into a new file; one that is there is only replaced where it is such a script."""
    if path.exists() and (not path.is_file() or "sys.exit(main(load(" not in path.read_text(encoding="utf-8", errors="replace")):
        raise UsageError(f"script={path} is there already and is no such script; name a new file")
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"script={path} cannot be written: {error.strerror}; name a file in a folder that is there") from None
