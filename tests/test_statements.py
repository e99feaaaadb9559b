"""The catalogue is complete, and every property names what it holds."""
from __future__ import annotations

import re
from pathlib import Path

import pytest

from assay import registry, statements
from assay.errors import UsageError
from assay.properties import CONDUCT
from assay.run.catalogue import held_by, markdown

TABLE = Path(__file__).resolve().parents[2] / "shared" / "statements.md"


def test_there_are_172_statements_and_33_errata() -> None:
    assert len({one.id for one in statements.all()}) == len(statements.all()) == 172
    assert len({one.id for one in statements.errata()}) == len(statements.errata()) == 33


def test_every_statement_has_a_text_a_kind_and_a_source() -> None:
    for one in statements.all():
        assert one.text and one.section and one.kinds and set(one.kinds) <= set(statements.KINDS), one.id
        assert any(source in one.source for source in statements.SOURCES), one.id
    assert all(one.note and one.reading for one in statements.errata())


def test_every_erratum_is_held_by_a_property_or_shown_elsewhere() -> None:
    held, root = held_by(), Path(__file__).resolve().parents[1]
    for one in statements.errata():
        assert bool(held[one.id]) != bool(one.shown), one.id
        file = one.shown.split(",")[0]
        assert not file.endswith(".py") or one.id.lower() in (root / file).read_text(encoding="utf-8"), one.id


def test_every_statement_is_held_by_a_property() -> None:
    held = held_by()
    assert not [one.id for one in statements.all() if not held[one.id]]


def test_the_page_of_statements_is_that_of_the_specification() -> None:
    """Made again by `python -m assay.run.catalogue > docs/statements.md`."""
    page = Path(__file__).resolve().parents[1] / "docs" / "statements.md"
    assert page.read_text(encoding="utf-8") == markdown()


@pytest.mark.skipif(not TABLE.exists(), reason="the table of statements does not lie beside this checkout")
def test_ids_are_those_of_the_table() -> None:
    rows = re.findall(r"^\| ([A-Z]+-?\d+) \|", TABLE.read_text(encoding="utf-8"), re.MULTILINE)
    assert [one.id for one in (*statements.all(), *statements.errata())] == rows


def test_every_id_that_a_property_names_is_in_the_catalogue() -> None:
    named = {id for prop in registry.properties() for id in prop.statements}
    assert not {id for id in named if id != CONDUCT and statements.find(id) is None}


def test_capitals_do_not_matter_and_an_unknown_id_names_its_neighbours() -> None:
    assert statements.get("att-1") is statements.get("ATT-1")
    assert statements.get("E5").id == "E5"
    with pytest.raises(UsageError, match="did you mean ATT-1"):
        statements.get("ATT-1O")
