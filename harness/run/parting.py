"""The parts of a target's models, one by one: which are recognised, what each is held against, and what is not recognised."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from assay import registry
from assay.contract.declaration import Declaration
from assay.contract.loading import load
from assay.errors import ExampleOverError, UsageError
from assay.hosting import Host
from assay.ledger import open_ledger
from assay.run.hosts import LocalHost, RemoteHost
from assay.run.session import Request, Session, Target
from assay.spec.causal_lm_cases import model_of
from assay.spec.causal_lm_parts import every_part_gives_its_formula, parts_of
from assay.spec.part_verdicts import Verdict, judged
from assay.subject import Subject

WRONG, RIGHT, UNKNOWN = "out of bound", "right", "not recognised"
STATUSES = {"wrong": WRONG, "right": RIGHT, "unrecognised": UNKNOWN}


@dataclass(frozen=True)
class Row:
    """One part of one model."""

    implementation: str
    part: str
    type: str
    kind: str
    status: str
    told: str  # the variant that it is, or why it is not recognised
    error_over_bound: float | None

    def to_json(self) -> dict[str, Any]:
        """As a line of JSON."""
        return dict(vars(self))


def rows(request: Request) -> list[Row]:
    """Every part of every model that the targets name, in the order of a pass."""
    with Session(request) as session:
        found = [row for target in session.resolve() for row in _of_target(session, target)]
    if not found:
        raise UsageError("parts: none of the targets is a model that hands over its parts; hf:TYPE and hf:./FOLDER do")
    return found


def _of_target(session: Session, target: Target) -> Iterator[Row]:
    if target.died is not None:
        raise UsageError(f"target={target.name} cannot be imported: {target.died}")
    offering = [made for made in target.declarations if made.claims("parts")]
    if not offering:
        return
    host: Host = RemoteHost(str(session.address), target.name, target.kind, timeout=session.request.settings.timeout) \
        if target.isolated else LocalHost(load(target.name, target.kind))
    try:
        for declaration in offering:
            for verdict in _verdicts(declaration, host):
                known = verdict.status != "unrecognised"
                yield Row(declaration.name, verdict.part.name, verdict.part.type, verdict.part.kind, STATUSES[verdict.status],
                          verdict.variant if known else verdict.reason, verdict.ratio if known else None)
    finally:
        host.close()


def _verdicts(declaration: Declaration, host: Host) -> Sequence[Verdict]:
    """By the first example that the property draws."""
    name = f"{declaration.kind}/{every_part_gives_its_formula.__name__}"
    prop = next(one for one in registry.properties(declaration.kind) if one.id == name)
    configuration = prop.cases.boundary(declaration, prop.given)[0]
    example = prop.cases.example(configuration, torch.float32)
    with open_ledger() as ledger:
        try:
            model = model_of(Subject(declaration, host, torch.float32, example), example)
            return judged(parts_of(model, example))
        except ExampleOverError as error:
            wrong = ledger.first_wrong()
            said = wrong.failure.text if wrong and wrong.failure else str(error)
            raise UsageError(f"parts: {declaration.name} has none to tell: {said}") from None


def text(found: Sequence[Row]) -> str:
    """A line a part; those that are not recognised by reason; the first that is out of its bound."""
    lines = []
    for name in dict.fromkeys(row.implementation for row in found):
        mine = [row for row in found if row.implementation == name]
        wide = max(len(row.part) for row in mine)
        counts = [sum(row.status == status for row in mine) for status in (RIGHT, WRONG, UNKNOWN)]
        lines += ["{}: {} parts right, {} out of bound, {} not recognised".format(name, *counts)]
        lines += [f"  {row.status:<12}  {row.part:<{wide}}  {row.type}: {row.kind.replace('_', ' ')}"
                  f"{', ' + row.told if row.told else ''}  {row.error_over_bound:.3g} of its bound" for row in mine
                  if row.error_over_bound is not None]
        reasons: dict[str, list[str]] = {}
        for row in mine:
            if row.error_over_bound is None:
                reasons.setdefault(row.told, []).append(f"{row.part} ({row.type})")
        lines += [f"  {UNKNOWN}: {reason}: {', '.join(parts)}" for reason, parts in reasons.items()]
        first = next((row for row in mine if row.status == WRONG), None)
        lines += [f"first part out of its bound: {first.part} ({first.type}, {first.kind.replace('_', ' ')})"] if first else []
    return "\n".join(lines)


def exit_code(found: Sequence[Row]) -> int:
    """1 where any part is out of its bound, 3 where none is recognised, else 0."""
    return 1 if any(row.status == WRONG for row in found) else 0 if any(row.status == RIGHT for row in found) else 3
