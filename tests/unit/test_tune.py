"""Tuning: the same number of trials for every arm, in an order by chance, and a plain choice."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from runner.engine.parameters import LoadParameters
from runner.errors import EnvironmentProblem, RunAborted, UsageError
from runner.serving.settings import ServerSettings, SettingsRefused
from runner.trials import TrialLog
from runner.tune import Grid, Tuning, best, choose_settings, load_grid, run_tuning, trials
from runner.tuned import load_tuned

GRID = Grid.model_validate(
    {
        "point": {"prefix": 100, "hops": 1},
        "trials": 4,
        "shared": {"n_batch": (512, 2048)},
        "arms": {"llama_server": {"n_slots": (1, 2)}, "live_kv": {}},
    }
)


def test_every_arm_gets_the_same_number_of_trials() -> None:
    planned = trials(GRID, 7)
    assert Counter(trial.arm for trial in planned) == {"llama_server": 4, "live_kv": 4}
    mine = Counter(json.dumps(t.settings) for t in planned if t.arm == "live_kv")
    assert set(mine.values()) == {2}


def test_more_settings_than_trials_are_searched_at_random_and_none_twice() -> None:
    grid = GRID.model_copy(update={"trials": 3})
    drawn = set()
    for seed in range(30):
        mine = [t.settings for t in trials(grid, seed) if t.arm == "llama_server"]
        assert len({json.dumps(one) for one in mine}) == 3
        drawn |= {json.dumps(one) for one in mine}
    assert len(drawn) == 4


def test_the_order_is_by_chance_and_the_same_again() -> None:
    assert trials(GRID, 7) == trials(GRID, 7)
    assert len({tuple(t.arm for t in trials(GRID, seed)) for seed in range(20)}) > 5


def test_a_trial_knows_what_the_engine_and_what_the_server_is_told(tmp_path: Path) -> None:
    base = LoadParameters(tmp_path, "0" * 64, tmp_path, "0" * 64)
    trial = next(t for t in trials(GRID, 1) if t.settings == {"n_batch": 512, "n_slots": 2})
    assert trial.parameters(base).n_batch == 512
    assert trial.server() == {"n_slots": 2}


def row(arm: str, wall_s: float | None, **settings: Any) -> dict[str, Any]:
    return {"arm": arm, "wall_s": wall_s, "settings": json.dumps(settings, sort_keys=True)}


ROWS = [
    row("llama_server", 3.0, n_batch=512, n_slots=1),
    row("llama_server", 1.0, n_batch=2048, n_slots=1),
    row("llama_server", 2.0, n_batch=2048, n_slots=2),
    row("live_kv", 0.5, n_batch=512),
    row("live_kv", 9.0, n_batch=512),
    row("live_kv", 2.0, n_batch=2048),
]


def test_everybody_gets_the_engine_settings_under_which_the_server_is_fastest() -> None:
    assert choose_settings(ROWS, GRID) == {"shared": {"n_batch": 2048}, "server": {"n_slots": 1}}


def test_the_median_of_a_settings_trials_counts() -> None:
    settings, took = best(ROWS, "live_kv")
    assert (settings, took) == ({"n_batch": 2048}, 2.0)


def test_an_arm_without_a_time_has_no_best() -> None:
    with pytest.raises(RunAborted, match="no trial of live_kv gave a time"):
        best([row("live_kv", None, n_batch=1)], "live_kv")


def test_the_committed_grid_can_be_read() -> None:
    grid = load_grid()
    assert {"llama_server", "live_kv"} <= set(grid.arms)
    assert 2 <= grid.trials <= 64


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[shared]\n", "cannot read"),
        (
            "trials=2\n[point]\nprefix=1\nhops=1\n[shared]\nmagic=[1]\n[arms.live_kv]\n",
            "unknown setting",
        ),
        ("trials=2\n[point]\nprefix=1\nhops=1\n[shared]\n[arms.magic]\n", "unknown arm 'magic'"),
    ],
)
def test_a_grid_that_cannot_be_searched_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "tuning.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=said):
        load_grid(path)


def test_a_dry_run_says_how_many_trials_and_starts_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_tuning(Tuning("cpu", "smollm2-135m", dry_run=True), Console()) is None
    grid = load_grid()
    assert f"{grid.trials * len(grid.arms)} trials" in capsys.readouterr().out


HEAD = {"tuning_id": "t", "machine_key": "k", "seed": 7}


def test_a_search_goes_on_after_its_last_whole_line(tmp_path: Path) -> None:
    log = TrialLog.begin(tmp_path / "a.jsonl", HEAD)
    log.append({"trial": 0})
    log.append({"trial": 1})
    with log.path.open("a") as file:
        file.write('{"trial": 2, "wal')
    found = TrialLog.resume(tmp_path, {"machine_key": "k"})
    assert (found.head, found.rows) == (HEAD, [{"trial": 0}, {"trial": 1}])
    found.append({"trial": 2})
    assert TrialLog.resume(tmp_path, {}).rows == [{"trial": n} for n in range(3)]
    found.remove()
    assert [*tmp_path.iterdir()] == []


def test_a_search_of_something_else_is_not_gone_on_with(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no unfinished tuning"):
        TrialLog.resume(tmp_path, {})
    log = TrialLog.begin(tmp_path / "a.jsonl", HEAD)
    with pytest.raises(UsageError, match="began with machine_key k, now it is other"):
        TrialLog.resume(tmp_path, {"machine_key": "other"})
    log.path.write_text("")
    with pytest.raises(UsageError, match="is empty"):
        TrialLog.resume(tmp_path, {})


def test_a_disk_that_is_full_keeps_the_trials_before(tmp_path: Path) -> None:
    log = TrialLog.begin(tmp_path / "a.jsonl", HEAD)
    log.append({"trial": 0})
    kept = log.path.read_bytes()
    log.path.unlink()
    log.path.mkdir()
    with pytest.raises(EnvironmentProblem, match="go on with --resume"):
        log.append({"trial": 1})
    log.path.rmdir()
    log.path.write_bytes(kept)
    assert TrialLog.resume(tmp_path, {}).rows == [{"trial": 0}]


def test_a_winner_is_read_back_and_only_for_its_model(tmp_path: Path) -> None:
    path = tmp_path / "winner.json"
    head = {"tuning_id": "t", "model_id": "m", "machine_key": "k", "platform": "cpu"}
    path.write_text(json.dumps({**head, "settings": choose_settings(ROWS, GRID)}))
    found = load_tuned(path, "m")
    assert found.settings.shared.given() == {"n_batch": 2048}
    assert found.server() == ServerSettings(n_slots=1)
    with pytest.raises(UsageError, match="tuned m, this sweep runs other"):
        load_tuned(path, "other")
    path.write_text(json.dumps({**head, "settings": {"server": {"magic": 1}}}))
    with pytest.raises(UsageError, match="cannot read"):
        load_tuned(path, "m")


def test_every_setting_of_a_server_is_on_its_command_line(tmp_path: Path) -> None:
    parameters = LoadParameters(
        tmp_path / "m.gguf", "0" * 64, tmp_path, "0" * 64, n_ctx=4096, n_gpu_layers=-1
    )
    words = ServerSettings(n_slots=2, cache_ram_mib=64).arguments(parameters, 8123, tmp_path)
    said = dict(pairwise(words))
    assert said["--ctx-size"] == "8192"
    assert (said["--parallel"], said["--cache-ram"], said["--port"]) == ("2", "64", "8123")
    assert said["--n-gpu-layers"] == "999"


@pytest.mark.parametrize(
    ("props", "slots", "said"),
    [
        ({"total_slots": 4, "model_path": "/x/m.gguf"}, [{}] * 4, "slots 4, 1 was asked for"),
        ({"total_slots": 1, "model_path": "/x/o.gguf"}, [{"n_ctx": 8192}], "model o.gguf"),
        ({"total_slots": 1, "model_path": "m.gguf"}, [{"n_ctx": 512}], "context of slot 0 512"),
    ],
)
def test_a_server_with_other_settings_is_refused(
    tmp_path: Path, props: dict[str, Any], slots: list[Any], said: str
) -> None:
    parameters = LoadParameters(tmp_path / "m.gguf", "0" * 64, tmp_path, "0" * 64)
    with pytest.raises(SettingsRefused, match=said):
        ServerSettings().require(parameters, props, slots)
