"""Objects made by factories live in the host: caches stay there, instances do not touch each other."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from assay.errors import HarnessError
from assay.hosting import Call, Handle
from assay.run.hosts import RemoteHost
from assay.run.zygote_process import Zygote

MODELS = str(Path(__file__).with_name("model_kernels.py"))
IDS = torch.tensor([[3, 1, 4, 1, 5]])


@pytest.fixture
def host(zygote: Zygote) -> Iterator[RemoteHost]:
    made = RemoteHost(zygote.address, MODELS)
    yield made
    made.close()


def _model(method: str, seed: int = 5, **arguments: Any) -> Call:
    return Call("causal_lm", "sums", arguments, method=method, seed=seed)


def _step(host: RemoteHost, ids: torch.Tensor, cache: Handle | None) -> tuple[torch.Tensor, Handle]:
    answer = host.call(replace(_model("step", ids=ids, cache=cache), keep=(1,)))
    assert answer.refusal is None
    return answer.outputs[0], answer.outputs[1]


def test_steps_with_a_cache_that_stays_in_the_host(host: RemoteHost) -> None:
    whole = host.call(_model("__call__", ids=IDS)).outputs[0]
    first, cache = _step(host, IDS[:, :2], None)
    assert cache.size == 11 * 4
    branch, _ = _step(host, IDS[:, 2:4], replace(cache, copy=True))  # the cache itself stays as it is
    second, cache = _step(host, IDS[:, 2:], cache)
    assert torch.allclose(torch.cat([first, second], 1), whole)
    assert torch.equal(branch, second[:, :2])


def test_a_released_cache_is_gone(host: RemoteHost) -> None:
    _, cache = _step(host, IDS, None)
    host.call(replace(_model("vocab_size"), release=(cache.number,)))
    with pytest.raises(HarnessError, match="handle="):
        _step(host, IDS, cache)


def test_attributes_are_values(host: RemoteHost) -> None:
    assert host.call(_model("vocab_size")).outputs == (11,)
    assert host.call(_model("max_length")).outputs == (None,)


def test_seeds_instances_and_copies(host: RemoteHost) -> None:
    call = _model("__call__", ids=IDS)
    first = host.call(call)
    out = first.outputs[0]
    assert first.state == ()  # seeding in the factory is no breach
    assert not torch.equal(host.call(replace(call, seed=6)).outputs[0], out)
    for instance in (1, -1, -2):
        assert torch.equal(host.call(replace(call, instance=instance)).outputs[0], out)
    counts = [host.call(replace(_model("calls"), instance=n)).outputs[0] for n in (0, 1, -1)]
    assert counts == [1, 1, 2]  # the copy was made after the original's only call


def test_gradients_of_parameters(host: RemoteHost) -> None:
    call = replace(_model("__call__", ids=IDS), wrt=("parameters",), upstream=(torch.ones(1, 5, 11),))
    answer = host.call(call)
    assert sorted(answer.gradients) == ["parameters/0"]
    gradient = answer.gradients["parameters/0"]
    assert gradient is not None
    assert gradient[:, 0].tolist() == [0, 4 + 2, 0, 5, 3, 1, 0, 0, 0, 0, 0]


def test_parameters_are_outputs(host: RemoteHost) -> None:
    answer = host.call(_model("parameters"))
    assert (answer.structure, [f.shape for f in answer.facts if f]) == ("iterator", [(11, 11)])


def test_a_tokenizer(host: RemoteHost) -> None:
    def ask(method: str, **arguments: Any) -> Any:
        return host.call(Call("tokenizer", "letters", arguments, method=method)).outputs

    assert ask("encode", text="abc") == ([1, 2, 3],)
    assert ask("decode", ids=[1, 2, 3]) == ("abc",)
    ids, mask = ask("pad", rows=[[1, 2], [3, 0]])
    assert ids.tolist() == [[1, 2], [3, 0]]
    assert mask.tolist() == [[True, True], [True, False]]
