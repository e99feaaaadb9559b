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
from assay.hosting import Answer, Call, Handle, Recipe, bytes_of
from assay.properties import Property
from assay.run import standalone
from assay.run.arguments import bind
from assay.run.consistent import Heard, Results, formula, hear, holds
from assay.run.hosts import LocalHost, RemoteHost
from assay.run.judge import Judge, Trial, Tried
from assay.run.layouts import place
from assay.run.plan import CaseSpec
from assay.run.session import Session, Target
from assay.run.telling import subject_of
from assay.subject import Subject

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
    subject, case = subject_of(trial, tried), trial.case.id
    exchanges: list[tuple[Call, Answer | None]] = [*tried.exchanges, *((call, None) for call in tried.unanswered)]
    _no_objects(exchanges, case)
    heard = [None if answer is None or answer.refusal is not None else hear(subject, call, answer) for call, answer in exchanges]
    first_wrong = next((place for place, one in enumerate(heard) if one is not None and one.wrong), None)
    kept = exchanges if first_wrong is None else exchanges[: first_wrong + 1]
    _as_they_are(kept, case)
    last = kept[-1][1]
    relation = first_wrong is None and last is not None and last.refusal is None and _of_results(tried, case)
    calls = [_call(call, answer, declaration, _right(subject, call, told, relation), relation)
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
    codes = "Exits with 1 when the failure shows, with 0 when it does not, with 2 where the implementation cannot be loaded."
    return f'"""{safe}\nNeeds torch and {needs}. {codes}\n"""\n'


def _refused(case: str, why: str) -> UsageError:
    return UsageError(f"script= cannot be written for {case}: {why}; use `assay replay` without --script")


def _no_objects(exchanges: Sequence[tuple[Call, Answer | None]], case: str) -> None:
    if not exchanges:
        raise _refused(case, "the example makes no call")
    if any(call.method or holds(call.arguments, (Handle, Recipe)) for call, _ in exchanges):
        raise _refused(case, "its calls take objects, not plain tensors")


def _as_they_are(exchanges: Sequence[tuple[Call, Answer | None]], case: str) -> None:
    """The script calls the function or a copy of it, neither compiled nor counted nor disturbed."""
    if any(call.compiled or call.count or call.perturb for call, _ in exchanges):
        raise _refused(case, "it compiles, counts or disturbs what it calls")


def _of_results(tried: Tried, case: str) -> bool:
    """Whether a failure with right values alone is a relation of results; what the harness saw beside them a script cannot show."""
    failure = tried.decision.failure if tried.decision is not None else None
    if failure is not None and failure.bound:
        return True
    answers = [answer for _, answer in tried.exchanges]
    if any(answer.mutated for answer in answers):
        return False  # the script sees that by itself
    if any(answer.state or answer.guards_broken or any(fact is not None and fact.shares_memory_with for fact in answer.facts)
           for answer in answers):
        raise _refused(case, "what failed is not in the results")
    return True


# ------------------------------------------------------------------------------------------------ as Python
def _call(call: Call, answer: Answer | None, declaration: Declaration, right: tuple[Results, Results] | None,
          relation: bool) -> str:
    """One call as a dict literal."""
    positional, keywords = bind(declaration, call.arguments)
    names = [name for name in declaration.positional if name in call.arguments]
    lines = ["    {\n"]
    lines += [f"        {text!r}: {value},\n" for text, value in (
        ("copy", repr(f"{call.instance} {call.moved}" if call.instance or call.moved else "")),
        ("grad_mode", call.grad_mode), ("fill_empty", call.fill_empty),
        ("keywords", "{" + ", ".join(f"{name!r}: {_value(value, call, name, name)}" for name, value in keywords.items()) + "}"),
        ("names", "{" + ", ".join(f"{name!r}: {_value(value, call, name, name)}"
                                  for name, value in zip(names, positional, strict=True)) + "}"),
        ("upstream", "[" + ", ".join(_tensor(up, call.upstream_layout, False, call.device) for up in call.upstream) + "]"),
        ("right", _results(right)),
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
    flat = value.detach().cpu().reshape(-1)
    if flat.numel() <= LITERAL:
        finite = not flat.is_floating_point() or bool(flat.isfinite().all())
        return str(flat.tolist()) if finite else f"[{', '.join(_number(one) for one in flat.tolist())}]"
    return repr(base64.b64encode(bytes_of(flat).numpy().tobytes()).decode())


def _number(value: float) -> str:
    return repr(value) if math.isfinite(value) else f"float({str(value)!r})"


def _right(subject: Subject, call: Call, told: Heard | None, relation: bool) -> tuple[Results, Results] | None:
    """What is right of a call, also of one that was not answered."""
    if told is not None:
        return told.right, told.bars
    return None if relation else formula(subject, call)


def _results(right: tuple[Results, Results] | None) -> str:
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
