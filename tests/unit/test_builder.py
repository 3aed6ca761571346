"""The builder's table is the command line's own, and the shown commands are real."""

from __future__ import annotations

from pathlib import Path

from synthetic import usual_forecasts, write_expectation

from pipelines.publish.builder import LABELS, address, choices, common_commands, options
from runner import catalog
from runner.paths import DATA


def test_every_option_of_the_sweep_is_there_with_its_default() -> None:
    found = options()
    assert found["platform"]["flag"] == "--platform"
    assert found["platform"]["default"] == "cpu"
    assert found["hops"]["min"] == 0
    assert found["prefix"]["min"] == 1
    assert found["blocks"]["default"] is None
    assert found["exploratory"]["kind"] == "checkbox"
    assert found["model"]["kind"] == "select"
    assert {"sweep", "threads", "max_prefix", "dry_run", "resume"} <= set(found)


def test_choices_are_those_of_the_catalog() -> None:
    found = choices(DATA)
    assert [item["id"] for item in found["platforms"]] == list(catalog.platforms())
    assert [item["id"] for item in found["models"]] == list(catalog.models())
    assert [item["id"] for item in found["sweeps"]] == list(catalog.sweeps())


def test_tokens_of_a_point_add_up_as_the_page_adds_them() -> None:
    found = choices(DATA)
    turn = found["turn"]
    for sweep in found["sweeps"]:
        for point in sweep["points"]:
            if point["id"].endswith(f"-h{point['hops']}"):  # default generate and result
                turns = (point["hops"] + 1) * turn["generate"]
                assert point["tokens"] == point["prefix"] + turns + point["hops"] * turn["result"]


def test_a_registered_point_is_offered_as_such(tmp_path: Path) -> None:
    write_expectation(tmp_path, *usual_forecasts())
    (tmp_path / "models.toml").write_text("")
    (found,) = choices(tmp_path)["registered"]
    assert found["sweep"] == "reference"
    assert found["model"] == "smollm2-135m"
    assert "tool_loop-p1491-h8" in found["points"]


def test_common_commands_name_every_other_sweep_and_platform() -> None:
    said = " ".join(command for command, _ in common_commands(DATA))
    for name in set(catalog.sweeps()) - {"quick"}:
        assert f"--sweep {name}" in said
    for name in set(catalog.platforms()) - {"cpu"}:
        assert f"--platform {name}" in said


def test_every_option_has_a_label_and_a_control() -> None:
    found = options()
    assert set(found) == set(LABELS), "a new option needs a label in the builder"
    assert {option["kind"] for option in found.values()} == {
        "checkbox", "select", "many", "number", "text",
    }  # fmt: skip
    assert (found["wait_quiet"]["kind"], found["wait_quiet"]["whole"]) == ("number", False)
    assert (found["blocks"]["kind"], found["blocks"]["whole"]) == ("number", True)
    assert found["calibration"]["off"] == "--no-calibration"


def test_a_command_is_an_address_of_the_builder() -> None:
    assert address("nox -s sweep") == "config/"
    command = "nox -s sweep -- --platform cpu --sweep reference --blocks 12 --no-calibration"
    assert address(command) == "config/?sweep=reference&blocks=12&calibration=0"
    assert address("nox -s sweep -- --no-longer-there") == "config/"
    assert address("nox -s sweep -- '") == "config/"
