"""From the ratios of a run to table ``verdicts``: gates first, then each point for itself."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import duckdb
import numpy as np

from pipelines.analysis import verdicts
from pipelines.analysis.derive import PRIMARY
from pipelines.analysis.gates import Saving, run_gate, saving_gate
from pipelines.analysis.multiplicity import Pair as Key
from pipelines.analysis.multiplicity import adjusted_claims
from pipelines.analysis.parity import Parity, equivalence
from pipelines.analysis.ratios import Floats, log_ratios, summarise
from pipelines.analysis.repeat import Repeat, repeats
from pipelines.analysis.rows import insert_rows
from pipelines.expectations import ExpectationFile
from runner.registration import Expectation, Forecast

REPEAT_ROLE: Final = "a/a"

_VERDICTS: Final = """
create table verdicts (
    run_id varchar, point varchar, baseline varchar, role varchar,
    forecast_low double, forecast_high double, threshold double, forecast varchar,
    verdict varchar, evidence boolean, parity_margin double, parity_p double,
    p double, p_adjusted double, sentence varchar)
"""

_RUNS: Final = """
select r.run_id, r.status, r.status_reason, r.registration_status, r.registration_reason,
       r.expectation_id, r.expectation_digest, r.model_id, coalesce(v.share, 0), f.reason
from run r
left join void_shares v using (run_id)
left join (
    select run_id, any_value(reason order by reason) as reason
    from ledger_faults where voids_run group by all) f using (run_id)
order by r.platform, r.run_id
"""

_POINTS: Final = """
select i.run_id, i.point, i.baseline, a.repeats is not null, i.base_s, i.treat_s,
       c.within_bound, c.unexplained_share, e.efficiency_low, c.reason
