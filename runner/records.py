"""The result contract: Arrow schemas, versioned, and the one writer of Parquet.

A run is a folder ``data/runs/<platform>/<run_id>/`` with a Parquet file for each of `TABLES`.
``run.parquet`` is written last: a folder without it is not a run.

Schema history
--------------
1   first form: run, blocks, hops, checks.
2   tables ``calibration`` and ``equivalence``; repeats, clocks and temperatures of a block; the
    ledger record of a run and the tree of its harness. Runs of version 1 are read with NULL there.
3   what a prompt shares with what its arm held; requests and transport of arms that are asked over
    HTTP.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from runner.errors import EnvironmentProblem, LivekvError

SCHEMA_VERSION: Final = 3
VERSION_KEY: Final = b"livekv.schema_version"
TABLE_KEY: Final = b"livekv.table"

_UTC = pa.timestamp("us", tz="UTC")


def _schema(table: str, *fields: tuple[str, pa.DataType, bool]) -> pa.Schema:
    return pa.schema(
        [pa.field(name, kind, nullable=nullable) for name, kind, nullable in fields],
        metadata={VERSION_KEY: str(SCHEMA_VERSION).encode(), TABLE_KEY: table.encode()},
    )


RUN: Final = _schema(
    "run",
    ("run_id", pa.string(), False),
    ("status", pa.string(), False),  # complete | aborted
    ("status_reason", pa.string(), True),
    ("started_at", _UTC, False),
    ("ended_at", _UTC, False),
    ("sweep", pa.string(), False),
    ("platform", pa.string(), False),
    ("machine_key", pa.string(), False),  # digest of CPU, cores, memory, GPU, OS: who measured
    ("command", pa.string(), False),  # the exact command that repeats this run
    ("harness_version", pa.string(), False),
    ("harness_commit", pa.string(), True),
    ("harness_tree", pa.string(), True),  # git tree digest: survives a squash
    ("harness_dirty", pa.bool_(), True),
    ("runner_tree", pa.string(), True),  # git tree of runner/: the same code under any commit
    ("ledger_start", pa.string(), True),  # hash of the START record; NULL: not a registered run
    ("n_resumed", pa.int32(), True),  # how often the run was gone on with
    ("waited_quiet_s", pa.float64(), True),  # before the first block, with --wait-quiet
    ("registration_status", pa.string(), False),  # registered | exploratory | broken
    ("registration_reason", pa.string(), True),
    ("expectation_id", pa.string(), True),
    ("expectation_digest", pa.string(), True),
    ("expectation_commit", pa.string(), True),
    ("binding_version", pa.string(), False),
    ("llama_cpp_commit", pa.string(), True),
    ("library_sha256", pa.string(), False),
    ("cmake_flags", pa.string(), True),
    ("system_info", pa.string(), True),  # llama_print_system_info: what the library really uses
    ("model_id", pa.string(), False),
    ("model_kind", pa.string(), False),  # packaged | hub | shape | tiny | path
    ("model_name", pa.string(), False),
    ("model_sha256", pa.string(), False),
    ("model_quantisation", pa.string(), True),
    ("model_parameters", pa.int64(), True),
    ("model_bytes", pa.int64(), False),
    ("output_meaningful", pa.bool_(), False),  # false for random weights
    ("order_seed", pa.int64(), False),
    ("blocks_planned", pa.int32(), False),
    ("n_ctx", pa.int32(), False),
    ("n_batch", pa.int32(), False),
    ("n_ubatch", pa.int32(), False),
    ("n_threads", pa.int32(), False),
    ("threads_reason", pa.string(), False),
    ("n_gpu_layers", pa.int32(), False),
    ("flash_attention", pa.string(), False),  # auto | on | off
    ("kv_type", pa.string(), False),
    ("sampling", pa.string(), False),
    ("server_settings", pa.string(), True),  # JSON; NULL: no arm on a server
    ("tuned_by", pa.string(), True),  # the tuning that chose the settings; NULL: defaults
    ("scripts", pa.string(), True),  # text | model: who wrote the turns that are fed
    ("warmup_tokens", pa.int32(), False),
    ("os", pa.string(), False),
    ("kernel", pa.string(), False),
    ("cpu", pa.string(), False),
    ("physical_cores", pa.int32(), True),
    ("logical_cores", pa.int32(), False),
    ("memory_bytes", pa.int64(), False),
    ("gpu", pa.string(), True),
    ("gpu_driver", pa.string(), True),
    ("environment", pa.string(), False),  # JSON: Python, packages, variables that change speed
)

BLOCKS: Final = _schema(
    "blocks",
    ("run_id", pa.string(), False),
    ("block", pa.int32(), False),
    ("point", pa.string(), False),
    ("workload", pa.string(), False),
    ("arm", pa.string(), False),
    ("position", pa.int32(), False),  # 0-based place of the arm within its point and block
    ("n_prefix", pa.int32(), False),  # measured prefix, tokens
    ("n_hops", pa.int32(), False),
    ("n_generate", pa.int32(), False),  # generated tokens a turn
    ("n_result", pa.int32(), False),  # tokens of one tool result
    ("status", pa.string(), False),  # ok | void | failed
    ("reason", pa.string(), True),  # why void or failed
    ("started_at", _UTC, False),
    ("script_digest", pa.string(), True),  # of every id the script feeds
    ("wall_s", pa.float64(), True),  # whole session, first token in to last token out
    ("ttft_s", pa.float64(), True),  # first turn
    ("prefill_s", pa.float64(), True),  # sum over turns, to the first token known
    ("decode_s", pa.float64(), True),  # sum over turns, after the first token
    ("other_s", pa.float64(), True),  # wall - prefill - decode
    ("n_evaluated", pa.int64(), True),  # tokens the backend computed
    ("n_reused", pa.int64(), True),  # tokens already in KV when their turn began
    ("n_generated", pa.int64(), True),
    ("n_agreed", pa.int64(), True),  # sampled id == script id
    ("peak_rss_bytes", pa.int64(), True),
    ("load_s", pa.float64(), True),  # loading the model, outside wall_s
    ("steal_fraction", pa.float64(), True),  # of all cores' time, during the measured part
    ("other_cpu_fraction", pa.float64(), True),  # other processes, of all cores' time
    ("involuntary_switches", pa.int64(), True),
    ("load_1m", pa.float64(), True),
    ("n_repeats", pa.int32(), True),  # in this block; the row is the one of median wall
    ("repeat_wall_s", pa.list_(pa.float64()), True),  # wall of each, in the order they ran
    ("cpu_mhz_start", pa.float64(), True),  # mean over cores; NULL where the system does not tell
    ("cpu_mhz_end", pa.float64(), True),
    ("temperature_c_start", pa.float64(), True),  # hottest CPU sensor
    ("temperature_c_end", pa.float64(), True),
    ("gpu_mhz_start", pa.float64(), True),  # NVML, first device: SM clock
    ("gpu_mhz_end", pa.float64(), True),
    ("gpu_temperature_c_start", pa.float64(), True),
    ("gpu_temperature_c_end", pa.float64(), True),
    ("gpu_throttle", pa.string(), True),  # NVML's reasons at the end, and heat before
    ("gpu_other_processes", pa.int32(), True),  # the larger count of start and end
    ("n_requests", pa.int32(), True),  # HTTP requests of the run; NULL: no arm over HTTP
    ("transport_s", pa.float64(), True),  # median of a request that makes the server do nothing
)

HOPS: Final = _schema(
    "hops",
    ("run_id", pa.string(), False),
    ("block", pa.int32(), False),
    ("point", pa.string(), False),
    ("arm", pa.string(), False),
    ("hop", pa.int32(), False),  # 0 = the first turn, before any tool result
    ("n_new", pa.int32(), False),  # tokens the workload adds at this hop
    ("n_context", pa.int32(), False),  # conversation length the turn starts to generate from
    ("n_evaluated", pa.int32(), False),
    ("n_reused", pa.int32(), False),
    ("n_shared", pa.int32(), True),  # of the prompt, in the arm's KV before; NULL: not asked
    ("n_generated", pa.int32(), False),
    ("wall_s", pa.float64(), False),
    ("ttft_s", pa.float64(), False),
    ("prefill_s", pa.float64(), False),
    ("decode_s", pa.float64(), False),
    ("digest_in", pa.string(), False),  # of the whole conversation the turn starts from
    ("digest_out", pa.string(), False),  # of the ids fed on
    ("sampled", pa.list_(pa.int32()), False),  # what the model itself chose, one a step
    ("n_agreed", pa.int32(), False),
    ("stop_reason", pa.string(), False),  # length | eos
)

CHECKS: Final = _schema(
    "checks",
    ("run_id", pa.string(), False),
    ("check", pa.string(), False),
    ("status", pa.string(), False),  # pass | fail | absent (the model lacks the capability)
    ("value", pa.float64(), True),
    ("unit", pa.string(), True),
    ("detail", pa.string(), False),
    ("meaning", pa.string(), False),  # what a failure of this check would mean
    ("seconds", pa.float64(), False),
)

CALIBRATION: Final = _schema(
    "calibration",
    ("run_id", pa.string(), False),
    ("block", pa.int32(), False),
    # prefill | hop | decode of our engine; floor_prefill | floor_hop | floor_decode of llama-bench
    ("kind", pa.string(), False),
    ("depth", pa.int32(), False),  # tokens in KV before
    ("n_tokens", pa.int32(), False),  # prefill, hop: tokens of the batch; decode: steps of one
    ("repeat", pa.int32(), False),  # 0-based, where one kind, depth and size is timed again
    ("seconds", pa.float64(), True),
    ("reason", pa.string(), True),  # why there are no seconds
)

EQUIVALENCE: Final = _schema(
    "equivalence",
    ("run_id", pa.string(), False),
    ("point", pa.string(), False),
    # free: live KV against re-prefill, as the arms run; matched: against a replay of live KV's
    # own batch shapes, the control that must agree.
    ("comparison", pa.string(), False),
    ("hop", pa.int32(), False),
    ("n_tokens", pa.int32(), False),  # tokens each side generated for itself
    ("n_agreed", pa.int32(), False),  # before the first divergence
    ("top2_margin", pa.float64(), True),  # logit of first less second choice where they diverge
    ("max_logit_difference", pa.float64(), True),  # over the steps up to the divergence, included
    ("logit_sd", pa.float64(), True),  # spread of the logits of the hop's first step
    ("reason", pa.string(), True),  # why there is no comparison
)

TUNING: Final = _schema(
    "tuning",
    ("tuning_id", pa.string(), False),
    ("platform", pa.string(), False),
    ("machine_key", pa.string(), False),
    ("model_id", pa.string(), False),
    ("library_sha256", pa.string(), False),
    ("point", pa.string(), False),
    ("arm", pa.string(), False),
    ("trial", pa.int32(), False),  # 0-based, the same number for every arm
    ("position", pa.int32(), False),  # place in the order all trials ran in
    ("settings", pa.string(), False),  # JSON of what the grid varies
    ("wall_s", pa.float64(), True),
    ("reason", pa.string(), True),  # why there is no time
    ("other_cpu_fraction", pa.float64(), True),
)

TABLES: Final[Mapping[str, pa.Schema]] = {
    "run": RUN,
    "blocks": BLOCKS,
    "hops": HOPS,
    "checks": CHECKS,
    "calibration": CALIBRATION,
    "equivalence": EQUIVALENCE,
}
_SINCE: Final = {"calibration": 2, "equivalence": 2}
"""Schema version that brought a table; the others were there from the first."""


class RecordError(LivekvError):
    """A row breaks the contract: a number that is not finite, a missing or unknown column."""


def check_row(table: str, row: Mapping[str, Any]) -> None:
    """Refuse a row of `table` that Parquet would accept and a reader could not trust.

    Raises:
        RecordError: unknown or missing column, NULL in a required column, NaN or infinity.
    """
    _check(TABLES[table], table, row)


def _check(schema: pa.Schema, table: str, row: Mapping[str, Any]) -> None:
    unknown = set(row) - set(schema.names)
    if unknown:
        raise RecordError(f"{table}: unknown column(s) {sorted(unknown)}")
    for field in schema:
        value = row.get(field.name)
        if value is None and not field.nullable:
            raise RecordError(f"{table}.{field.name} is required and has no value")
        for number in value if isinstance(value, list) else (value,):
            if isinstance(number, float) and not math.isfinite(number):
                raise RecordError(
                    f"{table}.{field.name} is {number}: give NULL and a reason instead"
                )


def write_tuning(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write the trials of a tuning, whole or not at all.

    Raises:
        RecordError, EnvironmentProblem: as `write_table`.
    """
    return _write(path, "tuning", TUNING, rows)


