"""One zygote for all tests that need a process of its own."""
from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from assay.run.zygote import FOR_HOSTS
from assay.run.zygote_process import Zygote


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    with Zygote(FOR_HOSTS) as started:
        yield started


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(1))
