"""What goes to a host and what comes back: plain data, sent as a JSON header plus raw tensor bytes, never a pickle."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The elements in row order as uint8, in its own memory where they lie so. One element, or none, may have any stride, yet count
    as contiguous."""
    flat = tensor.detach().reshape(-1)
    if flat.stride(0) != 1:
        flat = flat.clone(memory_format=torch.contiguous_format)
    return flat.view(torch.uint8)


@dataclass(frozen=True)
class Call:
    """One call of an implementation.

    arguments: name -> tensor, None, bool, int, float, str, or dict/list/tuple of these, or `Recipe`.
    layouts: argument name -> memory layout in which the host hands the tensor over (contiguous, transposed, sliced, offset,
        expanded, ...); values are the same in every layout; spare storage around it is filled with NaN guard bands.
    wrt: argument names whose gradient is asked for; then `upstream` (one tensor per output that takes one) is given.
        Paths into dict arguments are written "params/attn.w_q".
    upstream_layout: layout of the upstream gradient.
    grad_mode: run the forward with gradients recorded, or under torch.no_grad().
    fill_empty: fill memory from `torch.empty*` with NaN during the call, so that unwritten output shows.
    """

    kind: str
    implementation: str
    arguments: Mapping[str, Any]
    device: str = "cpu"
    layouts: Mapping[str, str] = field(default_factory=dict)
    wrt: tuple[str, ...] = ()
    upstream: tuple[torch.Tensor, ...] = ()
    upstream_layout: str = "contiguous"
    grad_mode: bool = True
    fill_empty: bool = False
    instance: int = 0  # 0 the original, n > 0 made (or copied) anew, n < 0 a deep copy of instance -n - 1
    moved: bool = False  # after `.to(device)`, where it is a module
    compiled: bool = False  # compiled by torch, graph breaks allowed
    method: str = ""  # kinds with a factory: method or attribute of the object ("step", "vocab_size")
    seed: int = 0  # kinds with a factory that takes a seed
    keep: tuple[int, ...] = ()  # outputs that stay in the host (caches): they come back as `Handle`
    release: tuple[int, ...] = ()  # numbers of kept values to let go before the call
    count: bool = False  # count operations and memory of the call (slower)
    perturb: int = 0  # > 0: move every floating result inside the call at random by about a rounding, from this seed


@dataclass(frozen=True)
class Recipe:
    """A callable argument, described rather than shipped (`residual` takes a sub-layer): name plus tensors and options."""

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Handle:
    """A value that stays in the host, such as a cache of any type; as an argument it stands for that value.

    copy: hand over a deep copy, so that a cache that is updated in place can be continued twice.
    size: bytes held, where the value is a tree of tensors; else None.
    """

    number: int
    copy: bool = False
    size: int | None = None
    type: str = ""


@dataclass(frozen=True)
class Refusal:
    """The implementation raised. `not_implemented`: NotImplementedError, or torch's own "not implemented for".
    `not_exercised`: it found that the path which it stands for did not run."""

    type: str
    message: str  # stripped of control characters, cut at 2,000 characters
    not_implemented: bool = False
    out_of_memory: bool = False
    where: str = ""  # file:line of the innermost frame in the implementation's own file
    stage: str = "forward"  # or "backward"
    not_exercised: bool = False


RESULT_BEFORE = "the result of the call before"  # what `mutated` names where a call changed that


@dataclass(frozen=True)
class OutputFacts:
    """Observed on one output before it left the host."""

    shape: tuple[int, ...]
    dtype: str
    device: str
    is_plain_tensor: bool = True
    shares_memory_with: tuple[str, ...] = ()  # names of arguments whose storage it shares
    requires_grad: bool = False


@dataclass(frozen=True)
class Answer:
    """What came out: outputs (CPU, own dtype, contiguous, detached), gradients by argument name, and what was observed."""

    outputs: tuple[Any, ...] = ()  # tensors, or None / plain JSON values where the implementation returned such
    structure: str = "tensor"  # "tensor", "tuple", "iterator", "dict", "value" (plain JSON), "other:<type name>"
    facts: tuple[OutputFacts | None, ...] = ()  # one an output; None where it is no tensor
    gradients: Mapping[str, torch.Tensor | None] = field(default_factory=dict)
    gradient_facts: Mapping[str, OutputFacts] = field(default_factory=dict)
    mutated: tuple[str, ...] = ()  # arguments whose values were changed, or RESULT_BEFORE
    guards_broken: tuple[str, ...] = ()  # arguments whose guard bands were overwritten
    state: tuple[str, ...] = ()  # breaches of global state, one sentence each; already undone
    refusal: Refusal | None = None
    seconds: float = 0.0
    counts: Mapping[str, int] = field(default_factory=dict)  # where asked: see `counting.Counter`


Meanwhile = Callable[[], None]


def nothing() -> None:
    """Nothing to do while a host works."""


class Host(Protocol):
    """Runs implementations. LocalHost in this process, RemoteHost in a supervised one: same `perform`, same answers."""

    def describe(self) -> list[Mapping[str, Any]]:
        """Declarations (as JSON) of what the loaded file or object declares."""

    def call(self, call: Call, meanwhile: Meanwhile = nothing) -> Answer:
        """Run one call. Raises HostCrashedError, HostTimeoutError or HostOutOfMemoryError; the next call gets a new host.

        meanwhile: what the caller would do next anyway; a host in another process leaves it to be done while it works.
        """

    def close(self) -> None:
        """End the host process, if there is one."""
