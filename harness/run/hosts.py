"""Hosts as the judge sees them: in this process, or supervised in another one that a zygote forks."""
from __future__ import annotations

import json
import os
import re
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import torch

from assay.contract.declaration import Declaration
from assay.errors import (
    HarnessError,
    HostCrashedError,
    HostError,
    HostOutOfMemoryError,
    HostTimeoutError,
    NotClaimedError,
    UsageError,
)
from assay.hosting import Answer, Call, Meanwhile, OutputFacts, Refusal, nothing
from assay.run import wire
from assay.run.instances import Instances
from assay.run.perform import clean

TAIL = 4096
START_PATIENCE = 60.0  # for the zygote to import torch and fork: ours, not the implementation's time
READING = 1.0  # for an answer that came while we did something else
END_PATIENCE = 0.5  # between a closed connection and the end of the process that had it
_NO_MEMORY = re.compile(r"bad_alloc|MemoryError|Cannot allocate memory|can't allocate memory")


class LocalHost:
    """Runs implementations in this process: the built-in ones, and everything under `--isolate never`."""

    def __init__(self, declarations: Sequence[Declaration]) -> None:
        self._instances = Instances(declarations, alone=False)

    def describe(self) -> list[Mapping[str, Any]]:
        """Declarations as JSON."""
        return self._instances.describe()

    def call(self, call: Call, meanwhile: Meanwhile = nothing) -> Answer:
        """Run one call here. Nothing shields this process; Ctrl-C stays Ctrl-C; there is no meanwhile."""
        return self._instances.call(call)

    def close(self) -> None:
        """Nothing to end."""


class Channel:
    """A connection to a process that the zygote forked for us, and what the zygote knows about that process."""

    def __init__(self, address: str, request: Mapping[str, Any]) -> None:
        self._address = address
        self.socket = _connect(address, request)
        self.pid = int(_read_line(self.socket)["pid"])

    def send(self, value: Any, deadline: float | None = None) -> None:
        """See `wire.send`."""
        wire.send(self.socket, value, deadline)

    def receive(self, deadline: float | None = None) -> Any:
        """See `wire.receive`."""
        return wire.receive(self.socket, deadline)

    def ended(self, patience: float = END_PATIENCE) -> tuple[int | None, str]:
        """Wait status and last output once the process has ended; no status if it still runs after `patience`."""
        deadline, pause = time.monotonic() + patience, 0.001
        while True:
            told = self._ask("status")
            if told["status"] is not None or time.monotonic() > deadline:
                return told["status"], str(told["output"])
            time.sleep(pause)
            pause = min(2 * pause, 0.05)

    def kill(self) -> str:
        """Kill the process with its whole group, close the connection, return what was printed last."""
        self.socket.close()
        return str(self._ask("kill")["output"])

    def _ask(self, role: str) -> dict[str, Any]:
        try:
            with _connect(self._address, {"role": role, "pid": self.pid}) as connection:
                return _read_line(connection)
        except (HarnessError, OSError):  # no zygote, so none of its children either
            return {"status": -1, "output": ""}


def _connect(address: str, request: Mapping[str, Any]) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(START_PATIENCE)
    try:
        connection.connect(address)
        connection.sendall(json.dumps(request).encode() + b"\n")
    except OSError as error:
        connection.close()
        raise HarnessError(f"the zygote cannot be reached: {error}") from error
    return connection


def _read_line(connection: socket.socket) -> dict[str, Any]:
    """One JSON line, a byte at a time where frames follow it on the same connection."""
    line = bytearray()
    while not line.endswith(b"\n"):
        try:
            byte = connection.recv(1)
        except OSError as error:
            raise HarnessError(f"the zygote does not answer: {error}") from error
        if not byte:
            raise HarnessError("the zygote ended in the middle of an answer")
        line += byte
    answer = json.loads(line)
    assert isinstance(answer, dict)
    return answer


def open_judge(zygote: str, setup: Mapping[str, Any]) -> Channel:
    """Have a judge forked, tell it targets and settings, and see it ready; that one cannot start is a fault of ours."""
    channel = Channel(zygote, {"role": "judge"})
    try:
        channel.send(setup)
        channel.receive(time.monotonic() + START_PATIENCE)
    except (ConnectionError, TimeoutError) as error:
        channel.kill()
        raise HarnessError(f"a judge did not start: {error or type(error).__name__}") from error
    return channel


