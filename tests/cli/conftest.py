"""Small implementations of softmax in files, and a way to call the command line in this process."""
from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from assay.cli.main import main

KERNELS = '''
import torch, assay

@assay.implements("softmax", name="right")
def right(x, *, dim=-1):
    return torch.softmax(x, dim)

@assay.implements("softmax", name="wrong")
def wrong(x, *, dim=-1):
    return torch.softmax(x, -1)

def undeclared(x, *, dim=-1):
    return 2 * torch.softmax(x, dim)
'''
NARROW = ("--profile", "quick", "--dtype", "float32", "--only", "SM-1", "--workers", "1", "--quiet")


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with a right, a wrong and an undeclared implementation; the working directory is its folder."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "kernels.py"
    file.write_text(KERNELS)
    return file


@pytest.fixture
def assay(capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Call the command line here: exit code, stdout, stderr."""
    def call(*arguments: object) -> tuple[int, str, str]:
        code = main([str(one) for one in arguments])
        out, err = capfd.readouterr()
        return code, out, err
    return call


def lines(report: Path) -> list[dict[str, Any]]:
    """The events of a report.jsonl."""
    return [json.loads(line) for line in report.read_text().splitlines()]
