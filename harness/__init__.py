"""assay: an executable specification that tells whether a Transformer implementation is right.

The names below load on first use, so that `import assay` and `assay --help` load no torch.
"""
from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from assay.contract.kinds import kinds as kinds
    from assay.registry import get as get
    from assay.registry import implementations as implementations
    from assay.registry import implements as implements
    from assay.run.api import check as check
    from assay.run.api import conformance as conformance
    from assay.run.api import parametrize as parametrize

    version: str
    __version__: str

_HOMES = {
    "implements": "assay.registry", "get": "assay.registry", "implementations": "assay.registry",
    "kinds": "assay.contract.kinds",
    "check": "assay.run.api", "conformance": "assay.run.api", "parametrize": "assay.run.api",
}


def __getattr__(name: str) -> Any:
    """The public names, and the version, on first use."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name in ("version", "__version__"):
        from importlib.metadata import version as installed

        return installed("assay")
    raise AttributeError(f"module 'assay' has no attribute {name!r}; it has {', '.join([*_HOMES, 'version'])}")


def __dir__() -> list[str]:
    """The public names too, though they are not loaded yet."""
    return sorted({*globals(), *_HOMES, "version", "__version__"})
