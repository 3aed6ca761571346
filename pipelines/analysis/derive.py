"""Statistics between SQL and SQL: per-block rows come from DuckDB, results go back into tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

import duckdb
import numpy as np

from pipelines.analysis import verdicts
from pipelines.analysis.parity import Parity, equivalence
from pipelines.analysis.ratios import Floats, RatioSummary, log_ratios, summarise
from pipelines.expectations import ExpectationFile
from runner.registration import Expectation, Forecast

PRIMARY: Final = "whole session"

_RATIOS: Final = """
create table ratios (
    run_id varchar, point varchar, workload varchar, n_prefix int, n_hops int,
    baseline varchar, treatment varchar, measure varchar,
    n_void int, n_blocks int, ratio double, low double, high double,
    median_ratio double, median_low double, median_high double, total_ratio double,
    saved_s double, saved_low_s double, saved_high_s double, reason varchar)
"""

_VERDICTS: Final = """
create table verdicts (
    run_id varchar, point varchar, baseline varchar, role varchar,
    forecast_low double, forecast_high double, threshold double, forecast varchar,
    verdict varchar, evidence boolean, parity_margin double, parity_p double, sentence varchar)
"""

_RUNS: Final = """
select r.run_id, r.status, r.status_reason, r.registration_status, r.registration_reason,
       r.expectation_id, r.expectation_digest, r.model_id, coalesce(v.share, 0)
from run r left join void_shares v using (run_id)
order by r.platform, r.run_id
"""


def insert_ratios(con: duckdb.DuckDBPyConnection) -> None:
    """Create and fill table ``ratios`` from view ``ratio_inputs``."""
    con.execute(_RATIOS)
    for *head, base, treat in con.execute("from ratio_inputs").fetchall():
        found = summarise(np.array(base, float), np.array(treat, float))
        _insert(con, "ratios", [*head, *asdict(found).values()])


def insert_verdicts(con: duckdb.DuckDBPyConnection, files: Sequence[ExpectationFile]) -> None:
    """Create and fill table ``verdicts``: one row a run, point and baseline, whole session only."""
    con.execute(_VERDICTS)
    known = {file.digest: file.expectation for file in files}
    for row in con.execute(_RUNS).fetchall():
        run = _Run(*row)
        for line in _judge_run(run, _points(con, run.run_id), known):
            _insert(con, "verdicts", line)


def _insert(con: duckdb.DuckDBPyConnection, table: str, row: Sequence[object]) -> None:
    con.execute(f"insert into {table} values ({', '.join('?' * len(row))})", list(row))


@dataclass(frozen=True)
class _Run:
    run_id: str
    status: str
    status_reason: str | None
    registration_status: str
    registration_reason: str | None
    expectation_id: str | None
    expectation_digest: str | None
    model_id: str
    void_share: float


@dataclass(frozen=True)
class _Point:
    """Seconds of the usable blocks of one point against one baseline arm."""

    run_id: str
    point: str
    baseline: str
    base_s: Floats
    treat_s: Floats


def _points(con: duckdb.DuckDBPyConnection, run_id: str) -> list[_Point]:
    rows = con.execute(
        "select run_id, point, baseline, base_s, treat_s from ratio_inputs"
        " where measure = ? and run_id = ?",
        [PRIMARY, run_id],
    ).fetchall()
    return [_Point(r, p, b, np.array(x, float), np.array(t, float)) for r, p, b, x, t in rows]


def _judge_run(
    run: _Run, points: Sequence[_Point], known: Mapping[str, Expectation]
) -> list[list[object]]:
    found = known.get(run.expectation_digest or "")
    refusal = _refusal(run, found)
    if refusal is not None or found is None:
        said = refusal or verdicts.invalid("its expectation is not among data/expectations")
        return [_row(point, None, said, None) for point in points]
    forecasts = [_forecast(found, run.model_id, point) for point in points]
    parities = [
        equivalence(log_ratios(point.base_s, point.treat_s), found.parity_margin)
        if forecast is not None and forecast.role == "parity"
        else None
        for point, forecast in zip(points, forecasts, strict=True)
    ]
    gate = verdicts.run_gate(found, run.status, run.status_reason, run.void_share, _worst(parities))
    return [
        _row(point, forecast, _judge(found, point, forecast, parity, gate), parity)
        for point, forecast, parity in zip(points, forecasts, parities, strict=True)
    ]


def _refusal(run: _Run, found: Expectation | None) -> verdicts.Judgement | None:
    if run.registration_status == "exploratory":
        return verdicts.not_evidence(
            run.registration_reason or "run without a registered expectation"
        )
    if run.registration_status != "registered":
        reason = run.registration_reason or "no reason recorded"
        return verdicts.invalid(f"registration {run.registration_status}: {reason}")
    if found is None or found.id != run.expectation_id:
        return verdicts.invalid(
            f"data/expectations/{run.expectation_id}.toml is not the file this run was registered"
            f" under (digest {(run.expectation_digest or 'none')[:12]})"
        )
    return None


def _forecast(expectation: Expectation, model: str, point: _Point) -> Forecast | None:
    if point.baseline != expectation.baseline:
        return None
    for forecast in expectation.forecast:
        if (forecast.model, forecast.point) == (model, point.point):
            return forecast
    return None


def _worst(parities: Sequence[Parity | None]) -> Parity | None:
    controls = [parity for parity in parities if parity is not None]
    return min(controls, key=lambda parity: parity.shown, default=None)


def _judge(
    expectation: Expectation,
    point: _Point,
    forecast: Forecast | None,
    parity: Parity | None,
    gate: str | None,
) -> verdicts.Judgement:
    if forecast is None:
        return verdicts.not_evidence(
            "the expectation forecasts nothing for this model, point and baseline"
        )
    if gate is not None:
        return verdicts.invalid(gate)
    found: RatioSummary = summarise(point.base_s, point.treat_s)
    return verdicts.judge(expectation, forecast, found, parity)


def _row(
    point: _Point, forecast: Forecast | None, said: verdicts.Judgement, parity: Parity | None
) -> list[object]:
    expected: tuple[object, ...] = (None, None, None, None)
    if forecast is not None:
        expected = (forecast.role, forecast.low, forecast.high, forecast.threshold)
    evidence = said.verdict in ("CONFIRMED", "REFUTED", "UNDECIDED")
    tested = (parity.margin, parity.p) if parity is not None else (None, None)
    head = (point.run_id, point.point, point.baseline)
    return [*head, *expected, said.forecast, said.verdict, evidence, *tested, said.sentence]
