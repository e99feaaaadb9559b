"""The zygote as its parent sees it. Imports no torch: so a run can start it first, and both import torch at the same time."""
from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from assay.run.zygote import FOR_HOSTS

FOR_JUDGES = ("hypothesis", "assay.run.judging")
# torch keeps a kernel compiled for each of the last 1024 shapes of products in bfloat16, half a megabyte each, in two caches;
# examples hardly ever share a shape, so judges and hosts grew to twice their size.
FEW_KERNELS = {"LRU_CACHE_CAPACITY": "16", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "16"}


STARTS = 2  # what ends a zygote twice would end it again
DYING = 1.0  # seconds that its parent gives a process whose connections broke to be gone


class Zygote:
    """The zygote process of a run. Starts at once, in the background; a context manager; judges and hosts need its `address`.

    starts: how often it was started; more than once where somebody ended it (`revive`).
    """

    def __init__(self, preload: Sequence[str] = FOR_HOSTS + FOR_JUDGES) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="assay-", dir=_short_folder(), ignore_cleanup_errors=True)
        self.address = os.path.join(self._folder.name, "zygote")
        self._preload, self._lock, self.starts = tuple(preload), threading.Lock(), 1
        self._closed = False
        self._process = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(self.address)
            listener.listen(128)
            return subprocess.Popen(
                [sys.executable, "-m", "assay.run.zygote", self.address, str(listener.fileno()), *self._preload],
                stdin=subprocess.PIPE, stdout=2, pass_fds=(listener.fileno(),), start_new_session=True,
                env={**FEW_KERNELS, **os.environ, "OMP_NUM_THREADS": "1",
                     "HYPOTHESIS_STORAGE_DIRECTORY": os.path.join(self._folder.name, "hypothesis")})

    def revive(self, known: int) -> bool:
        """Whether another was started since there were `known` starts: by somebody else, or now, where this one has ended."""
        with self._lock:
            if not self._closed and self.starts == known and known < STARTS and self._has_ended():
                os.unlink(self.address)
                self._process, self.starts = self._started(), known + 1
            return self.starts > known

    def _has_ended(self) -> bool:
        try:
            self._process.wait(DYING)
        except subprocess.TimeoutExpired:
            return False
        return True

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def close(self) -> None:
        """End the zygote and with it every judge and host."""
        with self._lock:
            self._closed = True
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(0.2 if self._is_childless() else 10)
        except subprocess.TimeoutExpired:  # its children die with it all the same: PR_SET_PDEATHSIG
            self._process.kill()
            self._process.wait()
        self._folder.cleanup()

    def _is_childless(self) -> bool:
        """Whether it has forked nothing yet: then it may still be importing, and need not be waited for."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        return children.exists() and not children.read_text().strip()

    def __enter__(self) -> Zygote:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()


def zygote_needed(isolate: str, workers: int | None) -> bool:
    """Whether a run needs one: in this process alone (which is the default for "never") there is neither host nor judge to fork."""
    return isolate != "never" or workers not in (None, 1)


def _short_folder() -> str | None:
    """A folder whose paths fit into the 108 bytes of a Unix socket's address."""
    return None if len(tempfile.gettempdir()) < 60 else "/tmp"
