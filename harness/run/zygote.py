"""The zygote: a clean process with torch and assay loaded, which forks judges and hosts and never runs user code.

Started as `python -m assay.run.zygote PATH DESCRIPTOR MODULE…`: the descriptor is a Unix socket that listens at PATH,
the modules are what to import before the first fork. Requests are JSON lines. {"role": "host", "target", "kind",
"memory"} and {"role": "judge", ...} fork a child that takes the connection over (its first line is {"pid": n}).
{"role": "status", "pid"} and {"role": "kill", "pid"} are answered with {"status": wait status or null, "output": the
last that it printed}. The zygote ends when its standard input closes, which is when its parent is gone, and takes all
its children along.
"""
from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import selectors
import shutil
import signal
import socket
import struct
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

FOR_HOSTS = (
    "torch", "numpy", "assay.registry", "assay.contract.loading", "assay.run.host_process",
    "torch._dynamo", "torch.fx.experimental.symbolic_shapes",  # what `conduct.settle` would import in every child
)
OUTPUT_KEPT = 8192
_SET_PDEATHSIG, _SET_CHILD_SUBREAPER = 1, 36
_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass
class Child:
    """A judge or host: whose it is, what it printed last, and how it ended."""

    owner: int  # process at the other end of its connection
    pipe: int | None = None  # read end of its output
    output: bytes = b""
    status: int | None = None


