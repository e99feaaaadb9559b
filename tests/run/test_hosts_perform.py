"""What `perform` observes of a call, in this process."""
from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

from assay.contract.declaration import declare
from assay.errors import HarnessError
from assay.hosting import Answer, Call, Recipe
from assay.run.conduct import Conduct
from assay.run.hosts import LocalHost
from assay.run.layouts import LAYOUTS

UP = torch.ones(4, 8)


def _run(kind: str, function: Callable[..., Any], arguments: dict[str, Any], **more: Any) -> Answer:
    return LocalHost([declare(kind, function, name="mine", origin="test")]).call(Call(kind, "mine", arguments, **more))


def _softmax(x: torch.Tensor, *, dim: int = -1) -> torch.Tensor:
    return torch.softmax(x, dim)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_forward_and_gradient_are_the_same_in_every_layout(x: torch.Tensor, layout: str) -> None:
    more: dict[str, Any] = {"wrt": ("x",), "upstream": (UP,), "upstream_layout": layout, "layouts": {"x": layout}}
    plain = _run("softmax", _softmax, {"x": x}, wrt=("x",), upstream=(UP,))
    laid = _run("softmax", _softmax, {"x": x}, **more)
    assert torch.allclose(laid.outputs[0], plain.outputs[0])
    assert torch.allclose(laid.gradients["x"], plain.gradients["x"], atol=1e-6)  # type: ignore[arg-type]
    assert (laid.state, laid.mutated, laid.guards_broken) == ((), (), ())


def test_an_argument_without_gradient_is_none(x: torch.Tensor) -> None:
    answer = _run("softmax", lambda x, *, dim=-1: x.detach() * 1, {"x": x}, wrt=("x",), upstream=(UP,))
    assert answer.gradients == {"x": None}


def test_an_error_in_the_backward_is_told_as_such(x: torch.Tensor) -> None:
    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 1

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            raise NotImplementedError("no backward")

    answer = _run("softmax", lambda x, *, dim=-1: Broken.apply(x), {"x": x}, wrt=("x",), upstream=(UP,))
    assert answer.refusal is not None
    assert (answer.refusal.stage, answer.refusal.not_implemented) == ("backward", True)
    assert torch.equal(answer.outputs[0], x)


def test_a_wrong_shape_has_no_gradients(x: torch.Tensor) -> None:
    answer = _run("softmax", lambda x, *, dim=-1: x.sum(), {"x": x}, wrt=("x",), upstream=(UP,))
    assert (answer.gradients, answer.refusal) == ({}, None)
    assert answer.facts[0] is not None
    assert answer.facts[0].shape == ()


@pytest.mark.parametrize(("result", "structure"), [
    (None, "value"), (3, "value"), ([torch.ones(1)], "other:list"), ({"out": torch.ones(1)}, "dict"),
    (object(), "other:object"),
    ((torch.ones(1), None), "tuple"), (torch.eye(2).to_sparse(), "other:sparse_coo tensor"),
    (numpy.ones(2), "other:ndarray"),
    (torch.ones(2, device="meta"), "other:strided tensor"),
])
def test_whatever_is_returned_is_described(x: torch.Tensor, result: Any, structure: str) -> None:
    answer = _run("softmax", lambda x, *, dim=-1: result, {"x": x}, wrt=("x",), upstream=(UP,))
    assert (answer.structure, answer.refusal) == (structure, None)


def test_a_subclass_is_told() -> None:
    class Mine(torch.Tensor):
        pass

    answer = _run("softmax", lambda x, *, dim=-1: x.mul(1).as_subclass(Mine), {"x": torch.ones(2)})
    assert answer.facts[0] is not None
    assert not answer.facts[0].is_plain_tensor


def test_guards_and_leaves_of_dicts() -> None:
    def block(x: torch.Tensor, params: dict[str, torch.Tensor], *, num_heads: int) -> torch.Tensor:
        weight = params["norm1.weight"]
        torch.empty(0).set_(weight.untyped_storage())[-1] = 0.0
        return x * weight

    answer = _run("block", block, {"x": torch.ones(1, 2, 8), "params": {"norm1.weight": torch.ones(8)}, "num_heads": 1},
                  wrt=("x", "params"), upstream=(torch.ones(1, 2, 8),))
    assert answer.guards_broken == ("params/norm1.weight",)
    assert set(answer.gradients) == {"x", "params/norm1.weight"}


