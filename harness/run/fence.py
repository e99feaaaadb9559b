"""A fence around the harness' own processes: a host cannot send them signals, so a stray kill costs one case and not the run.

A filter of system calls (Linux, no rights needed): what would signal one of the given processes or reach into its memory, or signal
everybody at once, fails with "operation not permitted". It keeps verdicts from being lost; it is no sandbox. Where the
system takes no filter, things are as they were without one, and the report's environment says so.
"""
from __future__ import annotations

import ctypes
import errno
import platform
import struct
import sys
from collections.abc import Sequence

# The audit number of the architecture, the number of `seccomp`, that of ptrace, which takes the process as its second argument, and
# those of kill, tkill, tgkill, rt_sigqueueinfo, rt_tgsigqueueinfo, pidfd_open, process_vm_readv, process_vm_writev and prlimit64,
# which take it as their first.
_MACHINES = {
    "x86_64": (0xC000003E, 317, 101, (62, 200, 234, 129, 297, 434, 310, 311, 302)),
    "aarch64": (0xC00000B7, 277, 117, (129, 130, 131, 138, 240, 434, 270, 271, 261)),
}
_LOAD, _JUMP_IF_EQUAL, _JUMP, _RETURN = 0x20, 0x15, 0x05, 0x06
_ALLOW, _NOT_PERMITTED = 0x7FFF0000, 0x00050001
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT, _SECOND_ARGUMENT = 0, 4, 16, 24  # offsets of what the filter reads
_NO_NEW_PRIVILEGES, _SET_FILTER, _WITHOUT_MITIGATION = 38, 1, 4


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


def fence(processes: Sequence[int]) -> bool:
    """Keep this process, and all it starts, from signalling these processes and their groups; False where that cannot be."""
    known = _known()
    if known is None:
        return False
    architecture, seccomp, trace, calls = known
    return _install(seccomp, _filter(architecture, trace, calls, [-1, *processes, *(-one for one in processes)]))


def state() -> str:
    """Whether hosts are fenced, for the report. Asked with an unreadable filter, of which a system complains that takes any."""
    known = _known()
    library = ctypes.CDLL(None, use_errno=True)
    if known is not None and library.syscall(known[1], _SET_FILTER, 0, None) != 0 and ctypes.get_errno() == errno.EFAULT:
        return "fenced"
    return "not fenced: the system takes no filter of calls; an implementation that kills other processes may end the run"


def _known() -> tuple[int, int, int, tuple[int, ...]] | None:
    return _MACHINES.get(platform.machine()) if sys.platform == "linux" and sys.maxsize > 2**32 else None


def _install(seccomp: int, instructions: bytes) -> bool:
    code = ctypes.create_string_buffer(instructions, len(instructions))
    program = _Program(len(code) // 8, ctypes.addressof(code))
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) != 0:
        return False
    return any(library.syscall(seccomp, _SET_FILTER, flags, ctypes.byref(program)) == 0  # an older kernel knows no flag
               for flags in (_WITHOUT_MITIGATION, 0))


def _filter(architecture: int, trace: int, calls: Sequence[int], forbidden: Sequence[int]) -> bytes:
    """The instructions: another architecture, another call or another process is allowed."""
    steps = [_step(_LOAD, _ARCHITECTURE), _step(_JUMP_IF_EQUAL, architecture, 1, 0), _step(_RETURN, _ALLOW), _step(_LOAD, _NUMBER)]
    steps += [_step(_JUMP_IF_EQUAL, trace, len(calls) + 3, 0)]  # to where the second argument is read
    steps += [_step(_JUMP_IF_EQUAL, call, len(calls) - place, 0) for place, call in enumerate(calls)]
    steps += [_step(_RETURN, _ALLOW), _step(_LOAD, _FIRST_ARGUMENT), _step(_JUMP, 1), _step(_LOAD, _SECOND_ARGUMENT)]
    steps += [_step(_JUMP_IF_EQUAL, one, len(forbidden) - place, 0) for place, one in enumerate(forbidden)]
    return b"".join([*steps, _step(_RETURN, _ALLOW), _step(_RETURN, _NOT_PERMITTED)])


def _step(code: int, operand: int, if_so: int = 0, if_not: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_so, if_not, operand & 0xFFFFFFFF)
