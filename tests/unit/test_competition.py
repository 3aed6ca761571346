"""Arms of other engines: their receipts, and what a reader sees of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from synthetic import World, write_run

from pipelines.database import open_database
from pipelines.paths import Layout
from pipelines.publish.competition import sides
from pipelines.warehouse import build_warehouse
from runner.catalog import Point

POINT = Point(prefix=363, hops=4)
ARMS = ("live_kv", "reprefill", "llama_server", "llama_server_cold", "llama_cpp_python")


def asked(root: Path, query: str, **changes: Any) -> list[dict[str, Any]]:
    layout = Layout(root)
    write_run(layout.published, World(points=(POINT,), arms=ARMS, **changes))
    build_warehouse(layout, layout.database)
    with open_database(layout.database) as database:
        return database.rows(query)


def test_every_baseline_has_its_ratio(tmp_path: Path) -> None:
    rows = asked(tmp_path, "from ratios where measure = 'whole session' order by baseline")
    found = {row["baseline"]: row["ratio"] for row in rows}
    assert set(found) == set(ARMS) - {"live_kv"}
    assert found["reprefill"] == pytest.approx(found["llama_server_cold"], rel=0.05)
    assert found["llama_server"] == pytest.approx(1, abs=0.05)


def test_a_server_that_reports_success_and_reuses_nothing_is_not_tuned(tmp_path: Path) -> None:
    def forgetful(row: dict[str, Any]) -> None:
        if row["arm"] == "llama_server" and row["hop"] > 0:
            row["n_evaluated"] += row["n_reused"]
            row["n_reused"] = 0

    rows = asked(tmp_path, "from block_pairs where not usable", edit_hop=forgetful)
    assert {row["baseline"] for row in rows} == {"llama_server"}
    assert len(rows) == 10
    assert "0 reused" in rows[0]["reason"]


def test_a_slot_that_was_not_empty_at_first_voids_the_pair(tmp_path: Path) -> None:
    def remembering(row: dict[str, Any]) -> None:
        if row["arm"] == "llama_server" and row["hop"] == 0:
            row["n_reused"] = 100
            row["n_evaluated"] -= 100

    rows = asked(tmp_path, "from block_pairs where not usable", edit_hop=remembering)
    assert {row["baseline"] for row in rows} == {"llama_server"}


def test_tokens_beyond_the_script_are_counted_and_shown(tmp_path: Path) -> None:
    def straying(row: dict[str, Any]) -> None:
        if row["arm"] == "llama_server" and row["hop"] > 0:
            row["n_shared"] -= 20
            row["n_reused"] -= 20
            row["n_evaluated"] += 20

    rows = asked(tmp_path, "from extra_tokens order by arm", edit_hop=straying)
    found = {row["arm"]: row["n_extra_a_block"] for row in rows}
    assert found["llama_server"] == 20 * POINT.hops
    assert found["llama_cpp_python"] == 0


def test_transport_is_told_apart(tmp_path: Path) -> None:
    rows = asked(
        tmp_path,
        "from ratios where baseline = 'llama_server' and measure like 'whole session%'"
        " order by measure",
    )
    raw, without = rows
    assert without["measure"] == "whole session, without transport"
    assert without["ratio"] < raw["ratio"]


def test_mechanism_and_competition_stand_in_columns_of_their_own(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    write_run(layout.published, World(points=(POINT,), arms=ARMS))
    build_warehouse(layout, layout.database)
    with open_database(layout.database) as database:
        shown = sides(database)
        (row,) = database.rows("from sides")
    assert row["mechanism"]["ratio"] > 1.5 > row["server"]["ratio"]
    assert "Mechanism: against re-prefill" in shown
    assert "Competitive: against the tuned llama-server" in shown
    assert f"{row['server']['ratio']:.3f}" in shown


def test_without_a_server_run_that_is_said(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    write_run(layout.published, World(points=(POINT,)))
    build_warehouse(layout, layout.database)
    with open_database(layout.database) as database:
        assert sides(database) == "No run against a server is published yet."
