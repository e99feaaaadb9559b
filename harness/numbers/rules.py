"""All error rules: importing this module registers them."""

from __future__ import annotations

from assay.numbers import (
    rules_arithmetic,
    rules_discrete,
    rules_functions,
    rules_products,
    rules_reductions,
    rules_structural,
)

__all__ = [
    "rules_arithmetic",
    "rules_discrete",
    "rules_functions",
    "rules_products",
    "rules_reductions",
    "rules_structural",
]

rules_structural.register_in_place()