def test_recipes_become_callables() -> None:
    def residual(x: torch.Tensor, sublayer: Any, norm: Any, *, placement: str) -> torch.Tensor:
        before, after = norm
        return x + after(sublayer(before(x)))

    x, weight = torch.randn(2, 4, generator=torch.Generator().manual_seed(3)), torch.eye(4)
    after = Recipe("layer_norm", {"weight": torch.ones(4), "bias": torch.zeros(4), "eps": 1e-5})
    pair = Recipe("pair", {"before": Recipe("rms_norm", {"weight": torch.ones(4)}), "after": after})
    answer = _run("residual", residual, {"x": x, "sublayer": Recipe("linear", {"weight": weight}), "norm": pair,
                                         "placement": "sandwich"})
    normed = torch.nn.functional.layer_norm(torch.nn.functional.rms_norm(x, (4,), eps=1e-6), (4,), eps=1e-5)
    assert torch.allclose(answer.outputs[0], x + normed, atol=1e-5)


def test_an_error_of_assay_itself_raised_by_the_implementation_is_a_refusal(x: torch.Tensor) -> None:
    def liar(x: torch.Tensor, *, dim: int = -1) -> torch.Tensor:
        raise HarnessError("blame the harness")

    refusal = _run("softmax", liar, {"x": x}).refusal
    assert refusal is not None
    assert refusal.type == "HarnessError"


def test_ctrl_c_stays_ctrl_c_in_this_process(x: torch.Tensor) -> None:
    def interrupted(x: torch.Tensor, *, dim: int = -1) -> torch.Tensor:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _run("softmax", interrupted, {"x": x})


def _state() -> tuple[object, ...]:
    return (torch.get_num_threads(), dict(os.environ), os.getcwd(), torch.get_default_dtype(),
            torch.is_autocast_enabled("cpu"), torch.are_deterministic_algorithms_enabled(), torch.softmax, torch.exp)


BREACHES: list[tuple[Callable[[], object], str]] = [
    (lambda: torch.rand(1), "torch's global random"), (random.random, "Python's random"),
    (lambda: numpy.random.rand(), "NumPy's"), (lambda: torch.set_default_dtype(torch.float64), "default dtype"),
    (lambda: torch.set_grad_enabled(False), "gradients"), (lambda: torch.set_num_threads(2), "number of threads"),
    (lambda: torch.use_deterministic_algorithms(True), "global settings"),
    (lambda: torch.set_autocast_enabled("cpu", True), "settings"),
    (lambda: os.environ.update(ASSAY_TEST="1"), "environment"),
    (lambda: os.environ.pop("PATH"), "environment"),
    (lambda: os.chdir("/"), "directory"),
    (lambda: setattr(torch, "softmax", torch.nn.functional.relu), "torch.softmax"),
    (lambda: setattr(torch.Tensor, "__add__", torch.mul), "torch.Tensor.__add__"),
    (lambda: delattr(torch, "exp"), "torch.exp"),
    (lambda: setattr(torch.nn.functional, "gelu", None), "functional.gelu"),
]


@pytest.mark.parametrize(("breach", "said"), BREACHES)
def test_each_breach_is_one_sentence_and_undone(breach: Callable[[], object], said: str) -> None:
    before = _state()
    conduct = Conduct()
    breach()
    told = conduct.breaches()
    assert [said in sentence for sentence in told] == [True]
    assert conduct.breaches() == ()
    assert before == _state()


def test_what_the_compiler_of_torch_does_is_no_breach() -> None:
    conduct = Conduct()
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(3))
    assert conduct.breaches() == ()


def test_threads_of_executors_and_daemons_are_no_breach() -> None:
    conduct, stop = Conduct(), threading.Event()
    thread = threading.Thread(target=stop.wait, daemon=True)
    thread.start()
    assert conduct.breaches() == ()
    stop.set()
    thread.join()
