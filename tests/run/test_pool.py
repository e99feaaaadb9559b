"""How jobs are dealt out to workers."""
from __future__ import annotations

from assay.run.plan import CaseSpec
from assay.run.pool import Job, Waiting

PROPERTIES, IMPLEMENTATIONS = ("k/a", "k/b", "k/c"), ("one", "two", "three")
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
