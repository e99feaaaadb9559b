"""Configurations, examples and how they are drawn (layer 2). Filled in with the judge."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Configuration:
    """All that is needed to rebuild an example anywhere: JSON, a few dozen bytes."""

    kind: str
    dims: Mapping[str, int]  # letter -> size
    flags: Mapping[str, Any] = field(default_factory=dict)  # option -> JSON value
    family: str = "integers"  # value family
    layout: str = "contiguous"  # memory layout of the tensors
    seed: int = 0
