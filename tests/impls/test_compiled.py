"""The compiled references: a graph really runs, and a call that none served is not exercised, never passed off, never a fail."""
from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from assay import registry
from assay.compiling import Compiled, missing_compiler
from assay.errors import NotExercisedError
from assay.impls import compiled as bridges
from assay.run.counting import Counter
from assay.run.judge import Settings
from assay.run.judging import Bench
from assay.run.plan import CaseSpec, Selection, make_plan


def halved(x: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
    return torch.exp(x) / 2 * scale


@torch.compiler.disable
def hidden(x: torch.Tensor) -> torch.Tensor:
    return halved(x)


def test_every_call_runs_a_graph_and_shapes_share_graphs_after_the_first() -> None:
    compiled = Compiled(halved, "aot_eager", shapes=2)
    for calls, size in enumerate((2, 3, 4, 5, 6, 7), 1):
        x = torch.linspace(-1, 1, size)
        assert torch.equal(compiled(x), halved(x))
        assert compiled.ran == calls
    assert compiled.graphs == 3  # two shapes of their own, then one graph with the size as a symbol


def test_parameters_of_other_values_run_the_same_graph() -> None:
    def times(x: torch.Tensor, layers: list[dict[str, torch.Tensor]]) -> torch.Tensor:
        return x * layers[0]["scale"]

    compiled = Compiled(times, "aot_eager", shapes=1)
    for value in (1.0, 2.0, 3.0):
        assert torch.equal(compiled(torch.ones(3), [{"scale": torch.full((3,), value)}]), torch.full((3,), value))
    assert compiled.graphs == 1
    compiled(torch.ones(4), [{"scale": torch.ones(4)}])
    assert compiled.graphs == 2  # the second shape's, with sizes as symbols
    assert compiled.ran == 4


def test_gradients_come_through() -> None:
    x = torch.linspace(-1, 1, 5, requires_grad=True)
    Compiled(halved, "aot_eager")(x).sum().backward()
    assert torch.equal(x.grad, halved(x.detach()))


def test_the_recompile_limit_is_told_and_never_a_silent_fallback() -> None:
    compiled = Compiled(halved, "aot_eager", shapes=0, limit=1)
    compiled(torch.ones(3))
    with pytest.raises(NotExercisedError, match="recompile limit"):
        compiled(torch.ones(3, requires_grad=True))  # another graph of the same options


def test_a_call_without_a_graph_is_not_exercised() -> None:
    with pytest.raises(NotExercisedError, match="no compiled graph ran"):
        Compiled(lambda x: hidden(x), "aot_eager", whole=False)(torch.ones(3))


def test_a_graph_is_counted_as_it_runs_and_not_as_it_is_made() -> None:
    def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x @ w).exp()

    compiled, x, w = Compiled(product, "aot_eager"), torch.ones(3, 4), torch.ones(4, 5)
    for call in (product, compiled, compiled):  # the second makes the graph, the third finds it
        with Counter({}) as counter:
            call(x, w)
        assert counter.counts["multiply_adds"] == 3 * 4 * 5
    assert (compiled.ran, compiled.graphs) == (2, 1)


@pytest.mark.parametrize("kind", bridges.FURTHER)
def test_a_whole_graph_of_every_further_kind_is_right(kind: str) -> None:
    """On the first examples of what says that it is right, each served by a graph."""
    shown = next(one.rests_on for one in registry.properties(kind) if one.id == f"{kind}/copies_compute_the_same")
    bench = Bench([{"isolated": False, "declarations": [{"kind": kind, "name": f"compiled-aot-{kind}"}]}],
                  Settings(profile="quick", most=4), None)
    examples = bench.run(CaseSpec(shown[-1], kind, f"compiled-aot-{kind}", "cpu", "float32"))["examples"]
    assert examples["right"] and not examples["wrong"] + examples["not_supported"]


