"""What a failed case says: one sentence, the smallest input, the numbers, one line to reproduce it."""
from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from assay.contract.kinds import kind as kind_named
from assay.contract.kinds import quoted
from assay.hosting import Recipe
from assay.ledger import Failure

if TYPE_CHECKING:
    from assay.run.judge import Trial, Tried
    from assay.run.telling import Telling

SHOWN_ELEMENTS = 64  # tensors up to this size are printed whole


def failure_fields(trial: Trial, failed: Tried, told: Telling, notes: Sequence[str] = ()) -> dict[str, Any]:
    """The fields of a failed result: status, message, counterexample, error_over_bound, reproduce."""
    counterexample = _counterexample(failed) | told.fields()
    if failed.ended is not None:
        status, what = failed.ended.status, str(failed.ended)
        ratio = 0.0
    else:
        decision = failed.decision
        assert decision is not None and decision.failure is not None  # a wrong example has a wrong decision
        status, what = "fail", _difference(decision.failure, decision.error_over_bound)
        ratio = decision.error_over_bound
        counterexample |= _numbers(decision.check, decision.failure, ratio)
    sentences = (f"{trial.prop.sentence} Not so at {_place(failed, trial)}: {what}.", *told.sentences(),
                 *_own_defaults(trial, failed))
    return {
        "status": status, "message": " ".join(sentences), "counterexample": counterexample, "error_over_bound": ratio,
        "notes": list(notes),
        "reproduce": reproduce(trial, failed),
        "stderr_tail": failed.ended.stderr_tail if failed.ended is not None else "",
    }


def _own_defaults(trial: Trial, failed: Tried) -> Iterator[str]:
    """Options that a call left out and that the signature then takes for something else than the contract."""
    options = kind_named(trial.case.kind).options
    called = [call.arguments for call, answer in failed.exchanges if not call.method and answer.refusal is None]
    for name, default in trial.declaration.defaults.items():
        if any(name not in arguments for arguments in called):
            yield f"Left out, {name} is {default} by this signature, and {quoted(options[name])} by the contract."


def _numbers(check: str, failure: Failure, ratio: float) -> dict[str, Any]:
    """What the failed comparison saw; a fact without numbers has none."""
    told = {"got": failure.got, "expected": failure.expected, "bound": failure.bound}
    found: dict[str, Any] = {"check": check, **{name: text for name, text in told.items() if text}}
    return found | ({"index": list(failure.index), "worst": ratio} if failure.bound else {})


def _difference(failure: Failure, ratio: float) -> str:
    if not failure.bound:
        seen = ", ".join(f"{name} {text}" for name, text in (("got", failure.got), ("expected", failure.expected)) if text)
        return failure.text + (f" ({seen})" if seen else "")
    of = f" of {failure.of}" if failure.of else ""
    at = f"element {list(failure.index)}{of} is" if failure.index else f"{failure.of or 'the result'} is"
    times = f", {ratio:.3g} times the bound" if math.isfinite(ratio) and ratio > 0 else ""
    where = f"; {failure.pattern}" if failure.pattern else ""
    return (f"{at} {failure.got}, expected {failure.expected} ± {failure.bound}{times} "
            f"({failure.wrong_elements} of {failure.elements} elements differ{where})")


def _place(failed: Tried, trial: Trial) -> str:
    configuration = failed.configuration
    dims = " ".join(f"{letter}={size}" for letter, size in configuration.dims.items())
    flags = " ".join(f"{name}={_plain(value)}" for name, value in configuration.flags.items() if value not in (None, False, "none"))
    layout = "" if configuration.layout == "contiguous" else f" {configuration.layout}"
    return " ".join(f"{dims} {flags} {configuration.family}{layout} {trial.case.dtype}".split())


def _plain(value: Any) -> str:
    return str(value).replace(" ", "")


def _counterexample(failed: Tried) -> dict[str, Any]:
    configuration = failed.configuration
    return {
        "dims": dict(configuration.dims), "flags": dict(configuration.flags), "seed": configuration.seed,
        "family": configuration.family, "layout": configuration.layout,
        **({"values": dict(configuration.values)} if configuration.values else {}),
        "arguments": {name: describe(value) for name, value in failed.arguments.items()},
    }


def describe(value: Any) -> str:
    """A short text of an argument: small tensors whole, large ones by shape, type and range."""
    if isinstance(value, torch.Tensor):
        head = f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
        if value.numel() <= SHOWN_ELEMENTS:
            return f"{head} {json.dumps(_rounded(value.tolist()))}"
        if value.dtype == torch.bool:
            return f"{head} {int(value.sum())} of {value.numel()} True"
        return f"{head} from {float(value.min()):.4g} to {float(value.max()):.4g}"
    if isinstance(value, Recipe):
        return f"{value.name}({', '.join(value.parameters)})"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {describe(item)}" for name, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(describe(item) for item in value) + "]"
    return repr(value)


def _rounded(value: Any) -> Any:
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else str(value)
    return value


def reproduce(trial: Trial, failed: Tried) -> str:
    """One command that runs this very example again."""
    origin = trial.declaration.origin
    by_name = trial.declaration.builtin or origin.startswith("entry point")
    target = trial.declaration.name if by_name else origin
    case = trial.case
    text = json.dumps(failed.configuration.to_json(), separators=(",", ":"), sort_keys=True)
    parts = ["assay", "replay", target, "--only", case.id, "--example", text]
    return shlex.join(parts)
