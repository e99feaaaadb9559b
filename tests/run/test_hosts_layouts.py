"""Layouts keep values, and guards and inputs are watched bit by bit."""
from __future__ import annotations

import pytest
import torch

from assay.hosting import bytes_of
from assay.run.layouts import GUARD, LAYOUTS, arrange, guards_intact, place

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32, torch.bool,
          torch.uint8, torch.complex64, torch.float8_e4m3fn]
SHAPES = [(), (1,), (3, 5), (2, 3, 4, 5), (0, 4), (2, 0, 3)]


def _values(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.arange(torch.Size(shape).numel()).reshape(shape).remainder(7).to(torch.float32).to(dtype)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_values_are_the_same_in_every_layout(layout: str, dtype: torch.dtype) -> None:
    for shape in SHAPES:
        tensor = _values(shape, dtype)
        placed = place(tensor, layout)
        assert torch.equal(placed.tensor.to(torch.complex64), tensor.to(torch.complex64))
        assert placed.inspect() == (True, True)


def test_strides_are_what_the_layout_says() -> None:
    tensor = _values((2, 3, 4, 5), torch.float32)
    assert arrange(tensor, "contiguous").stride() == (60, 20, 5, 1)
    assert arrange(tensor, "contiguous").storage_offset() == 0
    assert arrange(tensor, "transposed").stride() == (60, 20, 1, 4)
    assert arrange(tensor, "sliced").stride() == (120, 40, 10, 2)
    assert arrange(tensor, "head_last").stride() == (60, 5, 15, 1)
    assert arrange(tensor, "padded_rows").stride() == (84, 28, 7, 1)
    assert arrange(tensor, "offset").storage_offset() % 4 == 2
    assert arrange(tensor, "expanded").stride() == tensor.stride()
    assert arrange(tensor[:1].expand(6, 3, 4, 5), "expanded").stride() == (0, 20, 5, 1)
    assert arrange(torch.full((3, 4), torch.nan), "expanded").stride() == (0, 0)


def test_signed_zeros_are_not_constant() -> None:
    assert 0 not in arrange(torch.tensor([[0.0, 1.0], [-0.0, 1.0]]), "expanded").stride()


def test_spare_storage_is_nan_or_no_index() -> None:
    assert bool(place(_values((4,), torch.float16)).buffer[4:].isnan().all())
    assert bool(place(_values((4,), torch.float8_e4m3fn)).buffer[4:].to(torch.float32).isnan().all())
    assert bool((place(_values((4,), torch.int64)).buffer[4:] < -(2**40)).all())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_write_is_told_from_a_write_beside(layout: str) -> None:
    tensor = _values((3, 1), torch.float32).expand(3, 4)
    inside = place(tensor, layout)
    inside.tensor[1:2, :1] = -1
    assert inside.inspect() == (False, True)
    beside = place(tensor, layout)
    beside.buffer[-1] = 1
    assert beside.inspect() == (True, False)
    assert not guards_intact(beside)


def test_a_written_nan_that_equals_nothing_is_no_change() -> None:
    placed = place(torch.tensor([torch.nan, -0.0]))
    assert placed.inspect() == (True, True)
    placed.tensor[1] = 0.0
    assert placed.inspect() == (False, True)


def test_guards_stand_on_both_sides_where_the_layout_has_an_offset() -> None:
    placed = place(_values((3, 4), torch.float32), "sliced")
    placed.buffer[GUARD - 1] = 0
    assert placed.inspect() == (True, False)


def test_an_unknown_layout_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match="contiguous, transposed"):
        place(torch.ones(2), "diagonal")


@pytest.mark.parametrize("elements", [0, 1, 3])
def test_bytes_are_read_of_one_number_expanded_and_of_none(elements: int) -> None:
    assert bytes_of(torch.ones((), dtype=torch.float16).expand(elements)).shape == (2 * elements,)
