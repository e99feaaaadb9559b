"""Lays out the packages as a tree of links, for tools that look for `assay/spec` where the checkout has `spec`.

    python .ci/tree.py build/tree        # build/tree/assay/..., read from pyproject.toml
"""
from __future__ import annotations

import shutil
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def package_dirs() -> dict[str, str]:
    """The map of package name to folder, as pyproject.toml has it."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return dict(settings["tool"]["setuptools"]["package-dir"])


def lay_out(tree: Path) -> Path:
    """Make `tree/assay` anew: links to all that `harness/` holds, and one link per folder mapped below it."""
    folders = package_dirs()
    package = tree / "assay"
    shutil.rmtree(package, ignore_errors=True)
    package.mkdir(parents=True)
    for entry in sorted((ROOT / folders.pop("assay")).iterdir()):
        if entry.name != "__pycache__":
            (package / entry.name).symlink_to(entry)
    for name, folder in folders.items():
        (package / name.removeprefix("assay.")).symlink_to(ROOT / folder)
    return package


if __name__ == "__main__":
    print(lay_out(Path(sys.argv[1]).resolve()))
