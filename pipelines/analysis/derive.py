"""Statistics between SQL and SQL: per-block rows come from DuckDB, results go back into tables."""

from __future__ import annotations

from dataclasses import asdict
from itertools import groupby
from typing import Final

import duckdb
import numpy as np

from pipelines.analysis.multiplicity import holm
from pipelines.analysis.order import ALPHA, order_effect, sentence
from pipelines.analysis.ratios import summarise
from pipelines.analysis.replication import Measured, replication
from pipelines.analysis.rows import insert_rows

PRIMARY: Final = "whole session"

_RATIOS: Final = """
create table ratios (
    run_id varchar, point varchar, workload varchar, n_prefix int, n_hops int,
    baseline varchar, treatment varchar, measure varchar,
    n_void int, n_blocks int, ratio double, low double, high double,
    median_ratio double, median_low double, median_high double,
    total_ratio double, total_low double, total_high double,
    saved_s double, saved_low_s double, saved_high_s double, sign_flip_p double, reason varchar)
"""

_ORDER_EFFECTS: Final = """
create table order_effects (
    run_id varchar, point varchar, baseline varchar, treatment varchar,
    n_treatment_first int, n_baseline_first int,
    effect double, low double, high double, p double, reason varchar,
    p_adjusted double, significant boolean, sentence varchar)
"""

_REPLICATIONS: Final = """
create table replications (
    expectation_digest varchar, expectation_id varchar, machine_key varchar, platform varchar,
    model_id varchar, point varchar, baseline varchar, published boolean,
    runs varchar[], n_runs int, state varchar, newest_ratio double,
    earlier_run varchar, earlier_ratio double, difference double, p double, sentence varchar)
"""


def insert_ratios(con: duckdb.DuckDBPyConnection) -> None:
    """Create and fill table ``ratios`` from view ``ratio_inputs``."""
    con.execute(_RATIOS)
    rows = []
    for *head, base, treat in con.execute("from ratio_inputs").fetchall():
        found = summarise(np.array(base, float), np.array(treat, float))
        rows.append([*head, *asdict(found).values()])
    insert_rows(con, "ratios", rows)


def insert_order_effects(con: duckdb.DuckDBPyConnection) -> None:
    """Create and fill table ``order_effects`` from view ``order_inputs``, whole session only.

    Holm's correction runs over the points of a run that share a baseline. A significant effect is
    said and flagged; balanced orders keep it out of the ratio, so it gates nothing.
    """
    con.execute(_ORDER_EFFECTS)
    rows = []
    found = con.execute("from order_inputs").fetchall()
    for _, group in groupby(found, key=lambda row: (row[0], row[2])):
        heads, effects = [], []
        for *head, first, second in group:
            heads.append(head)
            effects.append(order_effect(np.array(first, float), np.array(second, float)))
        adjusted = holm([effect.p for effect in effects])
        for head, effect, p in zip(heads, effects, adjusted, strict=True):
            said = sentence(effect, p, head[2], head[3])
            flag = None if p is None else p < ALPHA
            rows.append([*head, *asdict(effect).values(), p, flag, said])
    insert_rows(con, "order_effects", rows)


def insert_replications(con: duckdb.DuckDBPyConnection) -> None:
    """Create and fill table ``replications`` from view ``replication_inputs``."""
    con.execute(_REPLICATIONS)
    rows = []
    for *head, runs, verdicts, blocks in con.execute("from replication_inputs").fetchall():
        measured = [
            Measured(run, verdict, np.array(d, float))
            for run, verdict, d in zip(runs, verdicts, blocks, strict=True)
        ]
        found = replication(measured)
        rows.append([*head, runs, len(runs), *asdict(found).values()])
    insert_rows(con, "replications", rows)
