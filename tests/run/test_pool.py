"""How jobs are dealt out to workers."""
from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from assay import registry
from assay.run.judge import Settings
from assay.run.plan import CaseSpec
from assay.run.pool import Job, Pool, Waiting
from assay.run.zygote_process import STARTS, Zygote

PROPERTIES, IMPLEMENTATIONS = ("k/a", "k/b", "k/c"), ("one", "two", "three")
SOFTMAX = [Job(CaseSpec(f"softmax/{name}", "softmax", "reference", "cpu", "float32")) for name in (
    "rows_sum_to_one", "output_is_the_formula", "results_have_the_right_form", "inputs_are_left_unchanged")]
JOBS = [Job(CaseSpec(prop, "k", name, "cpu", "float32")) for prop in PROPERTIES for name in IMPLEMENTATIONS]


def taken(workers: int) -> list[tuple[int, Job]]:
    """Jobs as workers that take turns come by them."""
    waiting, found = Waiting(JOBS), []
    while True:
        for worker in range(workers):
            job = waiting.take(worker)
            if job is None:
                return found
            found.append((worker, job))


def test_every_job_is_taken_once() -> None:
    for workers in (1, 2, 4):
        assert sorted(job.case.id for _, job in taken(workers)) == sorted(job.case.id for job in JOBS)
    assert Waiting().take(0) is None


def test_implementations_of_a_property_stay_with_one_worker_while_there_are_others_to_take() -> None:
    who = {prop: [worker for worker, job in taken(2) if job.case.property == prop] for prop in PROPERTIES}
    assert (who["k/a"], who["k/b"]) == ([0, 0, 0], [1, 1, 1])
    assert set(who["k/c"]) == {0, 1}, "at the end nobody waits"


def softmax_pool(zygote: Zygote) -> Pool:
    """One worker that judges the reference's softmax."""
    properties = {prop.id: prop for prop in registry.properties("softmax")}
    targets = [{"isolated": False, "target": "reference", "kind": "softmax",
                "declarations": [{"kind": "softmax", "name": "reference"}]}]
    return Pool(zygote, {"targets": targets}, Settings(profile="quick"), 1, properties)


@pytest.mark.parametrize("killed", [STARTS - 1, STARTS])
def test_a_zygote_that_is_ended_is_started_once_more_and_what_its_judges_had_is_judged_again(killed: int) -> None:
    results = list[dict[str, Any]]()
    with Zygote() as zygote:
        for result in softmax_pool(zygote).results(SOFTMAX):
            results.append(result)
            if len(results) <= killed:
                os.kill(zygote.pid, signal.SIGKILL)
    statuses = [result["status"] for result in results]
    assert len(statuses) == len(SOFTMAX) and zygote.starts == STARTS
    assert statuses.count("harness-error") == (0 if killed < STARTS else len(SOFTMAX) - killed), statuses


def test_a_judge_that_waited_for_work_is_not_asked_after_its_zygote_was_ended() -> None:
    with Zygote() as zygote:
        pool = softmax_pool(zygote)
        before = [result["status"] for result in pool.results(SOFTMAX[:1])]
        os.kill(zygote.pid, signal.SIGKILL)
        assert zygote.revive(1)  # as another worker does
        assert [result["status"] for result in pool.results(SOFTMAX[:1])] == before == ["pass"]


def test_a_closed_zygote_is_not_started_again() -> None:
    zygote = Zygote()
    zygote.close()
    assert not zygote.revive(zygote.starts) and zygote.starts == 1
