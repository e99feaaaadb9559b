"""What is installed: the package list is complete, the wheel claims one name, and importing it is cheap."""
from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]


def packages_on_disk() -> set[str]:
    """Every folder with an `__init__.py` below a mapped folder, under the name that the map gives it."""
    found = set()
    for name, folder in SETTINGS["package-dir"].items():
        for init in (ROOT / folder).rglob("__init__.py"):
            inner = init.parent.relative_to(ROOT / folder).parts
            found.add(".".join((name, *inner)))
    return found


def python(*arguments: str, cwd: Path = ROOT) -> str:
    """What a fresh interpreter prints."""
    return subprocess.run([sys.executable, *arguments], cwd=cwd, check=True, capture_output=True, text=True).stdout


def test_the_list_of_packages_is_complete() -> None:
    assert set(SETTINGS["packages"]) == packages_on_disk()


def test_every_folder_with_python_files_is_a_package() -> None:
    roots = [ROOT / folder for folder in SETTINGS["package-dir"].values()]
    bare = {file.parent for root in roots for file in root.rglob("*.py") if not (file.parent / "__init__.py").exists()}
    assert not {str(folder.relative_to(ROOT)) for folder in bare if "templates" not in folder.parts}


def test_importing_assay_loads_no_torch() -> None:
    loaded = python("-c", "import sys, assay; print(*sys.modules)").split()
    assert not {"torch", "numpy", "hypothesis", "transformers"} & set(loaded)


def test_the_pytest_plugin_loads_no_torch() -> None:
    assert python("-c", "import sys, assay.pytest_plugin; print('torch' in sys.modules)").strip() == "False"


def test_the_checkout_is_what_runs(tmp_path: Path) -> None:
    """From any folder, `assay` and its sub-packages come out of this checkout."""
    shown = python("-c", "import assay, assay.spec; print(assay.__file__); print(assay.spec.__file__)", cwd=tmp_path)
    assert [Path(line).resolve().parent for line in shown.split("\n")[:2]] == [ROOT / "harness", ROOT / "spec"]


@pytest.mark.slow
def test_the_wheel_claims_one_name(tmp_path: Path) -> None:
    """The wheel holds `assay` and its metadata, every package, and the files that are not Python."""
    source = tmp_path / "source"
    copy_checkout(source)
    python("-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(source))
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"assay"}
    assert {f"{package.replace('.', '/')}/__init__.py" for package in SETTINGS["packages"]} <= set(names)
    assert "assay/py.typed" in names
    data = [file for folder in ("schemas", "templates") for file in (ROOT / "harness/report" / folder).rglob("*.*")]
    assert {f"assay/report/{f.relative_to(ROOT / 'harness/report')}" for f in data if f.suffix != ".pyc"} <= set(names)


def copy_checkout(target: Path) -> None:
    """What a build reads, elsewhere: setuptools leaves `build/` and `*.egg-info` where it builds."""
    target.mkdir()
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, target)
    for folder in SETTINGS["package-dir"].values():
        shutil.copytree(ROOT / folder, target / folder, ignore=shutil.ignore_patterns("__pycache__"))
