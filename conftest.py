"""Checks that the `assay` in use is this checkout, so that nobody tests one copy while editing another."""
from __future__ import annotations

from pathlib import Path

import pytest

import assay

_HERE = Path(__file__).resolve().parent

if Path(str(assay.__file__)).resolve().parent != _HERE / "harness":
    raise pytest.UsageError(
        f"assay={assay.__file__} must be this checkout, got another copy; run pytest from its own .venv"
    )
