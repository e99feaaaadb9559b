"""Implementations that misbehave, one each: loaded by hosts, never imported by a test."""
import ctypes
import os
import resource
import signal
import subprocess
import sys
import threading
import time

import torch

import assay

_kept = []


class Rude(BaseException):
    pass


def _declare(function):
    return assay.implements("softmax", name=function.__name__)(function)


@_declare
def good(x, *, dim=-1):
    return torch.softmax(x, dim)


@_declare
def abort(x, *, dim=-1):
    os.abort()


@_declare
def exit_0(x, *, dim=-1):
    os._exit(0)


@_declare
def exit_3(x, *, dim=-1):
    os._exit(3)


@_declare
def sys_exit(x, *, dim=-1):
    sys.exit(0)


@_declare
def kill_self(x, *, dim=-1):
    os.kill(os.getpid(), signal.SIGKILL)


@_declare
def stop_self(x, *, dim=-1):
    os.kill(os.getpid(), signal.SIGSTOP)


@_declare
def loop(x, *, dim=-1):
    while True:
        pass


@_declare
def huge(x, *, dim=-1):
    return torch.softmax(x + torch.zeros(50_000_000_000)[0], dim)


@_declare
def rude(x, *, dim=-1):
    raise Rude("no")


@_declare
def interrupt(x, *, dim=-1):
    raise KeyboardInterrupt


@_declare
def long_message(x, *, dim=-1):
    raise ValueError("\x1b[31mred\x1b[0m\x07" + "x" * 10_000_000)


@_declare
def not_implemented(x, *, dim=-1):
    raise NotImplementedError


@_declare
def torch_not_implemented(x, *, dim=-1):
    raise RuntimeError('"softmax_kernel" not implemented for \'Half\'')


@_declare
def leaves_thread(x, *, dim=-1):
    if not _kept:
        _kept.append(threading.Thread(target=time.sleep, args=(3600,)))
        _kept[0].start()
    return torch.softmax(x, dim)


def _stir():
    while True:
        torch.rand(1)
        time.sleep(0.001)


@_declare
def stirs_in_a_thread(x, *, dim=-1):
    if threading.active_count() == 1:
        threading.Thread(target=_stir, daemon=True).start()
    time.sleep(0.05)
    return torch.softmax(x, dim)


@_declare
def disables_grad(x, *, dim=-1):
    y = torch.softmax(x, dim)
    torch.set_grad_enabled(False)
    return y


@_declare
def mutates(x, *, dim=-1):
    y = torch.softmax(x, dim)
    with torch.no_grad():
        x.copy_(y)
    return y


@_declare
def flood(x, *, dim=-1):
    line = "x" * 65535
    for _ in range(1000):
        print(line)
    print("the end", file=sys.stderr)
    return torch.softmax(x, dim)


@_declare
def leaves_process(x, *, dim=-1):
    for session in (False, True):
        subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(3600)", "assay-left-behind"],
                         start_new_session=session)
    return torch.softmax(x, dim)


@_declare
def forks_and_returns(x, *, dim=-1):
    os.fork()
    return torch.softmax(x, dim)


@_declare
def closes_everything(x, *, dim=-1):
    os.closerange(3, 1000)
    return torch.softmax(x, dim)


@_declare
def writes_everywhere(x, *, dim=-1):
    for descriptor in range(3, 50):
        try:
            os.write(descriptor, b"HTTP/1.1 200 OK\r\n\r\nsurely right, all of it")
        except OSError:
            continue
    return torch.softmax(x, dim)


@_declare
def replaces_torch(x, *, dim=-1):
    torch.softmax = lambda x, dim: x
    return torch.nn.functional.softmax(x, dim)


@_declare
def returns_input(x, *, dim=-1):
    return x


@_declare
def leaves_unwritten(x, *, dim=-1):
    y = torch.empty_like(x)
    y[..., :-1] = torch.softmax(x, dim)[..., :-1]
    return y


@_declare
def kills_its_parent(x, *, dim=-1):
    os.kill(os.getppid(), signal.SIGKILL)


@_declare
def stops_its_parent(x, *, dim=-1):
    os.kill(os.getppid(), signal.SIGSTOP)


@_declare
def traces_its_parent(x, *, dim=-1):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(16, os.getppid(), 0, 0) != 0:  # PTRACE_ATTACH, which stops it
        raise PermissionError(ctypes.get_errno(), "ptrace")


@_declare
def limits_its_parent(x, *, dim=-1):
    resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (3, 3))


@_declare
def kills_a_child(x, *, dim=-1):
    subprocess.Popen(["sleep", "100"]).kill()
    return torch.softmax(x, dim)


_buffers = {}


@_declare
def same_buffer(x, *, dim=-1):
    buffer = _buffers.setdefault(x.shape, torch.empty_like(x))
    return buffer.copy_(torch.softmax(x, dim))
