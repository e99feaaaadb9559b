"""Frames over a socket: a length-prefixed JSON header, then raw tensor bytes. Nothing here can execute what it reads."""
from __future__ import annotations

import json
import math
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

import torch

from assay.errors import HostCrashedError
from assay.run.hosting_types import Answer, Call, Handle, OutputFacts, Recipe, Refusal

PREFIX = struct.Struct("<4sQQ")  # mark, bytes of the header, bytes of the body
MARK = b"asy1"
MAX_HEADER = 64 * 2**20
ALIGNMENT = 64
_RECORDS = {record.__name__: record for record in (Answer, Call, Handle, OutputFacts, Recipe, Refusal)}
_DTYPES = {str(value).removeprefix("torch."): value for value in vars(torch).values() if isinstance(value, torch.dtype)}


class ClosedError(ConnectionError):
    """The other end closed the connection in the middle of a frame, or before one."""


def garbled(why: str) -> HostCrashedError:
    """The error for a frame that no well-behaved host sends."""
    return HostCrashedError(f"garbled answer: {why}; the implementation may have written to the harness' connection")


# -- sending

def send(channel: socket.socket, value: Any, deadline: float | None = None) -> None:
    """Send one value: tensors, plain JSON values, dicts, lists, tuples and the records of `hosting_types`."""
    tensors: list[torch.Tensor] = []
    header = json.dumps(_encode(value, tensors), separators=(",", ":")).encode()
    chunks: list[memoryview] = []
    size = 0
    for tensor in tensors:
        data = memoryview(tensor.reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]
        padding = -len(data) % ALIGNMENT
        chunks += [data, memoryview(bytes(padding))] if padding else [data]
        size += len(data) + padding
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
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, torch.Tensor):
        plain = value.detach().resolve_conj().resolve_neg().to("cpu").contiguous()
        tensors.append(plain)
        return {"$tensor": [str(plain.dtype).removeprefix("torch."), list(plain.shape)]}
    if isinstance(value, list):
        return [_encode(item, tensors) for item in value]
    if isinstance(value, tuple):
        return {"$tuple": [_encode(item, tensors) for item in value]}
    if type(value).__name__ in _RECORDS:
        return {"$" + type(value).__name__: [_encode(item, tensors) for item in vars(value).values()]}
    return _encode_mapping(dict(value), tensors)


def _encode_mapping(value: dict[Any, Any], tensors: list[torch.Tensor]) -> Any:
    if all(isinstance(key, str) and not key.startswith("$") for key in value):
        return {key: _encode(item, tensors) for key, item in value.items()}
    return {"$dict": [[_encode(key, tensors), _encode(item, tensors)] for key, item in value.items()]}


# -- receiving

def receive(channel: socket.socket, deadline: float | None = None) -> Any:
    """Receive one value. Raises ClosedError, TimeoutError (after the deadline), HostCrashedError for what is no frame."""
    mark, header_size, body_size = PREFIX.unpack(_read(channel, PREFIX.size, deadline))
    if mark != MARK or header_size > MAX_HEADER:
        raise garbled("no header where one belongs, or one above 64 MB")
    header = bytes(_read(channel, header_size, deadline))
    try:
        tree = json.loads(header)
        sizes = list(_sizes(tree))
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise garbled(f"unreadable header ({type(error).__name__})") from None
    if sum(sizes) != body_size:
        raise garbled(f"{body_size} bytes of tensors where the header describes {sum(sizes)}")
    reader = _Body(_read(channel, body_size, deadline))
    try:
        return _decode(tree, reader.next)
    except (ValueError, TypeError, KeyError, RuntimeError, RecursionError) as error:
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


def _sizes(tree: Any) -> Any:
    """Padded bytes of each tensor, in the order in which they were sent."""
    if isinstance(tree, list):
        for item in tree:
            yield from _sizes(item)
    elif isinstance(tree, dict):
        if "$tensor" in tree:
            dtype, shape = tree["$tensor"]
            if not all(isinstance(n, int) and n >= 0 for n in shape):
                raise ValueError("negative size")
            size = math.prod(shape) * _DTYPES[dtype].itemsize
            yield size + -size % ALIGNMENT
        else:
            for item in tree.values():
                yield from _sizes(item)


class _Body:
    """Hands out the tensors of a frame's body in order, without copying."""

    def __init__(self, data: bytearray) -> None:
        self._data, self._position = data, 0

    def next(self, dtype: str, shape: list[int]) -> torch.Tensor:
        kind, count = _DTYPES[dtype], math.prod(shape)
        if not count:
            return torch.empty(shape, dtype=kind)
        tensor = torch.frombuffer(self._data, dtype=kind, count=count, offset=self._position).view(shape)
        size = count * kind.itemsize
        self._position += size + -size % ALIGNMENT
        return tensor


def _decode(tree: Any, tensor: Callable[[str, list[int]], torch.Tensor]) -> Any:
    if isinstance(tree, list):
        return [_decode(item, tensor) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if len(tree) == 1:
        (key, content), = tree.items()
        if key == "$tensor":
            return tensor(*content)
        if key == "$tuple":
            return tuple(_decode(item, tensor) for item in content)
        if key == "$dict":
            return {_decode(name, tensor): _decode(item, tensor) for name, item in content}
        if key[:1] == "$":
            return _RECORDS[key[1:]](*(_decode(item, tensor) for item in content))
    return {name: _decode(item, tensor) for name, item in tree.items()}
