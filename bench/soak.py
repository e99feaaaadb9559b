"""Does memory stay flat? python bench/soak.py [TARGET] [--minutes 20] [OPTION OF assay check ...]

Runs `assay check TARGET --profile deep` for so long, notes the resident memory of each of its processes every ten seconds, ends
the run by a signal as Ctrl-C would, and prints how much each kind of process grew from the first quarter of the time to the last.
Exit code 1 when any grew by more than a tenth.
"""
from __future__ import annotations

import argparse
import signal
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

PAGE = 4096
GROWTH = 1.1  # of the median of the last quarter over that of the first: what counts as flat


def children(parent: int) -> list[int]:
    """The process and all that come from it."""
    found = [parent]
    for pid in found:
        try:
            found += [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        except OSError:
            continue
    return found


def resident(pid: int) -> int:
    """Bytes in memory, 0 when it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE
    except OSError:
        return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", nargs="?", default="sdpa")
    parser.add_argument("--minutes", type=float, default=20.0)
    asked, more = parser.parse_known_args()
    command = [sys.executable, "-c", "from assay.cli.main import run; run()", "check", asked.target, "--profile", "deep", "--json",
               *more]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    seen: dict[int, list[int]] = defaultdict(list)
    ends = time.monotonic() + 60 * asked.minutes
    while time.monotonic() < ends and running.poll() is None:
        for pid in children(running.pid):
            seen[pid].append(resident(pid))
        time.sleep(10)
    running.send_signal(signal.SIGINT)
    print(running.communicate()[0][:2000])
    worst = 0.0
    for pid, sizes in seen.items():
        quarter = len(sizes) // 4
        if quarter < 3:
            continue  # a short life: one of the hosts that a failure or a second instance needs
        first, last = (statistics.median(part) for part in (sizes[quarter // 2:quarter + quarter // 2], sizes[-quarter:]))
        worst = max(worst, last / first)
        print(f"process {pid}: {len(sizes)} readings, {first / 2**20:.0f} MiB, then {last / 2**20:.0f} MiB: {last / first:.3f}")
    print(f"largest growth {worst:.3f}, flat is at most {GROWTH}")
    return int(worst > GROWTH)


if __name__ == "__main__":
    raise SystemExit(main())
