"""`assay replay --script`: a script of torch alone that shows the failure, and stops showing it once that is mended."""
from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import NARROW

Call = Callable[..., tuple[int, str, str]]
MORE = '''
import torch, assay

@assay.implements("softmax", name="no_gradient")
def no_gradient(x, *, dim=-1):
    return torch.softmax(x.detach(), dim) + 0 * x

class Turn:
    def __init__(self):
        self.turn = 0
    def __call__(self, x, *, dim=-1):
        self.turn += 1
        return torch.softmax(x, dim) * (1 - 2**-22 * (self.turn % 2))

assay.implements("softmax", name="turns")(Turn())

@assay.implements("softmax", name="raises")
def raises(x, *, dim=-1):
    if x.shape[0] > 1:
        raise ValueError("one row at most")
    return torch.softmax(x, dim)

@assay.implements("softmax", name="flat")
def flat(x, *, dim=-1):
    return torch.softmax(x, dim).reshape(-1)

@assay.implements("softmax", name="wide")
def wide(x, *, dim=-1):
    return torch.softmax(x, dim).double()

@assay.implements("softmax", name="writes")
def writes(x, *, dim=-1):
    out = torch.softmax(x, dim)
    x.detach().mul_(2)
    return out

@assay.implements("softmax", name="draws")
def draws(x, *, dim=-1):
    torch.rand(1)
    return torch.softmax(x, dim)
'''
MENDED = (("if x.shape[0] > 1:", "if False:"), ("(x, dim).reshape(-1)", "(x, dim)"), ("(x, dim).double()", "(x, dim)"),
          ("x.detach().mul_(2)", "pass"), ("(x.detach(), dim) + 0 * x", "(x, dim)"), ("2**-22 * (self.turn % 2)", "0"))


def scripted(assay: Call, tmp_path: Path, target: str, only: str) -> Path:
    """Check, then write the script of the one counterexample."""
    code, _, err = assay("check", target, *NARROW[:4], "--only", only, "--workers", "1", "--quiet", "--isolate", "never",
                         "--out", tmp_path / "report")
    assert code == 1, err
    code, _, err = assay("replay", tmp_path / "report", "--isolate", "never", "--script", tmp_path / "shown.py")
    assert code == 1 and "wrote" in err
    return tmp_path / "shown.py"


def ran(script: Path) -> tuple[int, str]:
    """Exit code and output, where any import of assay would fail."""
    blocked = script.parent / "blocked" / "assay"
    blocked.mkdir(parents=True, exist_ok=True)
    (blocked / "__init__.py").write_text("raise ImportError('no assay here')")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120, check=False, cwd=script.parent,
                          env={**os.environ, "PYTHONPATH": str(blocked.parent), "OMP_NUM_THREADS": "1"})
    return done.returncode, done.stdout + done.stderr


def test_it_shows_the_failure_and_no_more_once_that_is_mended(kernels: Path, assay: Call, tmp_path: Path) -> None:
    script = scripted(assay, tmp_path, "kernels.py:wrong", "softmax/output_is_the_formula")
    code, out = ran(script)
    assert code == 1 and "expected" in out and "reproduced" in out, out
    kernels.write_text(kernels.read_text().replace("torch.softmax(x, -1)", "torch.softmax(x, dim)"))
    code, out = ran(script)
    assert code == 0 and "not reproduced" in out, out


@pytest.mark.parametrize(("name", "only", "says"), [
    ("no_gradient", "softmax/gradient_is_the_formula", "gradient of x"),
    ("raises", "softmax/output_is_the_formula", "raised ValueError: one row at most"),
    ("flat", "softmax/output_is_the_formula", "got shape (1,), expected (1, 1)"),
    ("wide", "softmax/results_have_the_right_form", "together the calls give the same results"),
    ("writes", "softmax/inputs_are_left_unchanged", "changed its argument x"),
    ("turns", "softmax/same_call_gives_same_result", "together the calls give the same results"),
])
def test_gradients_exceptions_and_relations_are_shown_too(
    kernels: Path, assay: Call, tmp_path: Path, name: str, only: str, says: str,
) -> None:
    (tmp_path / "more.py").write_text(MORE)
    script = scripted(assay, tmp_path, f"more.py:{name}", only)
    code, out = ran(script)
    assert code == 1 and says in out, out
    mended = MORE
    for old, new in MENDED:
        assert mended.count(old) == 1
        mended = mended.replace(old, new)
    (tmp_path / "more.py").write_text(mended)
    assert ran(script)[0] == 0
    (tmp_path / "more.py").unlink()
    code, out = ran(script)
    assert code == 2 and "cannot be loaded" in out


def test_what_no_result_shows_is_refused(kernels: Path, assay: Call, tmp_path: Path) -> None:
    (tmp_path / "more.py").write_text(MORE)
    only = "softmax/global_state_is_left_alone"
    assert assay("check", "more.py:draws", *NARROW[:4], "--only", only, "--workers", "1", "--quiet", "--isolate", "never",
                 "--out", tmp_path / "report")[0] == 1
    code, _, err = assay("replay", tmp_path / "report", "--isolate", "never", "--script", tmp_path / "shown.py")
    assert code == 2 and "what failed is not in the results" in err and not (tmp_path / "shown.py").exists()


def test_a_call_that_kills_its_process_kills_the_script(kernels: Path, assay: Call, tmp_path: Path) -> None:
    (tmp_path / "dies.py").write_text("""
import os, torch, assay
@assay.implements("softmax", name="dies")
def dies(x, *, dim=-1):
    os.abort() if x.shape[-1] > 4 else None
    return torch.softmax(x, dim)
""")
    only = "softmax/output_is_the_formula"
    assert assay("check", "dies.py", *NARROW[:4], "--only", only, "--workers", "1", "--quiet", "--out", tmp_path / "report")[0] == 1
    code, _, err = assay("replay", tmp_path / "report", "--script", tmp_path / "shown.py")
    assert code == 1 and "wrote" in err
    assert ran(tmp_path / "shown.py")[0] not in (0, 1)


def test_what_cannot_be_written_is_refused_in_one_line(kernels: Path, assay: Call, tmp_path: Path) -> None:
    script = scripted(assay, tmp_path, "kernels.py:wrong", "softmax/output_is_the_formula")
    kernels_before = kernels.read_text()
    report = str(tmp_path / "report")
    for given, said in (
        ((report, "--script", "kernels.py"), "is there already"), ((report, "--script", "no/where.py"), "cannot be written"),
        ((report, "--only", "x", "--script", "new.py"), "must be a case of the report"),
        ((report, "--example", "{}", "--script", "new.py"), "example="),
        (("kernels.py:wrong", "--script", "new.py"), "--only CASE"),
    ):
        code, _, err = assay("replay", *given, "--isolate", "never")
        assert code == 2 and said in err and len(err.strip().splitlines()) == 1, err
    assert kernels.read_text() == kernels_before and not (tmp_path / "new.py").exists()
    code, _, err = assay("replay", report, "--isolate", "never", "--script", script)
    assert code == 1 and "wrote" in err
