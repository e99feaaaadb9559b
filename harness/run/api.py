"""From Python: `assay.check`, and tests for plain pytest: `assay.conformance`, `@assay.parametrize`.

Live objects run in this process: their crash is its crash. Isolation needs something that another process can load, a file
(`"kernels.py:attention"`) or an import path (`"package.module:attention"`).
"""
from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from os import PathLike, fspath
from typing import Any

from assay.contract.declaration import Declaration
from assay.contract.loading import load
from assay.errors import UsageError
from assay.report.jsonl import Report
from assay.run.session import Request
from assay.run.units import Units

Implementation = str | PathLike[str] | Declaration | Callable[..., Any]


def check(
    target: Implementation | Sequence[Implementation], *, kind: str | None = None, profile: str = "standard",
    devices: Sequence[str] | str = ("auto",), dtypes: Sequence[str] | str = (), only: Sequence[str] | str = (), seed: int = 0,
    timeout: float = 60.0, workers: int = 1, isolate: str = "auto", waivers: str | PathLike[str] | None = None,
) -> Report:
    """Check implementations and return the report: `report.summary["verdict"]`, `report.results`, `report.summary`.

    target: a callable, a file, an import path, the name of a built-in implementation, or a list of these. A callable runs in
    this process. The options are those of `assay check`; `assay.report.render.write_all(report, folder)` writes the files.
    """
    from assay.run.session import Session

    request = _request(target, kind=kind, profile=profile, devices=devices, dtypes=dtypes, only=only, seed=seed,
                       timeout=timeout, workers=workers, isolate=isolate, waivers=waivers)
    with Session(request) as session:
        header, plan, *rest = (dict(event) for event in session.events())
    return Report(header, plan, rest[:-1], rest[-1])


def conformance(kind: str, target: Implementation | Sequence[Implementation], **options: Any) -> Callable[..., None]:
    """A test for plain pytest, one item a case: `test_mine = assay.conformance("attention", mine)`.

    Options as of `check`. A failure shows what should hold, what happened, on which input, and how to see it again.
    """
    def nothing() -> None:
        """The specification holds."""

    nothing.__name__ = nothing.__qualname__ = f"conformance_{kind}"
    nothing.__module__ = str(inspect.stack()[1].frame.f_globals.get("__name__", __name__))
    return parametrize(target, kind=kind, **options)(nothing)


def parametrize(
    targets: Implementation | Sequence[Implementation], *, kind: str | None = None, **options: Any,
) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Decorate a test: it runs once a case of these implementations, after the case itself has passed.

    The function may take `result`, a dict as in the report, and fixtures; its body may be empty.
    """
    import pytest

    given = _several(targets)
    units = Units(_request(given, kind=kind, **options))
    names = {made.name for made in units.declarations()}
    labels = [_label(case, whole=len(names) > 1) for case in units.cases()]

    def decorate(function: Callable[..., Any]) -> Callable[..., None]:
        takes = list(inspect.signature(function).parameters)

        def test(assay_case: Any, **fixtures: Any) -> None:
            result = judged(units, assay_case)
            function(**({"result": result} if "result" in takes else {}), **fixtures)

        parameters = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY)
                      for name in ("assay_case", *takes) if name != "result"]
        test.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        for name in ("__name__", "__qualname__", "__doc__", "__module__"):
            setattr(test, name, getattr(function, name))
        return pytest.mark.parametrize("assay_case", units.cases(), ids=labels)(test)

    return decorate


def judged(units: Units, case: Any) -> Mapping[str, Any]:
    """The result of one case, turned into pytest's outcome: skipped where nothing could be told, failed where it is wrong."""
    import pytest

    from assay.report.failure import failure_text

    result = units.result(case)
    outcome = outcome_of(result["status"])
    if outcome == "skipped":
        pytest.skip(f"{result['status']}: {result['message']}")
    if outcome == "failed":
        pytest.fail(failure_text(result), pytrace=False)
    return result


def outcome_of(status: str) -> str:
    """pytest's word for a status. `blocked` is failed: the cause is named, and a test selected alone must not be green."""
    if status in ("pass", "suspect", "waived"):
        return "passed"
    return "skipped" if status in ("inconclusive", "not-supported", "not-claimed", "not-exercised") else "failed"


def _request(target: Any, *, kind: str | None = None, profile: str = "standard", devices: Sequence[str] | str = ("auto",),
             dtypes: Sequence[str] | str = (), only: Sequence[str] | str = (), seed: int = 0, timeout: float = 60.0,
             workers: int = 1, isolate: str = "auto", waivers: Any = None) -> Request:
    """The options checked as on the command line; live objects apart from what can be named."""
    from pathlib import Path

    from assay.run import requests

    names, objects = [], []
    for one in _several(target):
        if isinstance(one, Declaration):
            objects.append(one)
        elif isinstance(one, (str, PathLike)):
            names.append(fspath(one))
        elif callable(one):
            objects += load(one, kind)
        else:
            raise UsageError(f"target={one!r:.80} must be a callable, a file, an import path or a built-in name")
    if not names and not objects:
        raise UsageError("target= must name at least one implementation, got none")
    if objects and isolate == "always":
        raise UsageError("isolate='always' needs what another process can load; give a file, such as 'kernels.py:attention'")
    words: Callable[[Any], tuple[str, ...]] = _words
    made = requests.request(
        names, kind=kind, devices=words(devices), dtypes=words(dtypes), only=words(only), profile=profile, seed=seed,
        timeout=timeout, workers=workers, isolate=isolate, waivers=None if waivers is None else Path(waivers),
        command="assay.check")
    return replace(made, objects=tuple(objects))


def _words(value: Any) -> tuple[str, ...]:
    """Names as text: one or several, dtypes of torch by their name."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        value = (value,)
    return tuple(str(one) for one in value)


def _several(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _label(case: Any, *, whole: bool) -> str:
    """A case in a node id: the implementation is named where there are several."""
    name = case.property.partition("/")[2]
    return "-".join([name, *([case.implementation] if whole else []), case.device, case.dtype])


