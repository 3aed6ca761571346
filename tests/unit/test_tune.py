"""Tuning: the same number of trials for every arm, in an order by chance, and a plain choice."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from runner.engine.parameters import LoadParameters
from runner.errors import RunAborted, UsageError
from runner.serving.settings import ServerSettings, SettingsRefused
from runner.tune import Grid, best, choose_settings, load_grid, trials
from runner.tuned import load_tuned

GRID = Grid.model_validate(
    {
        "point": {"prefix": 100, "hops": 1},
        "shared": {"n_batch": (512, 2048)},
        "arms": {"llama_server": {"n_slots": (1, 2)}, "live_kv": {}},
    }
)


def test_every_arm_gets_the_same_number_of_trials() -> None:
    planned = trials(GRID, 7)
    assert Counter(trial.arm for trial in planned) == {"llama_server": 4, "live_kv": 4}
    mine = Counter(json.dumps(t.settings) for t in planned if t.arm == "live_kv")
    assert set(mine.values()) == {2}


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
    assert 2 <= grid.budget <= 64


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[shared]\n", "cannot read"),
        ("[point]\nprefix=1\nhops=1\n[shared]\nmagic=[1]\n[arms.live_kv]\n", "unknown setting"),
        ("[point]\nprefix=1\nhops=1\n[shared]\n[arms.magic]\n", "unknown arm 'magic'"),
    ],
)
def test_a_grid_that_cannot_be_searched_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "tuning.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=said):
        load_grid(path)


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
