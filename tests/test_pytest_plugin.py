"""The plugin and `assay.conformance`, in strangers' repositories with folders named as ours."""
from __future__ import annotations

import os
import site
import subprocess
import sys
import venv
from pathlib import Path

import pytest

MINE = '''
import torch, assay
{decorator}
def mine(x, *, dim=-1):
    return torch.softmax(x, {dim})
'''
DECORATOR = "@assay.implements('softmax', name='mine')"
NARROW = ["--dtype", "float32", "--profile", "quick", "--only", "SM-1"]


def run(folder: Path, *arguments: str) -> tuple[int, str]:
    """pytest in a process of its own: exit code and output."""
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", *arguments], cwd=folder, capture_output=True, text=True,
                          env={**os.environ, "OMP_NUM_THREADS": "1"})
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def stranger(tmp_path: Path) -> Path:
    """A repository with folders and options of the same names as ours."""
    for name in ("spec", "impls"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
    (tmp_path / "spec" / "test_theirs.py").write_text("def test_theirs(device):\n    assert device == 'theirs'\n")
    (tmp_path / "conftest.py").write_text(
        "import pytest\ndef pytest_addoption(parser):\n    parser.addoption('--device', default='theirs')\n"
        "@pytest.fixture\ndef device(request):\n    return request.config.getoption('--device')\n")
    (tmp_path / "impls" / "kernels.py").write_text(MINE.format(decorator=DECORATOR, dim="dim"))
    (tmp_path / "impls" / "wrong.py").write_text(MINE.format(decorator=DECORATOR, dim="-1"))
    options = "profile='quick', dtypes='float32', only='SM-1'"
    (tmp_path / "test_mine.py").write_text(
        MINE.format(decorator="", dim="dim") + f"test_mine = assay.conformance('softmax', mine, {options})\n")
    (tmp_path / "test_wrong.py").write_text(
        MINE.format(decorator="", dim="-1") + f"@assay.parametrize([mine], kind='softmax', {options})\n"
        "def test_wrong(result, tmp_path):\n    assert tmp_path.exists()\n")
    return tmp_path


def test_conformance_in_a_strangers_repository(stranger: Path) -> None:
    code, out = run(stranger)
    assert code == 1 and "1 failed, 2 passed" in out
    assert "sums to 1" in out and "Traceback" not in out and "harness/" not in out
    assert "reproduce: pytest 'test_wrong.py::test_wrong[rows_sum_to_one-cpu-float32]'" in out
    code, out = run(stranger, "--lf")
    assert code == 1 and "1 failed" in out and "passed" not in out
    code, out = run(stranger, "-k", "rows_sum_to_one and not wrong")
    assert code == 0 and "1 passed" in out


def test_impl_elsewhere_through_pyargs(stranger: Path) -> None:
    """Their own --device stays theirs; ours has the long name."""
    code, out = run(stranger, "--pyargs", "assay.spec", "--impl", "impls/kernels.py", "--assay-device", "cpu", *NARROW)
    assert code == 0 and "1 passed" in out, out


def test_impl_from_a_clone_by_node_id(stranger: Path) -> None:
    clone, case = Path(__file__).resolve().parent.parent, "spec/softmax.py::rows_sum_to_one[mine-cpu-float32]"
    code, out = run(clone, case, "--impl", str(stranger / "impls" / "wrong.py"), "--profile", "quick", "-p", "no:cacheprovider")
    assert code == 1 and f"FAILED {case}" in out and "sums to 1" in out, out


def test_short_options_exist_with_impl_only(stranger: Path) -> None:
    code, out = run(stranger, "--profile", "quick", "test_mine.py")
    assert code == 4 and "unrecognized arguments" in out
    code, out = run(stranger, "--pyargs", "assay.spec", "--impl", "nothere.py", *NARROW)
    assert code == 4 and "nothere.py does not exist" in out and "Traceback" not in out


def test_gateways_to_another_environment_share_the_cases(stranger: Path) -> None:
    """xdist's gateways start what interpreter they are told, here or behind ssh: two environments share one specification."""
    venv.create(stranger / "other", with_pip=False)
    other = stranger / "other" / "bin" / "python"
    purelib = subprocess.run([other, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], capture_output=True,
                             text=True, check=True).stdout.strip()
    lines = [f"import site; site.addsitedir({place!r})" for place in site.getsitepackages()]
    Path(purelib, "shared.pth").write_text("\n".join(lines) + "\n")
    code, out = run(stranger, "--pyargs", "assay.spec", "--impl", "impls/wrong.py", "--dtype", "float32", "--profile", "quick",
                    "--only", "SM-1", "--only", "SM-2", "-vv", "--dist", "load", "--tx", f"popen//python={other}", "--tx", "popen")
    assert code == 1 and "created: 2/2 workers" in out, out
    assert "FAILED spec/softmax.py::rows_sum_to_one[mine-cpu-float32]" in out, out
    assert {"[gw0]", "[gw1]"} <= {line.split()[0] for line in out.splitlines() if "%]" in line}, out
