"""Published figures: the committed ones load, broken ones are refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.targets import load_targets
from runner import catalog
from runner.errors import UsageError
from runner.paths import DATA

GOOD = """\
[[target]]
id = "one"
mechanism = "tool loop"
baseline = "reprefill"
quantity = "ratio"
low = 2.0
high = 2.0
figure = "2.0"
times = "whole session"
setting = "s"
platform = "cpu"
hardware = "CPU"
model = "m"
source = "a paper"
"""


def test_the_reference_release_is_there_with_its_measured_prefix() -> None:
    found = {
        (target.measured_prefix, target.hops): target.low
        for target in load_targets(DATA / "targets")
        if target.platform == "cpu" and target.workload == "tool_loop"
    }
    assert found == {(27, 1): 1.08, (363, 4): 2.14, (1491, 8): 4.67, (2979, 12): 7.23}


def test_a_target_may_only_be_compared_with_models_that_exist() -> None:
    known = set(catalog.models())
    for target in load_targets(DATA / "targets"):
        assert set(target.comparable_models) <= known


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (GOOD + 'surprise = "x"\n', "surprise"),
        (GOOD.replace("low = 2.0", "low = 3.0"), "low 3.0 is above high 2.0"),
        (GOOD.replace("low = 2.0", "low = nan"), "low"),
        (GOOD.replace('source = "a paper"\n', ""), "source"),
        (GOOD + GOOD, "'one' is given twice"),
        ("[[target", "not TOML"),
    ],
)
def test_a_broken_file_is_refused_by_name(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "broken.toml").write_text(content)
    with pytest.raises(UsageError, match=said):
        load_targets(tmp_path)
