"""Parquet to DuckDB: what counts, what is skipped and said, and which blocks pair up."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from synthetic import REPEATED, World, usual_forecasts, write_expectation, write_run
from typer.testing import CliRunner

from pipelines import cli
from pipelines.database import Row, open_database
from pipelines.paths import Layout
from pipelines.warehouse import Warehouse, build_warehouse
from runner.catalog import Point
from runner.errors import UsageError
from runner.records import BLOCKS

ONE = (Point(prefix=363, hops=4),)


def _build(root: Path) -> Warehouse:
    layout = Layout(root)
    return build_warehouse(layout, layout.database)


def _rows(root: Path, query: str) -> list[Row]:
    _build(root)
    with open_database(Layout(root).database) as database:
        return database.rows(query)


def _published(root: Path, **changes: Any) -> Path:
    return write_run(Layout(root).published, World(points=ONE, **changes))


def test_an_empty_checkout_builds(tmp_path: Path) -> None:
    built = _build(tmp_path)
    assert (built.n_runs, built.skipped) == (0, ())
    assert _rows(tmp_path, "from ratios") == []


def test_published_and_local_runs_stand_apart(tmp_path: Path) -> None:
    _published(tmp_path)
    write_run(Layout(tmp_path).local, World(run_id="mine", points=ONE))
    found = _rows(tmp_path, "select run_id, published from run order by published")
    assert [(row["run_id"], row["published"]) for row in found] == [
        ("mine", False),
        ("20260102T030405-synthetic", True),
    ]


def test_a_run_in_both_places_counts_once_as_published(tmp_path: Path) -> None:
    folder = _published(tmp_path)
    shutil.copytree(folder, Layout(tmp_path).local / "cpu" / folder.name)
    (row,) = _rows(tmp_path, "select count(*) as n, bool_and(published) as published from run")
    assert (row["n"], row["published"]) == (1, True)


def test_the_ratio_is_that_of_the_planted_world(tmp_path: Path) -> None:
    _published(tmp_path, noise=0.001)
    (row,) = _rows(tmp_path, "from ratios where measure = 'whole session'")
    point = ONE[0]
    turns = point.hops + 1
    decode = turns * (point.generate - 1) * 0.01
    contexts = [point.prefix + hop * (point.generate + point.result) for hop in range(turns)]
    live = point.prefix + point.hops * (point.result + 1)
    planted = (sum(contexts) * 0.002 + decode) / (live * 0.002 + decode)
    assert row["ratio"] == pytest.approx(planted, rel=0.005)
    assert row["low"] < row["ratio"] < row["high"]
    assert (row["n_blocks"], row["n_void"], row["n_prefix"], row["n_hops"]) == (10, 0, 363, 4)


def test_the_saving_adds_up(tmp_path: Path) -> None:
    _published(tmp_path)
    found = _rows(tmp_path, "from closure")
    assert [row["hop"] for row in found] == [0, 1, 2, 3, 4]
    for row in found:
        parts = row["prefill_s"] + row["decode_s"] + row["other_s"]
        assert parts == pytest.approx(row["saved_s"])
    (claim,) = _rows(tmp_path, "from hops_times_ttft")
    assert claim["share_of_ttft_difference"] == pytest.approx(1, abs=0.05)
    assert claim["share_of_ttft"] < claim["share_of_ttft_difference"]


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _other_version(path: Path) -> None:
    table = pq.read_table(path)
    metadata = {**table.schema.metadata, b"livekv.schema_version": b"99"}
    pq.write_table(table.replace_schema_metadata(metadata), path)


def _with_nan(path: Path) -> None:
    table = pq.read_table(path)
    column = table.schema.get_field_index("wall_s")
    values = [float("nan"), *table["wall_s"].to_pylist()[1:]]
    pq.write_table(table.set_column(column, BLOCKS.field("wall_s"), pa.array(values)), path)


def _repeated(path: Path) -> None:
    table = pq.read_table(path)
    pq.write_table(pa.concat_tables([table, table.slice(0, 1)]), path)


def _of_another_run(path: Path) -> None:
    table = pq.read_table(path)
    ids = pa.array(["other"] * table.num_rows)
    pq.write_table(table.set_column(0, BLOCKS.field("run_id"), ids), path)


def _fewer_columns(path: Path) -> None:
    pq.write_table(pq.read_table(path).drop_columns(["wall_s"]), path)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda path: path.write_bytes(b""), "not a readable Parquet file"),
        (_cut, "not a readable Parquet file"),
        (_other_version, "schema version 99"),
        (_with_nan, "NaN or infinity in blocks.wall_s"),
        (_repeated, "a measurement may count once"),
        (_of_another_run, "belongs to run"),
        (_fewer_columns, "columns of table blocks"),
        (lambda path: path.unlink(), "missing"),
    ],
)
def test_a_spoiled_run_is_skipped_whole_and_the_rest_is_built(
    tmp_path: Path, spoil: Callable[[Path], Any], said: str
) -> None:
    _published(tmp_path, run_id="good")
    bad = _published(tmp_path, run_id="bad")
    spoil(bad / "blocks.parquet")
    (skipped,) = _build(tmp_path).skipped
    assert skipped.path == bad / "blocks.parquet"
    assert said in skipped.reason
    assert _rows(tmp_path, "select distinct run_id from hops") == [{"run_id": "good"}]
    assert _rows(tmp_path, "select path from skipped") == [
        {"path": "data/runs/cpu/bad/blocks.parquet"}
    ]


def test_an_unfinished_run_contributes_nothing(tmp_path: Path) -> None:
    folder = _published(tmp_path)
    (folder / "run.parquet").rename(folder / "run.parquet.partial")
    reasons = {item.path.name: item.reason for item in _build(tmp_path).skipped}
    assert "no run.parquet" in reasons[folder.name]
    assert "killed" in reasons["run.parquet.partial"]
    assert _rows(tmp_path, "from blocks") == []


def test_a_stray_file_is_named(tmp_path: Path) -> None:
    folder = _published(tmp_path)
    shutil.copy(folder / "run.parquet", folder / ".tmp-run.parquet")
    (skipped,) = _build(tmp_path).skipped
    assert skipped.path.name == ".tmp-run.parquet"
    assert len(_rows(tmp_path, "from run")) == 1


def test_a_run_moved_to_another_platform_is_refused(tmp_path: Path) -> None:
    folder = _published(tmp_path)
    target = Layout(tmp_path).published / "cuda" / folder.name
    shutil.copytree(folder, target)
    shutil.rmtree(folder)
    (skipped,) = _build(tmp_path).skipped
    assert "measured on platform 'cpu'" in skipped.reason


def _break_receipt(row: dict[str, Any]) -> None:
    if row["arm"] == "live_kv" and row["block"] == 0 and row["hop"] == 2:
        row["n_evaluated"] += 1


def _reuse_in_baseline(row: dict[str, Any]) -> None:
    if row["arm"] == "reprefill" and row["block"] == 0 and row["hop"] == 1:
        row["n_reused"] = 1


def _forgot(row: dict[str, Any]) -> None:
    if row["arm"] == "live_kv" and row["block"] == 0 and row["hop"] == 2:
        row["n_reused"] -= 1


def _other_input(row: dict[str, Any]) -> None:
    if row["arm"] == "live_kv" and row["block"] == 0 and row["hop"] == 3:
        row["digest_in"] = "something else"


def _other_output(row: dict[str, Any]) -> None:
    if row["arm"] == "live_kv" and row["block"] == 0 and row["hop"] == 0:
        row["digest_out"] = "something else"


def _skip_hop(row: dict[str, Any]) -> None:
    if row["arm"] == "live_kv" and row["block"] == 0 and row["hop"] == 4:
        row["_drop"] = True


def _truncate(row: dict[str, Any]) -> None:
    if row["block"] == 0 and row["hop"] == 4:
        row["n_generated"] -= 1
        row["n_evaluated"] -= 1


@pytest.mark.parametrize(
    ("sabotage", "said"),
    [
        (_break_receipt, "live_kv hop 2: 57 tokens evaluated, 56 expected"),
        (_reuse_in_baseline, "reprefill hop 1"),
        (_forgot, "live_kv hop 2: 56 tokens evaluated, 56 expected; 449 reused, 450 expected"),
        (_other_input, "differ in their tokens at hop 3"),
        (_other_output, "differ in their tokens at hop 0"),
        (_skip_hop, "live_kv has 4 turns, 5 expected"),
        (_truncate, "live_kv generated 31 to 32 tokens a turn, 32 expected"),
    ],
)
def test_sabotage_in_a_hop_voids_the_block_with_its_reason(
    tmp_path: Path, sabotage: Callable[[dict[str, Any]], None], said: str
) -> None:
    _published(tmp_path, edit_hop=sabotage)
    (void,) = _rows(tmp_path, "select block, reason from block_pairs where not usable")
    assert void["block"] == 0
    assert said in void["reason"]
    (row,) = _rows(tmp_path, "from ratios where measure = 'whole session'")
    assert (row["n_blocks"], row["n_void"]) == (9, 1)


def test_a_a_holds_the_receipts_of_the_treatment(tmp_path: Path) -> None:
    def forgot(row: dict[str, Any]) -> None:
        if row["arm"] == "live_kv_again" and row["block"] == 3 and row["hop"] == 1:
            row["n_reused"] = 0

    _published(tmp_path, arms=REPEATED, edit_hop=forgot)
    (void,) = _rows(tmp_path, "from block_pairs where not usable")
    assert (void["baseline"], void["block"]) == ("live_kv_again", 3)
    assert void["reason"].startswith("live_kv_again hop 1:")


def test_an_arm_without_a_receipt_rule_is_never_usable(tmp_path: Path) -> None:
    _published(tmp_path, arms=("live_kv", "reprefill", "newcomer"))
    found = _rows(tmp_path, "select distinct baseline, usable, reason from block_pairs order by 1")
    assert [(row["baseline"], row["usable"]) for row in found] == [
        ("newcomer", False),
        ("reprefill", True),
    ]
    assert "newcomer has no receipt rule" in found[0]["reason"]


def test_repeats_in_a_block_and_more_hops_narrow_nothing(tmp_path: Path) -> None:
    def repeated(row: dict[str, Any]) -> None:
        row.update(n_repeats=7, repeat_wall_s=[row["wall_s"]] * 7)

    def cut(row: dict[str, Any]) -> None:
        row["wall_s"] = (2.0 if row["arm"] == "reprefill" else 1.0) + 0.01 * (row["block"] % 3)

    once, often = tmp_path / "once", tmp_path / "often"
    _published(once)
    _published(often, edit_block=repeated)
    assert _rows(once, "from ratios") == _rows(often, "from ratios")
    few, many = tmp_path / "few", tmp_path / "many"
    for root, hops in ((few, 1), (many, 9)):
        world = World(points=(Point(prefix=363, hops=hops),), edit_block=cut)
        write_run(Layout(root).published, world)
    query = "select n_blocks, ratio, low, high from ratios where measure = 'whole session'"
    assert _rows(few, query) == _rows(many, query)


def _failed(row: dict[str, Any]) -> None:
    if row["arm"] == "reprefill" and row["block"] == 1:
        row.update(status="failed", reason="worker killed by signal 9", wall_s=None)


def _other_script(row: dict[str, Any]) -> None:
    if row["arm"] == "reprefill" and row["block"] == 1:
        row["script_digest"] = "another"


def _absent(row: dict[str, Any]) -> None:
    if row["arm"] == "live_kv" and row["block"] == 1:
        row["_drop"] = True


def _no_time(row: dict[str, Any]) -> None:
    if row["arm"] == "live_kv" and row["block"] == 1:
        row["wall_s"] = None


@pytest.mark.parametrize(
    ("sabotage", "said"),
    [
        (_failed, "reprefill is failed: worker killed by signal 9"),
        (_other_script, "different scripts"),
        (_absent, "live_kv did not run in this block"),
        (_no_time, "live_kv has no time"),
    ],
)
def test_a_block_needs_both_arms_and_one_script(
    tmp_path: Path, sabotage: Callable[[dict[str, Any]], None], said: str
) -> None:
    _published(tmp_path, edit_block=sabotage)
    (void,) = _rows(tmp_path, "select block, reason from block_pairs where not usable")
    assert void["block"] == 1
    assert said in void["reason"]


def test_a_target_stands_beside_ours_with_its_comparison(tmp_path: Path) -> None:
    shutil.copytree(Path(__file__).parents[2] / "data" / "targets", tmp_path / "data" / "targets")
    _published(tmp_path)
    _published(tmp_path, run_id="shape", model_id="shape:qwen2.5-1.5b-q4_k_m")
    found = _rows(
        tmp_path,
        "from measured_vs_target where run_id is not null and target_id = 'reference-cpu-1.5b-h4'",
    )
    assert [(row["model_id"], row["comparison"], row["comparable"]) for row in found] == [
        ("shape:qwen2.5-1.5b-q4_k_m", "same shape and quantisation, another machine", True),
        ("smollm2-135m", "another model", False),
    ]
    assert {row["target_low"] for row in found} == {2.14}


def test_a_registered_run_is_not_displaced_by_a_newer_exploratory_one(tmp_path: Path) -> None:
    _published(tmp_path, run_id="old", registration_status="registered")
    _published(tmp_path, run_id="new", days=1)
    assert [row["run_id"] for row in _rows(tmp_path, "from headline")] == ["old"]


def test_headline_says_what_closure_knows(tmp_path: Path) -> None:
    _published(tmp_path)
    (row,) = _rows(tmp_path, "from headline")
    assert (row["explained"], row["replication"]) == (None, None)
    with duckdb.connect(str(Layout(tmp_path).database)) as connection:
        connection.execute("update closure_points set explained = false")
        (found,) = connection.execute("select explained from headline").fetchall()
    assert found == (False,)


def test_two_builds_hold_the_same_rows(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    name, digest = write_expectation(layout.data, *usual_forecasts(), repeat_arm="live_kv_again")
    # More blocks than the sign flip tries exactly: what is drawn must be drawn the same.
    world = World(n_blocks=15, arms=REPEATED, registration_status="registered")
    world.expectation_id, world.expectation_digest = name, digest
    write_run(layout.published, world)
    tables = ("ratios", "verdicts", "order_effects", "replications", "headline")
    first = [_rows(tmp_path, f"from {table}") for table in tables]
    assert first == [_rows(tmp_path, f"from {table}") for table in tables]
    assert all(first)


def test_a_failed_build_keeps_the_old_file(tmp_path: Path) -> None:
    _published(tmp_path)
    before = _build(tmp_path).path.read_bytes()
    (tmp_path / "data" / "targets").mkdir()
    (tmp_path / "data" / "targets" / "x.toml").write_text("[[target")
    with pytest.raises(UsageError, match="not TOML"):
        _build(tmp_path)
    assert Layout(tmp_path).database.read_bytes() == before
    assert [path.name for path in (tmp_path / "data").glob("results*")] == ["results.duckdb"]


def test_the_file_opens_in_plain_duckdb(tmp_path: Path) -> None:
    _published(tmp_path)
    path = _build(tmp_path).path
    with duckdb.connect(str(path), read_only=True) as connection:
        assert len(connection.execute("from ratios").fetchall()) == 4
        tables = {row[0] for row in connection.execute("show tables").fetchall()}
    assert {"run", "blocks", "hops", "checks", "verdicts", "closure", "block_pairs"} <= tables
    assert {"order_effects", "replications", "headline", "arm_rules"} <= tables


@pytest.fixture
def in_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("pipelines.cli.Layout", lambda: Layout(tmp_path))
    return tmp_path


def test_strict_fails_on_a_skipped_file_and_names_it(in_checkout: Path) -> None:
    _cut(_published(in_checkout) / "hops.parquet")
    plain = CliRunner().invoke(cli.app, ["warehouse"])
    strict = CliRunner().invoke(cli.app, ["warehouse", "--strict"])
    assert plain.exit_code == 0
    assert "hops.parquet" in plain.output
    assert isinstance(strict.exception, cli.SkippedFilesError)
    assert "1 file(s)" in str(strict.exception)


def test_ratios_of_the_latest_run_are_printed(in_checkout: Path) -> None:
    _published(in_checkout)
    write_run(Layout(in_checkout).local, World(run_id="mine", points=ONE, days=2))
    _build(in_checkout)
    said = CliRunner().invoke(cli.app, ["ratios", "--latest"], env={"COLUMNS": "200"})
    assert said.exit_code == 0, said.output
    assert "mine" in said.output and "not evidence" in said.output
    assert "363 / 4" in said.output and "data/results.duckdb" in said.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["ratios", "--run", "nobody"], "no run 'nobody'"),
        (["ratios", "--latest", "--run", "x"], "name two runs"),
    ],
)
def test_bad_requests_are_one_line(in_checkout: Path, arguments: list[str], said: str) -> None:
    _published(in_checkout)
    _build(in_checkout)
    result = CliRunner().invoke(cli.app, arguments)
    assert isinstance(result.exception, UsageError)
    assert said in str(result.exception)


def test_without_a_database_it_says_how_to_build_one(in_checkout: Path) -> None:
    result = CliRunner().invoke(cli.app, ["ratios"])
    assert isinstance(result.exception, UsageError)
    assert "nox -s warehouse" in str(result.exception)
