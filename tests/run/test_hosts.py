"""What an implementation does to its own process ends there."""
from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from assay.errors import HostCrashedError, HostError, HostTimeoutError, NotClaimedError, UsageError
from assay.hosting import RESULT_BEFORE, Answer, Call
from assay.run import fence
from assay.run.hosts import RemoteHost
from assay.run.zygote import FOR_HOSTS
from assay.run.zygote_process import Zygote

KERNELS = str(Path(__file__).with_name("hostile_kernels.py"))
# Where the system takes no filter of calls, the test would end the processes of all the others.
FENCED = pytest.mark.skipif(fence.state() != "fenced", reason=fence.state())


@pytest.fixture
def host(zygote: Zygote) -> Iterator[RemoteHost]:
    made = RemoteHost(zygote.address, KERNELS, timeout=30)
    yield made
    made.close()


def _call(name: str, x: torch.Tensor, **more: object) -> Call:
    return Call("softmax", name, {"x": x, "dim": -1}, **more)  # type: ignore[arg-type]


def _gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def _soon(condition: Callable[[], bool]) -> bool:
    """Whether it comes true; gives up after a while, so that a failing test ends."""
    for _ in range(1000):
        if condition():
            return True
        time.sleep(0.01)
    return False


def _left_behind() -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if b"assay-left-behind" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def test_answers_are_those_of_a_direct_call(host: RemoteHost, x: torch.Tensor) -> None:
    answer = host.call(_call("good", x, wrt=("x",), upstream=(torch.ones(4, 8),)))
    leaf = x.clone().requires_grad_()
    direct = torch.softmax(leaf, -1)
    assert torch.equal(answer.outputs[0], direct.detach())
    assert torch.equal(answer.gradients["x"], torch.autograd.grad(direct, leaf, torch.ones(4, 8))[0])  # type: ignore[arg-type]
    assert (answer.mutated, answer.guards_broken, answer.state, answer.refusal) == ((), (), (), None)


@pytest.mark.parametrize(("name", "said"), [
    ("abort", "killed by SIGABRT"), ("exit_0", "exited with code 0"), ("exit_3", "exited with code 3"),
    ("kill_self", "killed by SIGKILL"),
])
def test_a_death_is_a_crash_that_says_how_and_the_next_call_gets_a_new_host(
        host: RemoteHost, x: torch.Tensor, name: str, said: str) -> None:
    with pytest.raises(HostCrashedError, match=f"{said} inside the call of {name}"):
        host.call(_call(name, x))
    assert host.call(_call("good", x)).refusal is None
    assert host.started == 2


def test_abort_leaves_the_stack_in_the_tail(host: RemoteHost, x: torch.Tensor) -> None:
    with pytest.raises(HostCrashedError) as caught:
        host.call(_call("abort", x))
    assert "hostile_kernels.py" in caught.value.stderr_tail


@pytest.mark.parametrize("name", ["loop", "stop_self"])
def test_a_hang_is_a_timeout_and_ends_the_process(zygote: Zygote, x: torch.Tensor, name: str) -> None:
    host = RemoteHost(zygote.address, KERNELS, timeout=30)
    host.describe()
    pid = host.pid
    host._timeout = 0.3
    with pytest.raises(HostTimeoutError, match="no answer within"):
        host.call(_call(name, x))
    assert pid is not None
    assert _soon(lambda: _gone(pid))


@pytest.mark.parametrize(("name", "kind", "not_implemented", "out_of_memory"), [
    ("huge", "RuntimeError", False, True), ("rude", "Rude", False, False), ("sys_exit", "SystemExit", False, False),
    ("interrupt", "KeyboardInterrupt", False, False), ("not_implemented", "NotImplementedError", True, False),
    ("torch_not_implemented", "RuntimeError", True, False),
])
def test_what_is_raised_is_a_refusal(host: RemoteHost, x: torch.Tensor, name: str, kind: str, not_implemented: bool,
                                     out_of_memory: bool) -> None:
    refusal = host.call(_call(name, x)).refusal
    assert refusal is not None
    assert (refusal.type, refusal.not_implemented, refusal.out_of_memory) == (kind, not_implemented, out_of_memory)
    assert "hostile_kernels.py:" in refusal.where
    assert host.started == 1


def test_a_long_message_is_cut_and_printable(host: RemoteHost, x: torch.Tensor) -> None:
    refusal = host.call(_call("long_message", x)).refusal
    assert refusal is not None
    assert len(refusal.message) == 2000
    assert refusal.message.startswith("red xxx")


