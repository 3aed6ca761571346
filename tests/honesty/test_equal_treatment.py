"""What cannot differ between arms, because there is one value of it in the plan."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from laboratory import ARMS, CLAIM, CONTROL, Laboratory
from simulated import Machine

from runner.bench.schedule import plan_blocks


def test_the_arms_of_a_block_get_the_same_job(lab: Laboratory) -> None:
    machine = Machine()
    lab.measure(machine)
    told: dict[tuple[int, str], list[dict[str, Any]]] = defaultdict(list)
    for step, job in machine.jobs:
        if step.is_arm:
            told[step.block, step.point].append(job)
    assert len(told) == 20
    for jobs in told.values():
        assert sorted(job["arm"] for job in jobs) == sorted(ARMS)
        # Model file, library, threads, batch, warm-up, seed of the script: all of it.
        first, *others = ({**job, "arm": None} for job in jobs)
        assert others == [first] * (len(ARMS) - 1)
        assert {"model_path", "model_sha256", "n_threads", "n_batch"} <= set(first["load"])


def test_what_was_measured_is_the_order_that_the_seed_gives(lab: Laboratory) -> None:
    lab.measure(Machine(), order_seed=7)
    (run,) = lab.rows("from run")
    planned = plan_blocks((CLAIM.id, CONTROL.id), ARMS, run["blocks_planned"], run["order_seed"])
    rows = lab.rows("select block, point, arm, position from blocks")
    assert {(step.block, step.point, step.arm, step.position) for step in planned} == {
        (row["block"], row["point"], row["arm"], row["position"]) for row in rows
    }


def test_each_arm_holds_each_position_equally_often(lab: Laboratory) -> None:
    lab.measure(Machine(), blocks=9)
    rows = lab.rows("select point, arm, position from blocks")
    held = Counter((row["point"], row["arm"], row["position"]) for row in rows)
    assert len(held) == 2 * len(ARMS) ** 2
    assert set(held.values()) == {3}
