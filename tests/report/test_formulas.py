"""Formulas become MathML; what the library cannot read, or what no formula needs, is text."""
from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay import statements
from assay.report.formulas import mathml

PIECES = (r"\frac", "{", "}", "_", "^", r"\left(", r"\right)", r"\href{javascript:alert(1)}{x}", r"\style{color:red}{x}",
          r"\begin{x}", r"\genfrac{", r"\text{<b>}", "&", r"\\", "x", " ", "<script>", r"\sqrt[", r", \quad ",
          r"\hskip", "\x00", r"\unknown")


def test_every_formula_of_the_catalogue_is_read() -> None:
    written = [one for one in (*statements.all(), *statements.further()) if one.formula]
    assert len(written) > 100
    for one in written:
        assert "<math" in mathml(one.formula) and "<code" not in mathml(one.formula), one.id


def test_a_formula_breaks_between_its_parts() -> None:
    assert mathml(r"p_i \ge 0, \quad \sum_i p_i = 1").count("<math") == 2


@pytest.mark.parametrize("text", [r"\href{javascript:alert(1)}{x}", r"\style{color:red}{x}", r"\frac{", "_", "x" * 2_000, ""])
def test_what_is_no_formula_is_text(text: str) -> None:
    shown = mathml(text)
    assert shown.startswith('<div class="formula"><code>') and "<math" not in shown


@settings(max_examples=200, deadline=None, database=None)
@given(text=st.lists(st.sampled_from(PIECES) | st.text(max_size=4), max_size=8).map("".join))
def test_anything_is_shown_and_nothing_gets_through(text: str) -> None:
    shown = mathml(text)
    assert "<script" not in shown and "<b>" not in shown and "href=" not in shown and "style=" not in shown