class RemoteHost:
    """Runs the implementations of one target in a process of their own; starts when needed, and again after a death.

    timeout: seconds for one call, or for the import. memory: bytes that it may have (None: 75 % of what there is). loaded: it was
    loaded before, when the run was planned; what keeps it from that now is its own doing, and no wrong usage.
    """

    def __init__(self, zygote: str, target: str, kind: str | None = None, *, timeout: float = 60.0,
                 memory: int | None = None, loaded: bool = False) -> None:
        self._zygote, self._target, self._kind = zygote, target, kind
        self._timeout, self._memory, self._loaded = timeout, memory, loaded
        self._spoilt_by: str | None = None  # the implementation that changed global state in the process that now runs
        self._channel: Channel | None = None
        self._declared: list[Mapping[str, Any]] = []
        self._names: set[tuple[str, str]] = set()  # kind and name of each
        self.started = 0  # how often a process was started

    @property
    def pid(self) -> int | None:
        """Process id of the host that now runs, if any."""
        return None if self._channel is None else self._channel.pid

    def describe(self) -> list[Mapping[str, Any]]:
        """Declarations as JSON. UsageError for a file that cannot be loaded, HostError if loading kills or hangs."""
        self._running()
        return self._declared

    def call(self, call: Call, meanwhile: Meanwhile = nothing) -> Answer:
        """Run one call there; in a new process where another implementation has changed global state, as a thread that it started
        may go on doing."""
        if self._spoilt_by not in (None, call.implementation):
            self.close()
        channel = self._running()
        if (call.kind, call.implementation) not in self._names:
            self._raise(HostCrashedError, f"loaded again, it declares no {call.kind} {call.implementation!r} any more", self._end())
        answer = self._exchange(channel, call, f"inside the call of {call.implementation}", meanwhile)
        if isinstance(answer, Answer) and _is_well_formed(answer):
            self._spoilt_by = call.implementation if answer.state else self._spoilt_by
            return answer
        if isinstance(answer, dict) and "error" in answer:
            kind = NotClaimedError if answer["error"] == "NotClaimedError" else HarnessError
            raise kind(clean(str(answer["message"])))
        self.close()
        raise wire.garbled(f"a {type(answer).__name__} where an Answer belongs")

    def close(self) -> None:
        """End the process, if there is one."""
        if self._channel is not None:
            self._channel.kill()
            self._channel = None

    def _running(self) -> Channel:
        """The connection to a host that has loaded the target."""
        if self._channel is not None:
            return self._channel
        request = {"role": "host", "target": self._target, "kind": self._kind, "memory": self._memory}
        self._channel = channel = Channel(self._zygote, request)
        self.started, self._spoilt_by = self.started + 1, None
        told = self._exchange(channel, None, f"while {self._target} was imported")
        if isinstance(told, dict) and isinstance(told.get("ready"), list):
            self._declared, self._loaded = told["ready"], True
            self._names = {(one["kind"], one["name"]) for one in self._declared}
            return channel
        self.close()
        if isinstance(told, dict) and "usage" in told:
            if self._loaded:
                self._raise(HostCrashedError, f"it was loaded before, and cannot be now: {clean(str(told['usage']))}", "")
            raise UsageError(clean(str(told["usage"])))
        raise HarnessError(clean(f"a host did not start: {told}"))

    def _exchange(self, channel: Channel, call: Call | None, where: str, meanwhile: Meanwhile = nothing) -> Any:
        """Send the call, if there is one, and wait for the answer; whatever goes wrong ends the process."""
        deadline = time.monotonic() + self._timeout
        try:
            if call is not None:
                channel.send(call, deadline)
            meanwhile()
            return channel.receive(max(deadline, time.monotonic() + READING))  # the answer may lie there since long ago
        except TimeoutError:
            said = f"no answer within {self._timeout:g} s {where}; the process was killed"
            self._raise(HostTimeoutError, said, self._end())
        except ConnectionError:
            self._bury(channel, where)
        except BaseException:  # Ctrl-C, or a garbled frame: the connection is of no use any more
            self._end()
            raise

    def _end(self) -> str:
        """Kill the process and forget it; what it printed last."""
        channel, self._channel = self._channel, None
        return channel.kill() if channel is not None else ""

    def _bury(self, channel: Channel, where: str) -> NoReturn:
        """Say how a process ended that closed its connection."""
        status, output = channel.ended()
        self._end()
        if status is None:
            self._raise(HostCrashedError, f"closed the harness' connection {where}; the process was killed", output)
        kind = HostOutOfMemoryError if _NO_MEMORY.search(output) and status != 0 else HostCrashedError
        self._raise(kind, f"{how_ended(status)} {where}", output)

    def _raise(self, kind: type[HostError], message: str, output: str) -> NoReturn:
        raise kind(message, stderr_tail=clean(output[-TAIL:], TAIL))


_FIELDS: Mapping[str, type] = {
    "outputs": tuple, "structure": str, "facts": tuple, "gradients": dict, "gradient_facts": dict, "mutated": tuple,
    "guards_broken": tuple, "state": tuple, "seconds": float, "counts": dict,
}


def _is_well_formed(answer: Answer) -> bool:
    """Whether the fields hold what their types say: the process at the other end is not to be trusted."""
    return (all(isinstance(getattr(answer, name), kind) for name, kind in _FIELDS.items())
            and isinstance(answer.refusal, (Refusal, type(None)))
            and len(answer.facts) == len(answer.outputs)
            and all(isinstance(fact, (OutputFacts, type(None))) for fact in answer.facts)
            and all(isinstance(fact, OutputFacts) for fact in answer.gradient_facts.values())
            and all(isinstance(g, (torch.Tensor, type(None))) for g in answer.gradients.values())
            and all(isinstance(count, int) for count in answer.counts.values())
            and all(isinstance(told, str) for told in (*answer.mutated, *answer.guards_broken, *answer.state)))


def how_ended(status: int) -> str:
    """A wait status in words."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        names = {s.value: s.name for s in signal.Signals}
        return f"killed by {names.get(number, f'signal {number}')}"
    return f"exited with code {os.waitstatus_to_exitcode(status)}"
