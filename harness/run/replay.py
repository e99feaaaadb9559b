"""Stored counterexamples run again: one given on the command line, or all those of a report."""
from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from assay import registry
from assay.cases import FAMILIES, LAYOUTS, Cases, Configuration, numbers
from assay.contract.declaration import Declaration
from assay.contract.kinds import quoted, unknown
from assay.errors import UsageError
from assay.properties import Property
from assay.report.jsonl import Report
from assay.run.plan import CaseSpec, Selection
from assay.run.pool import Job
from assay.run.session import Request, Session, Target
from assay.run.waivers import example_of

LARGEST = 1 << 20  # of one letter
FIELDS = ("kind", "dims", "flags", "family", "layout", "seed")


def one(request: Request, case: str, example: str) -> list[dict[str, Any]]:
    """The result of one example of one case, on one target."""
    kind, prop = _named(case)
    asked = replace(request, kind=request.kind or kind, selection=Selection((case,), ("auto",)))
    with Session(asked) as session:
        configuration = read_example(example, prop)
        targets = session.resolve()
        return list(_run(session, targets, {case: configuration}))


def script_for(request: Request, case: str, example: str) -> tuple[str, list[dict[str, Any]]]:
    """A standalone script of one example of one case, and the result of that example."""
    from assay.run.script import script  # only where one is asked for

    kind, prop = _named(case)
    asked = replace(request, kind=request.kind or kind, selection=Selection((case,), ("auto",)))
    with Session(asked) as session:
        configuration = read_example(example, prop)
        targets = session.resolve()
        results = list(_run(session, targets, {case: configuration}))
        declared = {(made.kind, made.name): made for target in targets for made in target.declarations}
        spec = _case(case, declared, partly=False)
        assert spec is not None  # it is refused where nothing fits
        target = next(one for one in targets if any(made.name == spec.implementation for made in one.declarations))
        return script(session, target, spec, prop, configuration), results


def stored(report: Report, only: str | None) -> tuple[str, str, str, str]:
    """Target, kind, case and example of the one counterexample of a report that a script is to be written of."""
    found = {one["id"]: one for one in report.results if one["counterexample"] and "dims" in one["counterexample"]}
    if only is None and len(found) != 1:
        raise UsageError(f"script= needs --only CASE: the report holds {len(found)} counterexamples")
    if only is not None and only not in found:
        raise UsageError(f"only={quoted(only)} must be a case of the report with a counterexample, such as "
                         f"{next(iter(found), 'none: it holds none')}")
    one = found[only] if only is not None else next(iter(found.values()))
    return target_of(report, one), one["kind"], one["id"], json.dumps(example_of(one))


def all_of(report: Report, request: Request) -> list[dict[str, Any]]:
    """Results of every counterexample that a report holds, each on the implementation that it was found on."""
    stored = {one["id"]: one for one in report.results if one["counterexample"] and "dims" in one["counterexample"]}
    if not stored:
        return []
    wanted = {(one["kind"], one["implementation"]) for one in stored.values()}
    origins: dict[tuple[str, str | None], None] = {}
    for made in report.header["implementations"]:
        if (made["kind"], made["name"]) in wanted:
            origins[origin_of(made), made["kind"]] = None
    results: list[dict[str, Any]] = []
    for target, kind in origins:
        with Session(replace(request, targets=(target,), kind=kind)) as session:
            examples = {id: read_example(json.dumps(example_of(one)), _named(id)[1]) for id, one in stored.items()
                        if one["kind"] == kind}
            results += _run(session, session.resolve(), examples, partly=True)
    return results


def target_of(report: Report, one: Mapping[str, Any]) -> str:
    """What to give on a command line to load the implementation of a result again."""
    for made in report.header["implementations"]:
        if (made["kind"], made["name"]) == (one["kind"], one["implementation"]):
            return origin_of(made)
    raise UsageError(f"{one['id']}: the report declares no such implementation; edited by hand?")


def origin_of(made: Mapping[str, Any]) -> str:
    """What to give on a command line to load a declaration again."""
    origin = str(made.get("origin", ""))
    if origin == "this process":
        raise UsageError(f"implementation={made['name']} was a live object; run the test or script again that checked it")
    return str(made["name"]) if made.get("builtin") or origin.startswith("entry point") else origin


def _run(session: Session, targets: Sequence[Target], examples: Mapping[str, Configuration],
         partly: bool = False) -> Iterator[dict[str, Any]]:
    """Run the examples on what the targets declare."""
    declared = {(made.kind, made.name): made for target in targets for made in target.declarations}
    for target in targets:
        if target.died is not None:
            raise UsageError(f"target={target.name} cannot be imported: {target.died}")
    jobs = []
    for id, configuration in examples.items():
        case = _case(id, declared, partly)
        if case is not None:
            jobs.append(Job(case, configuration.to_json()))
    planned, _ = session.plan(targets)
    yield from session.runner(targets, planned)(jobs)


