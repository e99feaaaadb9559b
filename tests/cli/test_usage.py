"""Bad input: one line on stderr that names value, rule and remedy, exit code 2, nothing on stdout, no report."""
from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import KERNELS

Call = Callable[..., tuple[int, str, str]]
EXAMPLE = {"kind": "softmax", "dims": {"C": 3, "B": 2}, "flags": {"axis": "last", "masked": "none"}, "family": "integers",
           "layout": "contiguous", "seed": 0}
CASE = "softmax/rows_sum_to_one[reference-cpu-float32]"
WRONG: dict[str, tuple[list[str], str]] = {
    "unknown command": (["chekc"], "check"),
    "unknown option": (["check", "kernels.py", "--sed", "3"], "--sed"),
    "not a number": (["check", "kernels.py", "--seed", "a"], "--seed"),
    "no target": (["check"], "--all"),
    "target beside --all": (["check", "kernels.py", "--all"], "--all"),
    "profile": (["check", "kernels.py", "--profile", "slow"], "quick"),
    "dtype": (["check", "kernels.py", "--dtype", "int8"], "bfloat16"),
    "device": (["check", "kernels.py", "--device", "tpu"], "cuda"),
    "kind": (["check", "kernels.py", "--kind", "atention"], "attention"),
    "isolate": (["check", "kernels.py", "--isolate", "maybe"], "always"),
    "shard": (["check", "kernels.py", "--shard", "3/2"], "I/N"),
    "seed": (["check", "kernels.py", "--seed", "-1"], "0 or more"),
    "workers": (["check", "kernels.py", "--workers", "0"], "1 or more"),
    "timeout": (["check", "kernels.py", "--timeout", "-1"], "above 0"),
    "not a finite timeout": (["check", "kernels.py", "--timeout", "nan"], "above 0"),
    "no file": (["check", "nothere.py", "--isolate", "never"], "does not exist"),
    "not Python": (["check", "broken.py", "--isolate", "never"], "does not parse"),
    "raises": (["check", "raises.py", "--isolate", "never"], "ZeroDivisionError"),
    "declares nothing": (["check", "empty.py", "--isolate", "never"], "declares nothing"),
    "unknown name": (["check", "kernels.py:nobody", "--isolate", "never"], "right"),
    "unknown convention": (["check", "convention.py", "--isolate", "never"], "empty_row"),
    "built-in name": (["check", "sdppa", "--isolate", "never"], "sdpa"),
    "waivers not there": (["check", "kernels.py", "--waivers", "nothere.json"], "--write-waivers"),
    "waivers no JSON": (["check", "kernels.py", "--waivers", "kernels.py"], "JSON"),
    "waiver without a reason": (["check", "kernels.py", "--waivers", "unfilled.json"], "reason"),
    "only": (["plan", "kernels.py", "--isolate", "never", "--only", "SM-999"], "assay list"),
    "list": (["list", "things"], "properties"),
    "explain": (["explain", "SM-999x", "--no-example"], "list"),
    "report": (["report", "nothere"], "cannot be read"),
    "diff": (["diff", "nothere", "nothere"], "cannot be read"),
    "merge": (["merge", "kernels.py"], "not JSON"),
    "new": (["new", "atention"], "attention"),
    "replay": (["replay", "reference"], "--example"),
    "replay a case": (["replay", "reference", "--only", "x", "--example", "{}"], "id of one case"),
    "no JSON": (["replay", "reference", "--isolate", "never", "--only", CASE, "--example", "{"], "JSON"),
}
EXAMPLES = {
    "letter": ({"dims": {"C": 3, "Z": 2}}, "letter"), "missing letter": ({"dims": {"C": 3}}, "lacks B"),
    "kind": ({"kind": "attention"}, "must be softmax"), "size": ({"dims": {"C": "3", "B": 2}}, "whole number"),
    "huge size": ({"dims": {"C": 10**12, "B": 2}}, "whole number"), "family": ({"family": "odd"}, "normal"),
    "layout": ({"layout": 3}, "contiguous"), "seed": ({"seed": -1}, "0 or more"), "flag": ({"flags": {"axes": 1}}, "axis"),
    "value of a flag": ({"flags": {"axis": 7, "masked": "none"}}, "last"), "more": ({"more": 1}, "more"),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files with something wrong in them."""
    texts = {
        "kernels.py": KERNELS, "broken.py": "def (", "raises.py": "1 / 0", "empty.py": "",
        "convention.py": "import assay\n@assay.implements('softmax', conventions={'empty_rows': 'mean'})\ndef f(x, *, dim=-1): ...",
        "unfilled.json": json.dumps({"waivers": [{"id": "a", "counterexample": EXAMPLE, "status": "fail", "reason": "", "link": "x",
                                                  "expires": "2100-01-01"}]}),
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(assay: Call, arguments: list[str], says: str) -> None:
    """Exit code 2 and one line."""
    code, out, err = assay(*arguments)
    assert (code, out) == (2, ""), err
    assert err.startswith("assay: ") and err.count("\n") == 1 and "Traceback" not in err
    assert says in err


@pytest.mark.parametrize("name", WRONG)
def test_wrong_usage_is_one_line(folder: Path, assay: Call, name: str) -> None:
    refused(assay, *WRONG[name])
    assert not (folder / "assay-report").exists()


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_read_strictly(assay: Call, name: str) -> None:
    changes, says = EXAMPLES[name]
    refused(assay, ["replay", "reference", "--isolate", "never", "--only", CASE, "--example", json.dumps(EXAMPLE | changes)], says)


def test_verbose_shows_where(folder: Path, assay: Call) -> None:
    code, _, err = assay("check", "nothere.py", "--isolate", "never", "--verbose")
    assert code == 2 and "Traceback" in err


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "assay", "check"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "--all" in done.stderr


def test_help_loads_no_torch() -> None:
    program = "import sys; from assay.cli.main import main; code = main(['--help']); print(code, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("0 False\n") and "Example: assay check" in done.stdout


@pytest.mark.parametrize("command", ["check", "list", "plan", "explain", "replay", "doctor", "diff", "merge", "report", "new"])
def test_help_of_each_command_shows_an_example(assay: Call, command: str) -> None:
    code, out, _ = assay(command, "--help")
    assert code == 0 and f"Example: assay {command}" in out


def test_new_writes_an_adapter_that_loads(tmp_path: Path, assay: Call) -> None:
    from assay.contract.kinds import kinds
    from assay.contract.loading import load

    for kind in kinds():
        assert assay("new", kind, "--out", tmp_path)[0] == 0
        if kind not in ("causal_lm", "tokenizer"):
            assert load(str(tmp_path / f"assay_{kind}.py"))[0].name == "mine"
    refused(assay, ["new", "softmax", "--out", str(tmp_path)], "already")