@pytest.mark.parametrize(("name", "said"), [
    ("leaves_thread", "running thread"), ("disables_grad", "gradients are recorded"),
    ("replaces_torch", "torch.softmax"),
])
def test_breaches_of_global_state_are_told_and_undone(host: RemoteHost, x: torch.Tensor, name: str, said: str) -> None:
    answer = host.call(_call(name, x))
    assert [said in sentence for sentence in answer.state] == [True]
    assert host.call(_call("good", x)).state == ()


@pytest.mark.parametrize("name", ["disables_grad", "replaces_torch"])
def test_a_breach_is_told_each_time_since_it_was_undone(host: RemoteHost, x: torch.Tensor, name: str) -> None:
    first = host.call(_call(name, x))
    assert host.call(_call(name, x)).state == first.state != ()
    assert host.started == 1


def test_what_one_leaves_behind_is_not_held_against_another(host: RemoteHost, x: torch.Tensor) -> None:
    assert ["random generator" in sentence for sentence in host.call(_call("stirs_in_a_thread", x)).state] == [True]
    assert host.call(_call("good", x)).state == ()
    assert host.started == 2


ONCE = """
import pathlib
import torch, assay
first = not pathlib.Path(__file__ + ".seen").exists()
pathlib.Path(__file__ + ".seen").touch()
%s
@assay.implements("softmax", name="once" if first else "other")
def once(x, *, dim=-1):
    return torch.softmax(x, dim)
"""


