"""Kinds, conventions and the lazy public names."""
from __future__ import annotations

import subprocess
import sys

import pytest

from assay.contract.conventions import CONVENTIONS, FIXED, defaults
from assay.contract.kinds import FEATURES, FURTHER, KINDS, OFFERS, kind
from assay.errors import UsageError


def test_every_kind_speaks_in_known_words() -> None:
    assert len(KINDS) - len(FURTHER) == 34
    for made in KINDS.values():
        assert made.features <= set(FEATURES)
        assert set(made.conventions) <= set(CONVENTIONS)
        assert set(made.widenable) <= set(made.outputs)
        assert set(made.differentiable) <= set(made.names)
        assert not set(made.arguments) & set(made.options)
    assert set(OFFERS) <= set(FEATURES)


def test_every_convention_belongs_somewhere() -> None:
    used = {name for made in KINDS.values() for name in made.conventions}
    assert used == set(CONVENTIONS)
    assert all(any(name in made.options for made in KINDS.values()) for name in FIXED)


def test_softmax_keeps_nan_in_an_empty_row_by_default() -> None:
    assert defaults(kind("softmax"))["empty_row"] == "nan_row"
    assert defaults(kind("attention"))["empty_row"] == "zeros"


def test_unknown_kind_suggests_and_lists() -> None:
    with pytest.raises(UsageError, match=r"did you mean attention\?.*rotary"):
        kind("atention")


def test_importing_assay_loads_no_torch() -> None:
    code = "import sys, assay; assay.kinds(); assay.version; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