class Watching(TorchDispatchMode):
    """As a debugger's mode."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def test_under_a_mode_that_forbids_it_no_graph_is_made_and_later_calls_are_as_before() -> None:
    compiled = Compiled(halved, "aot_eager")
    with Watching(), pytest.raises(NotExercisedError, match="a mode watches every operation"):
        compiled(torch.ones(3))
    assert torch.equal(compiled(torch.ones(3)), halved(torch.ones(3)))
    assert compiled.ran == 1


def test_a_fallback_makes_the_case_not_exercised(monkeypatch: pytest.MonkeyPatch) -> None:
    made = next(one for one in registry.declarations("softmax") if one.name == "compiled-aot-softmax")
    monkeypatch.setitem(bridges.AOT, "softmax", Compiled(bridges.AOT["softmax"].function, "aot_eager", limit=1))
    bench = Bench([{"isolated": False, "declarations": [made.to_json()]}], Settings(profile="quick", most=4), None)
    case = CaseSpec("softmax/recording_gradients_does_not_matter", "softmax", made.name, "cpu", "float32")
    found = bench.run(case)
    assert (found["status"], found["counterexample"]) == ("not-exercised", None), found["message"]
    assert "recompile limit" in found["message"]


def test_only_bridges_of_ours_may_say_that_a_path_was_not_taken() -> None:
    """Anyone else's is not supported, which counts as open."""
    def absent(x: torch.Tensor, *, dim: int = -1) -> Any:
        raise NotExercisedError("never")

    from assay.contract.declaration import declare
    made = declare("softmax", absent, name="absent")
    bench = Bench([{"isolated": False, "declarations": [], "declared": [made]}], Settings(profile="quick"), None)
    found = bench.run(CaseSpec("softmax/output_is_the_formula", "softmax", "absent", "cpu", "float32"))
    assert found["status"] == "not-supported"


def test_inductor_needs_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "no-such-compiler" in missing_compiler("inductor") and not missing_compiler("aot_eager")
    with pytest.raises(NotImplementedError, match="C\\+\\+"):
        Compiled(halved, "inductor")(torch.ones(3))


def test_inductor_is_planned_where_named_or_by_the_profile_deep() -> None:
    made = [one for one in registry.declarations("softmax") if one.deep and one.name.startswith("compiled")]
    assert [one.name for one in made] == ["compiled-inductor-softmax"]
    properties = registry.properties("softmax")
    held = Selection(held=frozenset({("softmax", "compiled-inductor-softmax")}), deep=False)
    without = make_plan(made, properties, held)
    assert not without.cases
    assert {one["status"] for one in without.left_out if "takes long" in one["reason"]} == {"not-exercised"}
    named = make_plan(made, properties, Selection(deep=False))
    assert named.cases and all("compiling" not in case.property for case in named.cases)
    assert make_plan([replace(made[0], deep=False)], properties, Selection(deep=False, only=("compiling_does_not_matter",))).cases


def test_a_module_is_compiled_like_a_function() -> None:
    class Halves(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x / 4 if torch.compiler.is_compiling() else x / 2

    compiled = Compiled(Halves(), "aot_eager", whole=False)
    assert compiled(torch.ones(3)).tolist() == [0.25] * 3 and compiled.ran == 1


def test_an_older_torch_is_given_what_it_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    newer = torch.compile

    def older(model: Any, *, fullgraph: bool = False, dynamic: bool | None = None, backend: Any = "inductor") -> Any:
        return newer(model, fullgraph=fullgraph, dynamic=dynamic, backend=backend)

    monkeypatch.setattr(torch, "compile", older)
    monkeypatch.delattr("torch.utils._python_dispatch.is_in_any_mode_without_ignore_compile_internals")
    compiled = Compiled(torch.sin, "aot_eager", whole=False)
    assert torch.equal(compiled(torch.ones(3)), torch.sin(torch.ones(3))) and compiled.graphs == 1
