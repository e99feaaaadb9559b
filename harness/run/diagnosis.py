"""What the doctor found: who kills what, what lives, which right implementation was called wrong."""
from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text


@dataclass(frozen=True)
class Attempt:
    """One property tried on one planted implementation; dtype, seed and message are those of the last try."""

    property: str
    planted: str
    killed: bool
    status: str
    named: bool = False  # the property says that it kills it
    dtype: str = ""
    seed: int = 0
    message: str = ""
    counterexample: Mapping[str, Any] = field(default_factory=dict)
    statuses: tuple[str, ...] = ()  # of every try, in order
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "statuses": list(self.statuses)}


@dataclass
class DoctorReport:
    """What the doctor found. `exit_code` 0: each property kills what it names, no fault lives, no right way fails."""

    properties: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    benigns: tuple[str, ...] = ()
    attempts: list[Attempt] = field(default_factory=list)
    benign_attempts: list[Attempt] = field(default_factory=list)
    unknown: list[tuple[str, str]] = field(default_factory=list)  # (property, fault it names that is not planted)
    seconds: float = 0.0

    @property
    def killed_by(self) -> dict[str, list[str]]:
        """Fault -> properties that killed it."""
        found: dict[str, list[str]] = {id: [] for id in self.faults}
        for attempt in self.attempts:
            if attempt.killed:
                found[attempt.planted].append(attempt.property)
        return found

    @property
    def alive(self) -> list[str]:
        """Faults that nothing killed."""
        return [fault for fault, by in self.killed_by.items() if not by]

    @property
    def missed(self) -> list[Attempt]:
        """Faults that survived a property which says that it kills them."""
        return [one for one in self.attempts if one.named and not one.killed]

    @property
    def idle(self) -> list[str]:
        """Properties that killed nothing."""
        busy = {attempt.property for attempt in self.attempts if attempt.killed}
        return [id for id in self.properties if id not in busy]

    @property
    def benign_failures(self) -> list[Attempt]:
        """Right implementations that a property called wrong."""
        return [attempt for attempt in self.benign_attempts if attempt.killed]

    @property
    def harness_errors(self) -> list[Attempt]:
        """Tries in which the harness itself failed."""
        return [one for one in (*self.attempts, *self.benign_attempts) if "harness-error" in one.statuses]

    @property
    def exit_code(self) -> int:
        bad = self.alive or self.missed or self.idle or self.benign_failures or self.unknown or self.harness_errors
        return 1 if bad else 0

    def to_json(self) -> dict[str, Any]:
        return {
            "properties": list(self.properties), "faults": list(self.faults), "benigns": list(self.benigns),
            "killed_by": self.killed_by, "alive": self.alive, "idle": self.idle,
            "unknown": [list(one) for one in self.unknown], "missed": [one.to_json() for one in self.missed],
            "seconds": self.seconds, "exit_code": self.exit_code,
            "benign_failures": [one.to_json() for one in self.benign_failures],
            "harness_errors": [one.to_json() for one in self.harness_errors],
        }

    # ------------------------------------------------------------------------------------------------ as text
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._table()
        for line in self.findings():
            yield Text(line, overflow="fold")
        yield Text(self.verdict(), style="bold green" if self.exit_code == 0 else "bold red")

    def _table(self) -> Table:
        """One row a property: what it killed of what it names, and what else it killed."""
        table = Table("property", "killed", "of", "faults", box=None, pad_edge=False, header_style="bold")
        for id in self.properties:
            mine = [one for one in self.attempts if one.property == id]
            named = [one for one in mine if one.named]
            told = sorted(mine, key=lambda one: (one.killed, one.named))
            shown = Text()
            for one in (one for one in told if one.named or one.killed):
                mark = "" if one.killed and one.named else "+" if one.killed else "✗ "
                style = "" if one.killed else "bold red"
                shown.append(f"{mark}{one.planted.partition('/')[2]}", style).append(" ")
            table.add_row(id, str(sum(one.killed for one in named)), str(len(named)), shown)
        return table

    def findings(self) -> Iterator[str]:
        """Everything that is not as it should be, a line each."""
        for one in self.missed:
            yield f"missed: {one.property} does not tell {one.planted} ({', '.join(one.statuses) or 'not tried'})"
        yield from (f"alive: nothing tells {id}" for id in self.alive)
        yield from (f"idle: {id} told no fault" for id in self.idle)
        yield from (f"unknown: {prop} names {fault}, which is not planted" for prop, fault in self.unknown)
        for one in self.benign_failures:
            at = f"{one.dtype}, seed {one.seed}"
            yield f"unsound: {one.property} calls the right {one.planted} wrong ({at}): {one.message}"
        for one in self.harness_errors:
            yield f"harness: {one.property} on {one.planted}: {one.message}"

    def verdict(self) -> str:
        """The figures in one line."""
        told, ways = len(self.faults) - len(self.alive), len({one.planted for one in self.benign_failures})
        tries = Counter(one.status for one in self.benign_attempts)
        return (f"{told} of {len(self.faults)} faults told · {len(self.missed)} misattributed · {len(self.idle)} of "
                f"{len(self.properties)} properties idle · {ways} of {len(self.benigns)} right ways called wrong "
                f"({tries.total()} cases) · {self.seconds:.0f} s")