@pytest.mark.parametrize(("line", "said"), [
    ("first or 1 / 0", "loaded before, and cannot be now: .*ZeroDivisionError"), ("", "declares no softmax 'once' any more"),
])
def test_a_file_that_loads_once_is_a_crash_and_no_fault_of_the_harness(
        zygote: Zygote, x: torch.Tensor, tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "once.py"
    path.write_text(ONCE % line)
    planned, judged = (RemoteHost(zygote.address, str(path), timeout=30, loaded=loaded) for loaded in (False, True))
    planned.describe()
    with pytest.raises(HostCrashedError, match=said):
        judged.call(_call("once", x))
    for host in (planned, judged):
        host.close()


def test_a_thread_does_not_keep_the_host_alive(host: RemoteHost, x: torch.Tensor) -> None:
    host.call(_call("leaves_thread", x))
    pid = host.pid
    host.close()
    assert pid is not None
    assert _soon(lambda: _gone(pid))


def test_changed_inputs_are_told(host: RemoteHost, x: torch.Tensor) -> None:
    assert host.call(_call("mutates", x)).mutated == ("x",)


def test_shared_memory_is_told(host: RemoteHost, x: torch.Tensor) -> None:
    facts = host.call(_call("returns_input", x)).facts[0]
    assert facts is not None
    assert facts.shares_memory_with == ("x",)


def test_unwritten_output_shows(host: RemoteHost, x: torch.Tensor) -> None:
    out = host.call(_call("leaves_unwritten", x, fill_empty=True)).outputs[0]
    assert bool(out[..., -1].isnan().all())
    assert not bool(out[..., :-1].isnan().any())


def test_a_flood_of_output_delays_nothing_and_only_its_end_is_kept(host: RemoteHost, x: torch.Tensor) -> None:
    answer = host.call(_call("flood", x))
    assert answer.refusal is None
    assert host.call(_call("good", x)).refusal is None


def test_a_copy_of_the_host_does_not_answer(host: RemoteHost, x: torch.Tensor) -> None:
    for _ in range(3):
        assert torch.equal(host.call(_call("forks_and_returns", x)).outputs[0], torch.softmax(x, -1))


@pytest.mark.parametrize("name", ["closes_everything", "writes_everywhere"])
def test_tampering_with_the_connection_is_a_crash(host: RemoteHost, x: torch.Tensor, name: str) -> None:
    with pytest.raises(HostError):
        host.call(_call(name, x))
    assert host.call(_call("good", x)).refusal is None


def test_a_keyword_that_is_not_claimed_is_refused(zygote: Zygote, x: torch.Tensor, tmp_path: Path) -> None:
    target = _file(tmp_path, "@assay.implements('softmax', name='one')\ndef one(x): return torch.softmax(x, -1)")
    host = RemoteHost(zygote.address, target)
    assert host.call(_call("one", x)).refusal is None
    with pytest.raises(NotClaimedError, match="dim=0"):
        host.call(Call("softmax", "one", {"x": x, "dim": 0}))
    host.close()


def _file(folder: Path, body: str) -> str:
    path = folder / "kernels.py"
    path.write_text(f"import os, time\nimport torch\nimport assay\n{body}\n")
    return str(path)


def test_an_import_that_raises_is_usage(zygote: Zygote, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nowhere"):
        RemoteHost(zygote.address, _file(tmp_path, "import nowhere")).describe()


def test_an_import_that_dies_is_a_crash(zygote: Zygote, tmp_path: Path) -> None:
    with pytest.raises(HostCrashedError, match=r"exited with code 0 while .* was imported"):
        RemoteHost(zygote.address, _file(tmp_path, "os._exit(0)")).describe()


def test_an_import_that_hangs_is_a_timeout(zygote: Zygote, tmp_path: Path) -> None:
    with pytest.raises(HostTimeoutError, match="imported"):
        RemoteHost(zygote.address, _file(tmp_path, "time.sleep(3600)"), timeout=0.3).describe()


PARENT = """
import sys, torch
from assay.hosting import Call
from assay.run.hosts import RemoteHost
from assay.run.zygote import FOR_HOSTS
from assay.run.zygote_process import Zygote
zygote = Zygote(FOR_HOSTS)
idle, busy = (RemoteHost(zygote.address, sys.argv[1], timeout=600) for _ in range(2))
answer = idle.call(Call("softmax", "leaves_process", {"x": torch.ones(2, 2)}))
busy.describe()
print(zygote.pid, idle.pid, busy.pid, zygote.address, flush=True)
busy.call(Call("softmax", "loop", {"x": torch.ones(2, 2)}))
"""


def test_nothing_is_left_after_the_parent_is_killed() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, KERNELS], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    *pids, address = parent.stdout.readline().split()
    assert _soon(lambda: len(_left_behind()) == 2)  # one in the host's process group, one in a session of its own
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    assert _soon(lambda: all(_gone(int(pid)) for pid in pids))
    assert _soon(lambda: not Path(address).parent.exists())
    assert _soon(lambda: not _left_behind())


def test_nothing_is_left_after_the_zygote_is_killed(x: torch.Tensor) -> None:
    own = Zygote(FOR_HOSTS)
    host = RemoteHost(own.address, KERNELS)
    assert isinstance(host.call(_call("good", x)), Answer)
    pid = host.pid
    os.kill(own.pid, signal.SIGKILL)
    assert pid is not None
    assert _soon(lambda: _gone(pid))
    own.close()


@FENCED
@pytest.mark.parametrize("name", ["kills_its_parent", "stops_its_parent", "traces_its_parent", "limits_its_parent"])
def test_the_processes_of_the_harness_cannot_be_signalled(host: RemoteHost, x: torch.Tensor, name: str) -> None:
    answer = host.call(_call(name, x))
    assert answer.refusal is not None
    assert answer.refusal.type == "PermissionError"
    assert host.call(_call("kills_a_child", x)).refusal is None
    assert host.started == 1


REFUSING = """
import sys, torch
from assay.hosting import Call
from assay.run import fence
from assay.run.hosts import RemoteHost
from assay.run.zygote import FOR_HOSTS
from assay.run.zygote_process import Zygote
architecture, seccomp, trace, _ = fence._known()
assert fence._install(seccomp, fence._filter(architecture, trace, (seccomp,), (fence._SET_FILTER,)))  # as a container may
assert not fence.fence([1]) and fence.state().startswith("not fenced")
with Zygote(FOR_HOSTS) as zygote:
    host = RemoteHost(zygote.address, sys.argv[1], timeout=30)
    print(tuple(host.call(Call("softmax", "good", {"x": torch.ones(2, 3), "dim": -1})).outputs[0].shape))
"""


@FENCED
def test_hosts_work_where_no_filter_is_taken_and_the_report_says_so() -> None:
    assert fence.state() == "fenced"
    done = subprocess.run([sys.executable, "-c", REFUSING, KERNELS], capture_output=True, text=True, timeout=100, check=False)
    assert done.stdout.strip() == "(2, 3)", done.stderr


def test_an_unknown_machine_has_no_fence_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fence.platform, "machine", lambda: "riscv64")
    assert not fence.fence([1]) and fence.state().startswith("not fenced")


def test_a_buffer_handed_out_again_is_noticed(host: RemoteHost, x: torch.Tensor) -> None:
    assert host.call(_call("same_buffer", x)).mutated == ()
    assert host.call(_call("good", x + 1)).mutated == ()
    assert host.call(_call("same_buffer", 2 * x)).mutated == (RESULT_BEFORE,)
    assert host.call(_call("same_buffer", 2 * x)).mutated == ()
