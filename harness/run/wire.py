"""Frames over a socket: a length-prefixed JSON header, then raw tensor bytes. Nothing executes what it reads."""
from __future__ import annotations

import json
import math
import socket
import struct
import time
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

import torch

from assay.errors import HostCrashedError
from assay.hosting import Answer, Call, Handle, OutputFacts, Recipe, Refusal, bytes_of

PREFIX = struct.Struct("<4sQQ")  # mark, bytes of the header, bytes of the body
MARK = b"asy1"
MAX_HEADER = 64 * 2**20
ALIGNMENT = 64
_RECORDS: Mapping[str, Any] = {
    record.__name__: record for record in (Answer, Call, Handle, OutputFacts, Recipe, Refusal)
}
_DEFAULTS = {
    record: {f.name: f.default_factory() if f.default_factory is not MISSING else f.default for f in fields(record)}
    for record in _RECORDS.values()
}
_SCALARS = frozenset({bool, int, float, str})
_ZEROS = memoryview(bytes(ALIGNMENT))
_DTYPES = {str(value).removeprefix("torch."): value for value in vars(torch).values() if isinstance(value, torch.dtype)}
_NAMES = {value: str(value).removeprefix("torch.") for value in _DTYPES.values()}


class ClosedError(ConnectionError):
    """The other end closed the connection in the middle of a frame, or before one."""


def garbled(why: str) -> HostCrashedError:
    """The error for a frame that no well-behaved host sends."""
    return HostCrashedError(f"garbled answer: {why}; the implementation may have written to the harness' connection")


# -- sending

def send(channel: socket.socket, value: Any, deadline: float | None = None) -> None:
    """Send one value: tensors, plain JSON values, dicts, lists, tuples and the records of `assay.hosting`."""
    tensors: list[torch.Tensor] = []
    tree = _encode(value, tensors)
    table, chunks, size = [], [], 0
    for tensor in tensors:
        table.append([_NAMES[tensor.dtype], list(tensor.shape)])
        if count := tensor.numel() * tensor.element_size():
            padding = -count % ALIGNMENT
            chunks += [memoryview(bytes_of(tensor).numpy()), _ZEROS[:padding]]  # type: ignore[arg-type]
            size += count + padding
    header = json.dumps([table, tree], separators=(",", ":")).encode()
    first = memoryview(PREFIX.pack(MARK, len(header), size) + header)
    _send_all(channel, [first, *(chunk for chunk in chunks if len(chunk))], deadline)


def _send_all(channel: socket.socket, chunks: list[memoryview], deadline: float | None) -> None:
    while chunks:
        _wait(channel, deadline)
        sent = channel.sendmsg(chunks[:64])
        while chunks and sent >= len(chunks[0]):
            sent -= len(chunks.pop(0))
        if sent:
            chunks[0] = chunks[0][sent:]


def _wait(channel: socket.socket, deadline: float | None) -> None:
    """Let the next socket operation wait no longer than the deadline (`time.monotonic`)."""
    if deadline is None:
        channel.settimeout(None)
        return
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    channel.settimeout(left)


def _encode(value: Any, tensors: list[torch.Tensor]) -> Any:
    """JSON for the value; what JSON lacks is an object with one key that starts with "$"."""
    kind = type(value)
    if value is None or kind in _SCALARS:
        return value
    if kind is tuple:
        return {"$tuple": [_encode(item, tensors) for item in value]}
    if kind is list:
        return [_encode(item, tensors) for item in value]
    if isinstance(value, torch.Tensor):
        plain = value.detach()
        if plain.device.type != "cpu" or plain.is_conj() or plain.is_neg() or not plain.is_contiguous():
            plain = plain.to("cpu").resolve_conj().resolve_neg().contiguous()
        tensors.append(plain)
        return {"$tensor": len(tensors) - 1}
    if kind in _DEFAULTS:
        return {"$" + kind.__name__: _encode_record(value, tensors)}
    return _encode_mapping(dict(value), tensors)


def _encode_record(record: Any, tensors: list[torch.Tensor]) -> dict[str, Any]:
    """The fields that differ from their defaults: most of a call or an answer is as usual, and so costs nothing."""
    defaults = _DEFAULTS[type(record)]
    told = {}
    for name, value in vars(record).items():
        default = defaults[name]
        if value is not default and (value or default or type(value) is not type(default)):
            told[name] = _encode(value, tensors)
    return told


def _encode_mapping(value: dict[Any, Any], tensors: list[torch.Tensor]) -> Any:
    for key in value:
        if type(key) is not str or key[:1] == "$":
            return {"$dict": [[_encode(name, tensors), _encode(item, tensors)] for name, item in value.items()]}
    return {key: _encode(item, tensors) for key, item in value.items()}


# -- receiving

def receive(channel: socket.socket, deadline: float | None = None) -> Any:
    """Receive one value. ClosedError, TimeoutError after the deadline, HostCrashedError for what is no frame."""
    mark, header_size, body_size = PREFIX.unpack(_read(channel, PREFIX.size, deadline))
    if mark != MARK or header_size > MAX_HEADER:
        raise garbled("no header where one belongs, or one above 64 MB")
    header = _read(channel, header_size, deadline)
    try:
        table, tree = json.loads(header)
        size = sum(_padded_size(dtype, shape) for dtype, shape in table)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise garbled(f"unreadable header ({type(error).__name__})") from None
    if size != body_size:
        raise garbled(f"{body_size} bytes of tensors where the header describes {size}")
    body = _read(channel, body_size, deadline)
    try:
        return _decode(tree, _tensors(table, body))
    except (ValueError, TypeError, KeyError, IndexError, RuntimeError, RecursionError) as error:
        raise garbled(f"unreadable value ({type(error).__name__})") from None


def _read(channel: socket.socket, size: int, deadline: float | None) -> bytearray:
    try:
        buffer = bytearray(size)
    except (MemoryError, OverflowError):
        raise garbled(f"an answer of {size} bytes") from None
    view, got = memoryview(buffer), 0
    while got < size:
        _wait(channel, deadline)
        received = channel.recv_into(view[got:])
        if not received:
            raise ClosedError("connection closed")
        got += received
    return buffer


def _padded_size(dtype: str, shape: list[int]) -> int:
    for n in shape:
        if type(n) is not int or n < 0:
            raise ValueError("negative size")
    size = math.prod(shape) * _DTYPES[dtype].itemsize
    return size + -size % ALIGNMENT


def _tensors(table: list[Any], body: bytearray) -> list[torch.Tensor]:
    """The tensors of a frame, in its body's own memory."""
    tensors, position = [], 0
    for name, shape in table:
        dtype, count = _DTYPES[name], math.prod(shape)
        if count:
            tensors.append(torch.frombuffer(body, dtype=dtype, count=count, offset=position).view(shape))
        else:
            tensors.append(torch.empty(shape, dtype=dtype))
        position += _padded_size(name, shape)
    return tensors


def _decode(tree: Any, tensors: list[torch.Tensor]) -> Any:
    kind = type(tree)
    if kind is list:
        return [_decode(item, tensors) for item in tree]
    if kind is not dict:
        return tree
    if len(tree) == 1:
        (key, content), = tree.items()
        if key == "$tensor":
            return tensors[content]
        if key == "$tuple":
            return tuple([_decode(item, tensors) for item in content])
        if key == "$dict":
            return {_decode(name, tensors): _decode(item, tensors) for name, item in content}
        if key[:1] == "$":
            return _RECORDS[key[1:]](**{name: _decode(item, tensors) for name, item in content.items()})
    return {name: _decode(item, tensors) for name, item in tree.items()}
