"""The inside of a host: a forked process that loads the user's file, runs calls and does nothing else."""
from __future__ import annotations

import faulthandler
import os
import resource
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from assay.contract import loading
from assay.errors import AssayError, UsageError
from assay.hosting import Answer, Call
from assay.run import wire
from assay.run.fence import fence
from assay.run.instances import Instances

MEMORY_SHARE = 0.75


def default_memory() -> int:
    """Three quarters of what the machine, or the control group we run in, has."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.exists() else "max"
    return int(MEMORY_SHARE * min(total, int(text) if text.isdigit() else total))


def serve(channel: socket.socket, request: Mapping[str, Any], output: int) -> None:
    """The life of a host: limits, redirected output, import, then one answer a call until the connection closes."""
    _redirect(output)
    _limit(int(request.get("memory") or default_memory()))
    torch.set_num_threads(1)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # nobody reads our output any more: nobody wants us any more
    fence(request.get("fenced", ()))
    instances = _load(channel, request)
    if instances is None:
        return
    own = os.getpid()
    wire.send(channel, {"ready": instances.describe()})
    while True:
        try:
            call = wire.receive(channel)
        except ConnectionError:
            return
        answer = _answer(instances, call)
        if os.getpid() != own:  # the implementation forked, and this is the copy: it must not speak on our connection
            os._exit(0)
        wire.send(channel, answer)


def _load(channel: socket.socket, request: Mapping[str, Any]) -> Instances | None:
    """Import the user's file. What the loader refuses is the user's mistake and is sent back as such."""
    try:
        declarations = loading.load(request["target"], request.get("kind"))
    except UsageError as error:
        wire.send(channel, {"usage": str(error)})
        return None
    except AssayError as error:
        wire.send(channel, {"harness": str(error)})
        return None
    return Instances(declarations, alone=True)


def _answer(instances: Instances, call: Call) -> Answer | dict[str, str]:
    try:
        return instances.call(call)
    except AssayError as error:
        return {"error": type(error).__name__, "message": str(error)}


def _redirect(output: int) -> None:
    """Nothing to read; what is printed goes to the zygote, which keeps the last of it."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(null)
    os.close(output)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 -- it lives as long as the process
    sys.stdout = open(1, "w", buffering=1, errors="replace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="replace", closefd=False)  # noqa: SIM115
    sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr  # type: ignore[misc]
    faulthandler.enable(file=sys.stderr, all_threads=False)


def _limit(memory: int) -> None:
    """Bound the data segment: unlike the address space, it does not count what CUDA merely reserves. No core dumps."""
    for what, wanted in ((resource.RLIMIT_DATA, memory), (resource.RLIMIT_CORE, 0)):
        _, hard = resource.getrlimit(what)
        allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(what, (allowed, allowed))


def finish(code: int) -> None:
    """End at once: threads that the implementation left behind would keep an ordinary exit waiting for ever."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # closed, or replaced, by the implementation
            continue
    os._exit(code)
