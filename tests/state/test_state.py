"""State under any sequence of operations: right implementations pass every machine, and planted faults break it."""
from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from assay import registry

sys.path.insert(0, str(Path(__file__).parent))

from held import Machine, run
from model_machines import CacheMachine, GenerationMachine, SampledGenerationMachine
from running_machines import DropoutMachine, RunningStatisticsMachine, SamplerMachine
from window_machines import BlocksMachine, WindowMachine

RIGHT, WRONG = 6, 300  # sequences drawn: on what must pass, and at most until a fault shows
MACHINES: dict[type[Machine], tuple[str, tuple[str, ...]]] = {  # machine -> kind, faults that break it
    CacheMachine: ("causal_lm", (
        "cache_forgets_oldest", "cache_in_model", "positions_restart", "longest_remembered", "cache_in_wrong_order",
        "cache_shared_by_layers", "cache_hidden", "cache_in_bfloat16", "causal_without_cache_only", "chunk_shares_position",
        "positions_one_too_high", "last_logits_repeated", "step_logits_scaled", "rows_mixed", "seed_ignored", "copy_drawn_again")),
    GenerationMachine: ("causal_lm", ("cache_in_model", "longest_remembered", "seed_ignored")),
    SampledGenerationMachine: ("sampler", ("seed_ignored",)),
    WindowMachine: ("attention", ("window_one_too_wide", "window_one_too_narrow", "window_one_too_wide_with_cache",
                                  "window_row_off_with_cache")),
    BlocksMachine: ("paged_attention", ("table_remembered", "table_ignored", "tail_of_block_unmasked", "table_of_first_sequence",
                                        "length_of_first_sequence", "newest_token_not_read")),
    RunningStatisticsMachine: ("batch_norm", ("updates_in_evaluation", "running_not_updated", "batch_statistics_in_evaluation",
                                              "running_statistics_in_training", "momentum_the_other_way",
                                              "running_variance_biased")),
    DropoutMachine: ("dropout", ("seed_and_a_counter", "same_mask_for_every_seed", "on_in_evaluation", "scaled_in_evaluation",
                                 "drops_without_a_rate")),
    SamplerMachine: ("sampler", ("seed_ignored", "seed_constant")),
}
CASES = [pytest.param(machine, f"{kind}/{fault}", id=f"{machine.__name__}-{fault}")
         for machine, (kind, faults) in MACHINES.items() for fault in faults]
WAYS = [pytest.param(machine, kind, id=machine.__name__) for machine, (kind, _) in MACHINES.items()]


@pytest.fixture(autouse=True)
def _global_state() -> Iterator[None]:
    """Machines move torch's global generator on purpose."""
    with torch.random.fork_rng(devices=[]):
        yield


@pytest.mark.parametrize(("machine", "id"), CASES)
def test_a_planted_fault_breaks_the_machine(machine: type[Machine], id: str) -> None:
    with pytest.raises(AssertionError):
        run(machine, id, examples=WRONG)


@pytest.mark.parametrize(("machine", "kind"), WAYS)
def test_the_reference_and_right_ways_pass(machine: type[Machine], kind: str) -> None:
    able = [one.id for one in registry.benigns(kind) if "cache" not in one.declaration.lacks]
    for id in (f"{kind}/reference", *able):
        run(machine, id, examples=RIGHT)
