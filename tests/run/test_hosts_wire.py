"""What is sent arrives, and what is no frame is refused."""
from __future__ import annotations

import json
import math
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from assay.errors import HostCrashedError
from assay.hosting import Answer, Call, Handle, OutputFacts, Recipe, Refusal
from assay.run import wire

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    a, b = socket.socketpair()
    with a, b:
        yield a, b


def _through(pair: Pair, value: Any) -> Any:
    wire.send(pair[0], value)
    return wire.receive(pair[1])


@pytest.mark.parametrize("value", [
    None, True, 3, 2**200, -0.0, math.inf, "ünï\x00\ud800", [], (), {}, [1, (2, [3, ()])], {"a": {"b": (1, 2)}},
    {"$tensor": 0}, {1: "one", None: 2}, Handle(3, copy=True, size=12, type="dict"), Recipe("identity"),
    Answer(outputs=(None, 1.5), structure="tuple", state=("it did",), refusal=Refusal("E", "no", where="f:1"),
           facts=(None, OutputFacts((2,), "float32", "cpu", shares_memory_with=("x",)))),
    Call("softmax", "mine", {"dim": -1, "scaling": {"type": "yarn", "factor": 2.0}}, layouts={"x": "sliced"},
         grad_mode=False),
])
def test_plain_values_and_records_arrive_as_they_were(pair: Pair, value: Any) -> None:
    arrived = _through(pair, value)
    assert arrived == value
    assert type(arrived) is type(value)
    assert str(arrived) == str(value)


def test_nan_arrives(pair: Pair) -> None:
    assert math.isnan(_through(pair, math.nan))


DTYPES = ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "complex64", "complex128",
          "int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64", "bool"]


@pytest.mark.parametrize("name", DTYPES)
def test_tensors_of_every_dtype_arrive_bit_by_bit(pair: Pair, name: str) -> None:
    dtype = wire._DTYPES[name]
    data = torch.arange(16 * 3, dtype=torch.uint8).remainder(2).view(dtype)
    arrived = _through(pair, {"x": data, "empty": data[:0], "scalar": data[0]})
    assert arrived["x"].dtype == dtype
    assert torch.equal(arrived["x"].view(torch.uint8), data.view(torch.uint8))
    assert arrived["empty"].shape == (0,)
    assert arrived["scalar"].shape == ()


def test_one_element_of_any_stride_arrives(pair: Pair) -> None:
    one = torch.arange(6, dtype=torch.float16)[::2][1:2]
    assert one.stride() == (2,) and one.is_contiguous()
    wire.send(pair[0], one)
    assert torch.equal(wire.receive(pair[1]), one)


def test_strides_do_not_matter(pair: Pair) -> None:
    x = torch.arange(24.0).reshape(2, 3, 4)
    assert torch.equal(_through(pair, x.permute(2, 0, 1)), x.permute(2, 0, 1))
    z = torch.tensor([1 + 2j]).conj()
    assert torch.equal(_through(pair, z), z)


def _frame(header: bytes, body: bytes = b"", *, size: int | None = None) -> bytes:
    return wire.PREFIX.pack(wire.MARK, len(header), len(body) if size is None else size) + header + body


@pytest.mark.parametrize("data", [
    b"HTTP/1.1 200 OK\r\n\r\n" * 3,
    wire.PREFIX.pack(wire.MARK, 2**40, 0),
    _frame(b"{"), _frame(b"[]"), _frame(b"[1, 2]"), _frame(b"\xff\xff"), _frame(b"[[], " + b"[" * 100_000),
    _frame(json.dumps([[["float32", [4]]], None]).encode(), b"123"),
    _frame(json.dumps([[["float32", [-4]]], None]).encode()),
    _frame(json.dumps([[["float33", [4]]], None]).encode()),
    _frame(json.dumps([[["float32", [2**60]]], None]).encode(), size=2**62),
    _frame(json.dumps([[], {"$tensor": 0}]).encode()),
    _frame(json.dumps([[], {"$Popen": {"args": "true"}}]).encode()),
    _frame(json.dumps([[], {"$Handle": {"number": 1, "other": 2}}]).encode()),
])
def test_what_is_no_frame_is_a_garbled_answer(pair: Pair, data: bytes) -> None:
    pair[0].sendall(data)
    with pytest.raises(HostCrashedError, match="garbled answer"):
        wire.receive(pair[1])


def test_a_closed_connection_is_told_from_a_slow_one(pair: Pair) -> None:
    pair[0].sendall(b"asy")
    with pytest.raises(TimeoutError):
        wire.receive(pair[1], time.monotonic() + 0.02)
    pair[0].close()
    with pytest.raises(wire.ClosedError):
        wire.receive(pair[1])


def test_a_receiver_that_does_not_read_does_not_stall_the_sender(pair: Pair) -> None:
    with pytest.raises(TimeoutError):
        wire.send(pair[0], torch.zeros(4_000_000), time.monotonic() + 0.05)


def test_defaults_travel_as_nothing(pair: Pair) -> None:
    call = Call("softmax", "mine", {})
    assert _through(pair, replace(call, instance=-1, seed=7)) == replace(call, instance=-1, seed=7)
