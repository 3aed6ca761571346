"""The floor: what llama-bench says tokens cost, planted and found again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from synthetic import World, write_run

from pipelines.analysis.floor import above
from pipelines.database import Row, open_database
from pipelines.paths import Layout
from pipelines.warehouse import build_warehouse
from runner.catalog import Point

PREFILL, DECODE = 0.002, 0.01
POINTS = (Point(prefix=363, hops=4), Point(prefix=1491, hops=8))


def bench(block: int, prefill_s: float = PREFILL, decode_s: float = DECODE) -> list[dict[str, Any]]:
    """What llama-bench would say of a machine on which depth costs nothing."""
    sizes = {"floor_prefill": (512, prefill_s), "floor_hop": (25, prefill_s)}
    head = {"run_id": World.run_id, "block": block, "repeat": 0, "reason": None}
    return [
        {**head, "kind": kind, "depth": depth, "n_tokens": n, "seconds": n * cost}
        for kind, (n, cost) in {**sizes, "floor_decode": (31, decode_s)}.items()
        for depth in (0, 2000)
    ]


def floors(root: Path, world: World) -> dict[tuple[str, str], Row]:
    layout = Layout(root)
    write_run(layout.published, world)
    build_warehouse(layout, layout.database)
    with open_database(layout.database) as database:
        return {(row["point"], row["arm"]): row for row in database.rows("from floors")}


def world(**changes: Any) -> World:
    rows = [row for block in range(10) for row in bench(block)]
    return World(points=POINTS, calibration=rows, noise=0.005, **changes)


def test_live_kv_of_a_machine_without_overhead_is_on_the_floor(tmp_path: Path) -> None:
    found = floors(tmp_path, world())
    for point in POINTS:
        assert found[point.id, "live_kv"]["ratio"] == pytest.approx(1, abs=0.02)
        assert found[point.id, "reprefill"]["ratio"] > 2
        assert found[point.id, "live_kv"]["n_blocks"] == 10


def test_an_arm_that_is_slower_than_its_tokens_stands_above_the_floor(tmp_path: Path) -> None:
    found = floors(tmp_path, world(slowdown=1.3))
    for point in POINTS:
        row = found[point.id, "live_kv"]
        assert row["low"] < 1.3 < row["high"] or row["ratio"] == pytest.approx(1.3, abs=0.02)


def test_a_run_without_a_floor_has_no_row(tmp_path: Path) -> None:
    assert floors(tmp_path, World(points=POINTS)) == {}


def test_a_block_in_which_llama_bench_broke_off_is_left_out(tmp_path: Path) -> None:
    rows = [row for block in range(9) for row in bench(block)]
    broken = {**bench(9)[0], "seconds": None, "reason": "llama-bench ended with 1", "n_tokens": 0}
    found = floors(tmp_path, World(points=POINTS, calibration=[*rows, broken]))
    assert {row["n_blocks"] for row in found.values()} == {9}


def test_no_pair_is_no_ratio() -> None:
    assert above([]).reason == "no block has both a time and a floor"
    assert above([(1.0, 1.1)]).low is None