def write_table(folder: Path, table: str, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write `rows` as ``folder/<table>.parquet``, whole or not at all.

    The bytes go to a name that does not end in ``.parquet`` (a reader's ``*.parquet`` matches
    dot-files) and are renamed once they are on disk.

    Raises:
        RecordError: a row breaks the contract.
        EnvironmentProblem: the disk is full or the folder cannot be written.
    """
    return _write(folder / f"{table}.parquet", table, TABLES[table], rows)


def _write(final: Path, table: str, schema: pa.Schema, rows: Sequence[Mapping[str, Any]]) -> Path:
    for row in rows:
        _check(schema, table, row)
    try:
        arrow = pa.Table.from_pylist(list(rows), schema=schema)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise RecordError(f"{table}: a value of another type: {error}") from error
    partial = final.with_name(f"{final.name}.partial")
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as sink:
            pq.write_table(arrow, sink, compression="zstd", store_schema=True)
            sink.flush()
            os.fsync(sink.fileno())
        partial.replace(final)
    except OSError as error:
        with suppress(OSError):  # where the folder itself is the trouble there is no part
            partial.unlink()
        raise EnvironmentProblem(
            f"cannot write {final}: {error.strerror or error}; "
            "finished blocks are kept in the journal, free space and use --resume"
        ) from error
    return final


def read_table(path: Path) -> pa.Table:
    """Read one table of a run, in the columns of this version whatever version wrote it.

    Raises:
        RecordError: not a livekv Parquet file, half written, or of an unknown schema version.
    """
    try:
        table = pq.ParquetFile(path).read()
    except (pa.ArrowInvalid, OSError) as error:
        raise RecordError(f"{path} is not a readable Parquet file: {error}") from error
    version = _version(table, path)
    schema = TABLES.get(path.stem)
    if version == SCHEMA_VERSION or schema is None:
        return table
    for field in schema:
        if field.name not in table.schema.names and field.nullable:
            table = table.append_column(field, pa.nulls(table.num_rows, field.type))
    missing = [field.name for field in schema if field.name not in table.schema.names]
    if missing:
        raise RecordError(f"{path} of schema version {version} lacks {', '.join(missing)}")
    return table.select(schema.names).cast(schema)


def read_run_table(folder: Path, name: str) -> pa.Table:
    """Read table `name` of the run in `folder`; empty where the run is older than the table.

    Raises:
        RecordError: as `read_table`; the table is missing.
    """
    path = folder / f"{name}.parquet"
    if path.exists():
        return read_table(path)
    run = folder / "run.parquet"
    if name in _SINCE and run.exists() and _version(pq.read_schema(run), run) < _SINCE[name]:
        return TABLES[name].empty_table()
    raise RecordError(f"{path} is missing: the run is not whole")


def _version(found: pa.Table | pa.Schema, path: Path) -> int:
    schema = found if isinstance(found, pa.Schema) else found.schema
    said = ((schema.metadata or {}).get(VERSION_KEY) or b"none").decode()
    if said not in {str(version) for version in range(1, SCHEMA_VERSION + 1)}:
        raise RecordError(
            f"{path} has schema version {said}, this program reads 1 to {SCHEMA_VERSION}"
        )
    return int(said)


def leftovers(folder: Path) -> Iterable[Path]:
    """Temporary files that a killed writer left under `folder`."""
    return folder.rglob("*.parquet.partial")
