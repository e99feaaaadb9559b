"""What an implementation declares about its arithmetic, and the rounding model that follows from it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch

from assay.errors import UsageError


@dataclass(frozen=True)
class Format:
    """A floating-point format: unit roundoff, smallest positive number, largest finite number."""

    name: str
    u: float
    eta: float
    largest: float

    @property
    def underflow(self) -> float:
        """Absolute error of one operation near zero: fast exponentials and devices flush subnormals (not float16)."""
        return 2.0 * self.eta if self.name == "float16" else self.eta / (2.0 * self.u)

    @property
    def precision(self) -> int:
        """Bits of the significand: integers up to 2**precision are exact."""
        return -round(math.log2(self.u))


FORMATS: dict[str, Format] = {
    "float64": Format("float64", 2.0**-53, 2.0**-1074, torch.finfo(torch.float64).max),
    "float32": Format("float32", 2.0**-24, 2.0**-149, torch.finfo(torch.float32).max),
    "tf32": Format("tf32", 2.0**-11, 2.0**-136, torch.finfo(torch.float32).max),
    "float16": Format("float16", 2.0**-11, 2.0**-24, torch.finfo(torch.float16).max),
    "bfloat16": Format("bfloat16", 2.0**-8, 2.0**-133, torch.finfo(torch.bfloat16).max),
}


def format_of(dtype: torch.dtype | str) -> Format:
    """The format of a floating dtype, given as torch dtype or name."""
    name = str(dtype).removeprefix("torch.")
    if name not in FORMATS:
        raise UsageError(f"dtype={name} has no rounding model, choose one of {', '.join(FORMATS)}")
    return FORMATS[name]


def wider(left: Format, right: Format) -> Format:
    """The format with the smaller unit roundoff."""
    return left if left.u <= right.u else right


CHOICES: dict[str, tuple[Any, ...]] = {  # default first, as in the contract
    "internal": ("input", "float32", "float64"),
    "accumulate": ("float32", "float64", "input"),
    "tf32": (False, True),
    "angles": ("float32", "float64", "input"),
    "tables": ("float32", "input"),
    "exp": ("accurate", "fast"),
    "erf": ("accurate", "fast"),
    "tanh": ("accurate", "fast"),
}

# Relative accuracy of a math function, beyond the rounding of its result: (multiples of u of the type it is computed
# in, which is float32 or wider; floor that does not shrink with the type). Accurate: vectorised libraries stay within
# 2 ulp = 4u; erf is meant absolutely (relative to 1): torch's vectorised one is the Abramowitz-Stegun formula, 1.5e-7
# = 2.5u. Fast: hardware tanh.approx is good to 2**-11, polynomial exp2 on tensor-core kernels to 8.8e-5.
ACCURACY: dict[tuple[str, str], tuple[float, float]] = {
    ("exp", "accurate"): (4.0, 0.0),
    ("exp", "fast"): (4.0, 2.0**-13),
    ("erf", "accurate"): (8.0, 0.0),
    ("erf", "fast"): (8.0, 2.0**-21),
    ("tanh", "accurate"): (8.0, 0.0),
    ("tanh", "fast"): (8.0, 2.0**-10),
}


@dataclass(frozen=True)
class Arithmetic:
    """The declared arithmetic of an implementation: a closed list of choices, the default first in each."""

    internal: str = "input"
    accumulate: str = "float32"
    tf32: bool = False
    angles: str = "float32"
    tables: str = "float32"
    exp: str = "accurate"
    erf: str = "accurate"
    tanh: str = "accurate"

    @classmethod
    def declared(cls, mapping: Mapping[str, Any] | None = None) -> Arithmetic:
        """Validate what a user wrote under `arithmetic=`."""
        values = dict(mapping or {})
        for name, value in values.items():
            if name not in CHOICES:
                raise UsageError(f"arithmetic={name!r} is not known, choose from {', '.join(CHOICES)}")
            allowed = CHOICES[name]
            if not any(value is choice or (isinstance(value, str) and value == choice) for choice in allowed):
                listed = ", ".join(str(choice) for choice in allowed)
                raise UsageError(f"arithmetic[{name!r}]={value!r} is not one of the choices: {listed}")
        return cls(**values)

    def to_json(self) -> dict[str, Any]:
        """All choices, by name."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Arithmetic:
        """The inverse of `to_json`."""
        return cls.declared(values)

    def departures(self) -> dict[str, Any]:
        """The choices that differ from the default, for the report."""
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}

    def model(self, dtype: torch.dtype | str, additions: int = 1) -> Model:
        """The rounding model of this arithmetic for inputs of one dtype; `additions` as in `Form`."""
        store = format_of(dtype)

        def choose(choice: str) -> Format:
            return store if choice == "input" else FORMATS[choice]

        # Nobody sums float64 numbers in float32: the accumulator is never narrower than the input type unless it is
        # said to be.
        accumulate = wider(choose(self.accumulate), store)
        return Model(
            store=store,
            internal=choose(self.internal),
            accumulate=accumulate,
            angles=choose(self.angles),
            tables=choose(self.tables),
            accuracy={name: ACCURACY[name, str(getattr(self, name))] for name in ("exp", "erf", "tanh")},
            product_extra=2.0 * FORMATS["tf32"].u if self.tf32 and store.name == "float32" else 0.0,
            additions=additions,
        )


@dataclass(frozen=True)
class Model:
    """Roundings of one evaluation: of stored results, of intermediate results, of sums, of angles and of tables."""

    store: Format
    internal: Format
    accumulate: Format
    angles: Format
    tables: Format
    accuracy: Mapping[str, tuple[float, float]]
    product_extra: float = 0.0  # relative error per product of a matmul whose inputs are cut to TF32
    additions: int = 1
    exact: bool = False  # harness arithmetic in float64 on measured values: only its own float64 roundings count

    def gamma(self, terms: int) -> float:
        """Relative error of a sum of so many terms, each rounded up to `additions` times; infinite beyond 1/u."""
        ku = self.additions * max(0, terms) * self.accumulate.u
        return ku / (1.0 - ku) if ku < 1.0 else math.inf

    def function_error(self, name: str) -> float:
        """Relative error of a math function before its result is rounded to the internal format."""
        multiples, floor = self.accuracy.get(name, (4.0, 0.0))
        return multiples * min(self.internal.u, FORMATS["float32"].u) + floor


def exact_model() -> Model:
    """The model of what properties compute from measured values: float64 throughout."""
    double = FORMATS["float64"]
    accuracy = {name: ACCURACY[name, "accurate"] for name in ("exp", "erf", "tanh")}
    return Model(double, double, double, double, double, accuracy, exact=True)


EXACT = exact_model()