def _case(id: str, declared: Mapping[tuple[str, str], Declaration], partly: bool) -> CaseSpec | None:
    """The case of that id, if what was declared can be judged by it."""
    kind, prop = _named(id)
    inside = id.partition("[")[2].removesuffix("]")
    name, device, dtype = [*inside.rsplit("-", 2), "", ""][:3]
    made = declared.get((kind, name))
    if made is None:
        if partly:
            return None
        names = ", ".join(sorted(name for of, name in declared if of == kind)) or "none of that kind"
        raise UsageError(f"only={quoted(id)} must name an implementation that the target declares, got {names}")
    if not isinstance(getattr(torch, dtype, None), torch.dtype):
        raise UsageError(f"only={quoted(id)} must end in a torch dtype, got {quoted(dtype)}")
    return CaseSpec(prop.id, kind, name, device, dtype)


def _named(id: str) -> tuple[str, Property]:
    """Kind and property of a case id."""
    name, bracket, rest = id.partition("[")
    if not bracket or not rest.endswith("]"):
        raise UsageError(f"only={quoted(id)} must be the id of one case, such as softmax/rows_sum_to_one[mine-cpu-float32]")
    known = {prop.id: prop for prop in registry.properties()}
    if name not in known:
        raise UsageError(unknown("property", name, known)[:400])
    return known[name].kind, known[name]


# ------------------------------------------------------------------------------------------------ reading an example
def read_example(text: str, prop: Property) -> Configuration:
    """The configuration that the text holds. UsageError, one line, for whatever cannot be an example of this property."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"example={quoted(text)} must be JSON, got {error}") from None
    if not isinstance(data, dict):
        raise UsageError(f"example={quoted(text)} must be an object with {', '.join(FIELDS)}")
    missing = [name for name in FIELDS if name not in data]
    more = [name for name in data if name not in (*FIELDS, "values")]
    if missing or more:
        what = f"lacks {missing[0]}" if missing else f"has an unknown {quoted(more[0])}"
        raise UsageError(f"example={quoted(text)} {what}; it must have exactly {', '.join(FIELDS)}")
    if data["kind"] != prop.kind:
        raise UsageError(f"example: kind={quoted(data['kind'])} must be {prop.kind}, as --only says")
    cases: Cases = prop.cases
    dims = _dims(data["dims"], cases)
    flags = _flags(data["flags"], cases)
    families = {*cases.families, *FAMILIES, *_given(prop, "family")}
    _one_of("family", data["family"], families)
    _one_of("layout", data["layout"], {*cases.layouts, *LAYOUTS})
    if type(data["seed"]) is not int or data["seed"] < 0:
        raise UsageError(f"example: seed={quoted(data['seed'])} must be a whole number, 0 or more")
    values = data.get("values", {})
    made = Configuration(prop.kind, dims, flags, data["family"], data["layout"], data["seed"], values)
    _values(values, made, cases)
    return made


def _values(values: Any, made: Configuration, cases: Cases) -> None:
    """Tensors given outright: nested lists of numbers that fit their argument."""
    if not isinstance(values, dict):
        raise UsageError(f"example: values={quoted(values)} must be an object of nested lists by argument name")
    drawn = cases.build(replace(made, values={}), torch.float32).arguments
    for name, given in values.items():
        if not isinstance(drawn.get(name), torch.Tensor):
            raise UsageError(f"example: values: {unknown('argument', name, drawn)}")
        try:
            fits = torch.tensor(numbers(given), dtype=torch.float64).numel() == drawn[name].numel()
        except (TypeError, ValueError):
            fits = False
        if not fits:
            raise UsageError(f"example: values: {name} must be nested lists of {drawn[name].numel()} numbers")


def _dims(data: Any, cases: Cases) -> dict[str, int]:
    _names("dims", data, cases.dims)
    for letter, size in data.items():
        if type(size) is not int or not 0 <= size <= LARGEST:
            raise UsageError(f"example: dims: {letter}={quoted(size)} must be a whole number from 0 to {LARGEST:,}")
    return dict(data)


def _flags(data: Any, cases: Cases) -> dict[str, Any]:
    _names("flags", data, cases.flags)
    found = {}
    for name, value in data.items():
        value = _tuples(value)
        sorts = {_sort(choice) for choice in cases.flags[name]}
        if _sort(value) not in sorts or (isinstance(value, str) and value not in cases.flags[name]):
            listed = ", ".join(json.dumps(choice) for choice in cases.flags[name])
            raise UsageError(f"example: flags: {name}={quoted(value)} must be of the sort of {listed}")
        found[name] = value
    return found


def _names(what: str, data: Any, known: Mapping[str, Any]) -> None:
    """The object has exactly the names that the kind draws."""
    if not isinstance(data, dict):
        raise UsageError(f"example: {what}={quoted(data)} must be an object")
    for name in data:
        if name not in known:
            raise UsageError(f"example: {what}: {unknown('letter' if what == 'dims' else 'flag', name, known)}")
    for name in known:
        if name not in data:
            raise UsageError(f"example: {what} lacks {name}; it must have {', '.join(known)}")


def _one_of(what: str, value: Any, known: set[str]) -> None:
    if not isinstance(value, str) or value not in known:
        raise UsageError(f"example: {unknown(what, value, known)}")


def _given(prop: Property, name: str) -> tuple[str, ...]:
    rule = prop.given.get(name, ())
    return (rule,) if isinstance(rule, str) else rule if isinstance(rule, tuple) else ()


def _sort(value: Any) -> str:
    return "number" if type(value) in (int, float) else type(value).__name__


def _tuples(value: Any) -> Any:
    """JSON has lists where options are tuples."""
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value
