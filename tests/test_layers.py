"""The layers of docs/architecture.md hold: import-linter reads the contracts in pyproject.toml."""
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages as links under their own names, which is where import-linter looks for them."""
    folder = tmp_path_factory.mktemp("tree")
    subprocess.run([sys.executable, ROOT / ".ci" / "tree.py", folder], check=True, capture_output=True)
    return folder


def lint(tree: Path, settings: Path) -> subprocess.CompletedProcess[str]:
    """Run import-linter on the tree with the contracts of `settings`."""
    command = [Path(sys.executable).with_name("lint-imports"), settings, "--no-cache"]
    environment = {**os.environ, "PYTHONPATH": str(tree), "COLUMNS": "200", "NO_COLOR": "1"}
    return subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)


def test_a_file_imports_from_its_own_layer_downward_only(tree: Path) -> None:
    done = lint(tree, ROOT / "pyproject.toml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 kept, 0 broken" in done.stdout, done.stdout


def test_the_contracts_can_fail(tree: Path) -> None:
    """A file of the lowest layer that imports the runner is found."""
    planted = tree / "assay" / "axes.py"
    planted.unlink()
    planted.write_text("import assay.run.events\n")
    try:
        done = lint(tree, ROOT / "pyproject.toml")
    finally:
        planted.unlink()
        planted.symlink_to(ROOT / "harness" / "axes.py")
    assert done.returncode == 1, done.stdout
    assert "assay.axes -> assay.run.events" in done.stdout
