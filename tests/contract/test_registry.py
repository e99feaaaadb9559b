"""The registry and the registration of properties and planted faults."""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from assay import properties, registry
from assay.contract.kinds import KINDS
from assay.errors import HarnessError, UsageError
from assay.properties import Specification


@pytest.fixture(autouse=True)
def _no_made_up_properties_left() -> Iterator[None]:
    """Properties of made-up kinds are gone afterwards: other tests of this process ask for all there are."""
    yield
    for made in [made for made in properties.registered() if made.kind not in KINDS]:
        del properties._PROPERTIES[made.id]
        del properties._IDS[made.function]



def test_collecting_keeps_declarations_apart() -> None:
    with registry.collecting(origin="here") as inside:
        @registry.implements("softmax", name="kept apart")
        def softmax(x: Any, *, dim: int = -1) -> Any:
            return x

    assert [made.name for made in inside] == ["kept apart"]
    assert "kept apart" not in registry.implementations("softmax")


def test_get_gives_the_callable_and_lists_the_others() -> None:
    assert registry.get("rms_norm", "reference").__name__ == "rms_norm"
    with pytest.raises(UsageError, match=r"is one of .*reference"):
        registry.get("rms_norm", "referense")
    with pytest.raises(UsageError, match="kind='nothing' is unknown"):
        registry.get("nothing", "reference")


def test_a_fault_is_planted_once_and_says_what_is_wrong() -> None:
    with pytest.raises(HarnessError, match="must say what is unusual"):
        @registry.fault("softmax")
        def planted_by_this_test(x: Any, *, dim: int = -1) -> Any:
            return x


def test_properties_need_a_sentence_a_statement_and_a_fault() -> None:
    spec = Specification("kind_of_this_test", None)

    def silent(subject: Any) -> None: ...

    def loud(subject: Any) -> None:
        """It holds.

        Because it does.
        """

    for statements, kills, function in [(("A-1",), ["f"], silent), ((), ["f"], loud), (("A-1",), [], loud)]:
        with pytest.raises(HarnessError, match="must have"):
            spec.holds(*statements, kills=kills)(function)
    spec.holds("A-1", kills=["f"], conventions={"router": ("sigmoid",)})(loud)
    with pytest.raises(HarnessError, match="registered twice"):
        spec.holds("A-1", kills=["f"])(loud)


def test_a_property_keeps_what_it_was_given() -> None:
    from assay.properties import registered

    spec = Specification("another_kind_of_this_test", None)

    def base(subject: Any) -> None:
        """The base."""

    def above(subject: Any) -> None:
        """The rest."""

    spec.holds("A-1", kills=["f"])(base)
    spec.holds("A-2", kills=["other/f"], rests_on=[base, "elsewhere"], conventions={"router": ("sigmoid",)})(above)
    made = registered("another_kind_of_this_test")[1]
    assert made.kills == ("other/f",) and made.sentence == "The rest."
    assert made.rests_on == ("another_kind_of_this_test/base", "another_kind_of_this_test/elsewhere")
    assert made.holds_for({"router": "sigmoid"}) and not made.holds_for({"router": "softmax_of_topk"})