class Loop:
    """The loop: connections, output of hosts, ended children."""

    def __init__(self, path: str, listener: socket.socket) -> None:
        self.path = path
        self._children: dict[int, Child] = {}
        self._selector = selectors.DefaultSelector()
        self._listener = listener
        self._wakeup, wakeup_end = socket.socketpair()
        for end in (self._wakeup, wakeup_end):
            end.setblocking(False)
        self._wakeup_end = wakeup_end
        signal.set_wakeup_fd(wakeup_end.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the user's Ctrl-C goes to the parent, which then ends us
        self._selector.register(self._listener, selectors.EVENT_READ, "listener")
        self._selector.register(self._wakeup, selectors.EVENT_READ, "wakeup")
        self._selector.register(0, selectors.EVENT_READ, "parent")

    def run(self) -> None:
        """Until standard input closes."""
        while True:
            for key, _ in self._selector.select():
                if key.data == "parent":
                    if not os.read(0, 4096):
                        self._end_all()
                        return
                elif key.data == "listener":
                    self._accept()
                elif key.data == "wakeup":
                    self._wakeup.recv(4096)
                    self._reap()
                else:
                    self._drain(key.data)

    # -- requests

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        owner = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        connection.settimeout(5)
        try:
            request = json.loads(_read_line(connection))
            if request["role"] in ("host", "judge"):
                self._fork(connection, owner, request)
            else:
                connection.sendall(self._about(request).encode() + b"\n")
        except (OSError, ValueError, KeyError):  # a client that went away in the middle of its request
            pass
        finally:
            connection.close()

    def _about(self, request: dict[str, Any]) -> str:
        child = self._children.get(int(request["pid"]))
        if child is None:
            return json.dumps({"status": None, "output": "", "unknown": True})
        if request["role"] == "kill" and child.status is None:
            _kill_group(request["pid"])
            os.waitid(os.P_PID, request["pid"], os.WEXITED | os.WNOWAIT)
        self._reap()
        if child.pipe is not None:
            self._drain(request["pid"])
        return json.dumps({"status": child.status, "output": child.output.decode(errors="replace")})

    # -- children

    def _fork(self, connection: socket.socket, owner: int, request: dict[str, Any]) -> None:
        read_end, write_end = os.pipe() if request["role"] == "host" else (None, None)
        request = {**request, "fenced": [os.getpid(), os.getppid(), owner]}  # what a host must not reach
        parent, ready = os.getpid(), os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(ready[0])
            self._become(connection, request, parent, write_end, ready[1])
        os.close(ready[1])
        os.read(ready[0], 1)  # until it leads its own process group, so that it can be killed from now on
        os.close(ready[0])
        self._children[pid] = Child(owner, read_end)
        if read_end is not None and write_end is not None:
            os.close(write_end)
            os.set_blocking(read_end, False)
            self._selector.register(read_end, selectors.EVENT_READ, pid)

    def _become(self, connection: socket.socket, request: dict[str, Any], parent: int, output: int | None,
                ready: int) -> NoReturn:
        """In the child: leave everything of the zygote behind, then serve; never return."""
        code = 1
        try:
            os.setsid()
            _LIBC.prctl(_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)
            os.close(ready)
            self._leave()
            connection.settimeout(None)
            connection.sendall(json.dumps({"pid": os.getpid()}).encode() + b"\n")
            if request["role"] == "host":
                importlib.import_module("assay.run.host_process").serve(connection, request, output)
            else:
                importlib.import_module("assay.run.judging").serve(connection, {**request, "zygote": self.path})
            code = 0
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
        except BaseException:  # noqa: BLE001 -- the last boundary: a child must never fall back into the zygote's loop
            traceback.print_exc()
        importlib.import_module("assay.run.host_process").finish(code)
        raise AssertionError("unreachable")

    def _leave(self) -> None:
        """Close what belongs to the zygote, and put signals back to their defaults."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self._selector.close()
        for end in (self._listener, self._wakeup, self._wakeup_end):
            end.close()
        for child in self._children.values():
            if child.pipe is not None:
                os.close(child.pipe)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)

    def _drain(self, pid: int) -> None:
        """Keep the last of what a child printed; one read a turn, so that a flood delays nobody."""
        child = self._children[pid]
        if child.pipe is None:
            return
        try:
            data = os.read(child.pipe, 65536)
        except BlockingIOError:
            return
        child.output = (child.output + data)[-OUTPUT_KEPT:]
        if not data:
            self._selector.unregister(child.pipe)
            os.close(child.pipe)
            child.pipe = None

    def _reap(self) -> None:
        """Note how ended children ended; what is left of their process group, and of their hosts, ends with them."""
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            pid = ended.si_pid
            if pid in self._children:  # still a zombie, so its number cannot have been given to anybody else
                _kill_group(pid)
            _, status = os.waitpid(pid, 0)
            if pid in self._children:
                self._children[pid].status = status
                self._end_owned_by(pid)

    def _end_owned_by(self, owner: int) -> None:
        for pid, child in self._children.items():
            if child.owner == owner and child.status is None:
                _kill_group(pid)

    def _end_all(self) -> None:
        """Kill every child, and what escaped from their process groups: as subreaper we are its parent."""
        shutil.rmtree(os.path.dirname(self.path), ignore_errors=True)  # should our parent have been killed
        while children := _children_of(os.getpid()):
            for pid in children:
                _kill_group(pid) if pid in self._children else None
                os.kill(pid, signal.SIGKILL)
            for pid in children:
                os.waitpid(pid, 0)


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:  # none of the group is left
        return


def _children_of(parent: int) -> list[int]:
    listed = Path(f"/proc/{parent}/task/{parent}/children").read_text()
    return [int(pid) for pid in listed.split()]


def _read_line(connection: socket.socket) -> bytes:
    """One line, a byte at a time: what follows it belongs to the child."""
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = connection.recv(1)
        if not byte:
            raise ConnectionError("closed before the end of the request")
        line += byte
    return bytes(line)


def preload(names: tuple[str, ...]) -> None:
    """Import once what every child needs, and keep the garbage collector from touching (and so copying) its pages."""
    for name in names:
        importlib.import_module(name)
    torch = importlib.import_module("torch")
    torch.set_num_threads(1)  # no thread may exist when we fork
    gc.collect()
    gc.freeze()


def main(path: str, descriptor: int, names: tuple[str, ...]) -> None:
    """Serve a socket that the parent already listens on, so that requests queue while torch is being imported."""
    listener = socket.socket(fileno=descriptor)
    _LIBC.prctl(_SET_CHILD_SUBREAPER, 1)
    loop = Loop(path, listener)
    preload(names)
    loop.run()
    # Nothing is left to tidy up, and what libraries print when the interpreter is taken down is none of the user's business.
    importlib.import_module("assay.run.host_process").finish(0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), tuple(sys.argv[3:]))