from ratio_inputs i
left join arm_rules a on a.arm = i.baseline
left join closure_points c using (run_id, point, baseline)
left join ceilings e using (run_id, point, baseline)
where i.measure = ?
"""


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
    ledger_fault: str | None


@dataclass(frozen=True)
class _Pair:
    """Seconds of the usable blocks of one point against one arm; `repeat`: that arm is A/A."""

    point: str
    baseline: str
    repeat: bool
    base_s: Floats
    treat_s: Floats
    saving: Saving

    @property
    def d(self) -> Floats:
        return log_ratios(self.base_s, self.treat_s)


@dataclass(frozen=True)
class _Tests:
    """Every test of a run, by point: claims as (p, Holm-adjusted p), controls, A/A."""

    claims: Mapping[Key, tuple[float | None, float | None]]
    parities: Mapping[Key, Parity]
    repeated: Mapping[str, Repeat]


def insert_verdicts(con: duckdb.DuckDBPyConnection, files: Sequence[ExpectationFile]) -> None:
    """Create and fill table ``verdicts``: one row a run, point and baseline, whole session only.

    `p` is one-sided against the claim (`multiplicity.claim_p`) and adjusted within its family;
    role ``a/a`` has the two-sided p against 1, adjusted over the points of the run. An A/A row
    makes no claim and is no evidence. `parity_p` is that of the equivalence test.
    """
    con.execute(_VERDICTS)
    known = {file.digest: file.expectation for file in files}
    pairs = _pairs(con)
    rows = []
    for row in con.execute(_RUNS).fetchall():
        run = _Run(*row)
        rows += [[run.run_id, *line] for line in _judge_run(run, pairs[run.run_id], known)]
    insert_rows(con, "verdicts", rows)


def _pairs(con: duckdb.DuckDBPyConnection) -> Mapping[str, list[_Pair]]:
    """The pairs of every run, in the order of its points."""
    found: dict[str, list[_Pair]] = defaultdict(list)
    for run_id, p, b, a, x, t, *saving in con.execute(_POINTS, [PRIMARY]).fetchall():
        pair = _Pair(p, b, a, np.array(x, float), np.array(t, float), Saving(*saving))
        found[run_id].append(pair)
    return found


def _judge_run(
    run: _Run, pairs: Sequence[_Pair], known: Mapping[str, Expectation]
) -> list[list[object]]:
    found = known.get(run.expectation_digest or "")
    refusal = _refusal(run, found)
    if refusal is not None or found is None:
        said = refusal or verdicts.invalid("its expectation is not among data/expectations")
        role = {True: REPEAT_ROLE, False: None}
        return [_row(pair, said, role=role[pair.repeat]) for pair in pairs]
    tests = _tests(found, run.model_id, pairs)
    points = list(dict.fromkeys(pair.point for pair in pairs))
    gate = run_gate(
        found,
        run.status,
        run.status_reason,
        run.void_share,
        [*tests.parities.values()],
        tests.repeated,
        points,
    )
    return [_judged(found, run.model_id, pair, tests, gate) for pair in pairs]


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
    if run.ledger_fault is not None:
        return verdicts.invalid(f"the ledger does not bear this run out: {run.ledger_fault}")
    return None


def _tests(expectation: Expectation, model: str, pairs: Sequence[_Pair]) -> _Tests:
    measured = {(pair.point, pair.baseline): pair.d for pair in pairs}
    controls = {
        (f.point, expectation.baseline_of(f))
        for f in expectation.forecast
        if (f.model, f.role) == (model, "parity")
    }
    again = {pair.point: pair.d for pair in pairs if _is_repeat(expectation, pair)}
    margin = expectation.parity_margin
    return _Tests(
        claims=adjusted_claims(expectation, model, measured),
        parities={p: equivalence(d, margin) for p, d in measured.items() if p in controls},
        repeated=repeats(again, margin),
    )


def _is_repeat(expectation: Expectation, pair: _Pair) -> bool:
    return (
        pair.repeat if expectation.repeat_arm is None else pair.baseline == expectation.repeat_arm
    )


def _judged(
    expectation: Expectation, model: str, pair: _Pair, tests: _Tests, gate: str | None
) -> list[object]:
    if _is_repeat(expectation, pair):
        one = tests.repeated[pair.point]
        said = verdicts.repeated(expectation, pair.baseline, one)
        return _row(
            pair,
            verdicts.invalid(gate) if gate is not None else said,
            role=REPEAT_ROLE,
            parity=one.parity,
            p=(one.p, one.p_adjusted),
        )
    forecast = _forecast(expectation, model, pair)
    if forecast is None:
        nothing = "the expectation forecasts nothing for this model, point and baseline"
        return _row(pair, verdicts.not_evidence(nothing))
    key = (pair.point, pair.baseline)
    parity = tests.parities.get(key)
    p = tests.claims.get(key, (None, None))
    found = summarise(pair.base_s, pair.treat_s)
    said = (
        verdicts.invalid(gate)
        if gate is not None
        else verdicts.judge(expectation, forecast, found, parity, p[1])
    )
    if said.verdict == "CONFIRMED" and forecast.threshold is not None:
        refusal = saving_gate(expectation, pair.saving)
        said = said if refusal is None else verdicts.invalid(refusal)
    return _row(pair, said, role=forecast.role, forecast=forecast, parity=parity, p=p)


def _forecast(expectation: Expectation, model: str, pair: _Pair) -> Forecast | None:
    wanted = (model, pair.point, pair.baseline)
    for forecast in expectation.forecast:
        if (forecast.model, forecast.point, expectation.baseline_of(forecast)) == wanted:
            return forecast
    return None


def _row(
    pair: _Pair,
    said: verdicts.Judgement,
    *,
    role: str | None = None,
    forecast: Forecast | None = None,
    parity: Parity | None = None,
    p: tuple[float | None, float | None] = (None, None),
) -> list[object]:
    claimed = (forecast.low, forecast.high, forecast.threshold) if forecast else (None,) * 3
    tested = (parity.margin, parity.p) if parity else (None, None)
    evidence = said.verdict in ("CONFIRMED", "REFUTED", "UNDECIDED")
    head = (pair.point, pair.baseline, role, *claimed)
    return [*head, said.forecast, said.verdict, evidence, *tested, *p, said.sentence]
