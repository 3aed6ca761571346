"""Every published figure is derived again; whatever was changed by hand is named."""

from __future__ import annotations

import csv
import shutil
from io import StringIO
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from checkout import make_checkout
from rich.console import Console

from pipelines.paths import Layout
from pipelines.publish.site import build_site
from pipelines.rederive import KEYS, DifferenceError, rederive_all, write_record


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """A checkout whose figures are on record and whose site is built; no local runs."""
    layout = make_checkout(tmp_path_factory.mktemp("whole"))
    shutil.rmtree(layout.local)
    rederive_all(layout, Console(quiet=True), update=True)
    build_site(layout, Console(quiet=True))
    return layout


@pytest.fixture
def checkout(whole: Layout, tmp_path: Path) -> Layout:
    """The same in a place of its own, to be tampered with."""
    return Layout(shutil.copytree(whole.root, tmp_path / "copy"))


def differences(layout: Layout) -> str:
    console = Console(file=StringIO(), width=500)
    try:
        rederive_all(layout, console)
    except DifferenceError as error:
        assert error.exit_code == 7
        file = console.file
        assert isinstance(file, StringIO)
        return file.getvalue()
    return ""


def test_what_nobody_touched_comes_out_the_same(checkout: Layout) -> None:
    assert differences(checkout) == ""


def test_a_flipped_value_in_parquet_is_named_by_run_and_figure(checkout: Layout) -> None:
    path, *_ = sorted(checkout.published.glob("*/*/blocks.parquet"))
    table = pq.read_table(path)
    walls = table["wall_s"].to_pylist()
    walls[0] += 0.001
    at = table.schema.get_field_index("wall_s")
    pq.write_table(table.set_column(at, table.schema.field(at), pa.array(walls)), path)
    said = differences(checkout)
    assert f"{path.parent.name} {table['point'][0].as_py()}" in said
    assert "ratio was " in said
    assert "the built site is not what the data gives" in said


def test_a_number_edited_in_a_page_is_named_by_page(checkout: Layout) -> None:
    page = checkout.built / "index.html"
    text = page.read_text(encoding="utf-8")
    number = text.partition('class="lk-number">')[2][:4]
    assert number.replace(".", "").isdigit()
    page.write_text(text.replace(number, f"9{number[1:]}", 1), encoding="utf-8")
    said = [line for line in differences(checkout).splitlines() if line.startswith("differs: ")]
    assert said == ["differs: the built site is not what the data gives: index.html"]


def test_figures_edited_on_record_are_named(checkout: Layout) -> None:
    with checkout.figures.open(encoding="utf-8", newline="") as file:
        first, second, *others = csv.DictReader(file)
    write_record(checkout.figures, [{**second, "ratio": "99.5"}, *others])
    said = differences(checkout)
    assert f"data/figures.csv lacks {' '.join(first[key] for key in KEYS)}" in said
    assert f": ratio was 99.5, is {second['ratio']}" in said


def test_a_run_that_was_taken_away_is_named(checkout: Layout) -> None:
    folder, *_ = sorted(checkout.published.glob("*/*"))
    shutil.rmtree(folder)
    said = differences(checkout)
    assert f"{folder.name} tool_loop-p1491-h8" in said
    assert "is in data/figures.csv and no longer in the data" in said


def test_without_a_record_the_remedy_is_said(checkout: Layout) -> None:
    checkout.figures.unlink()
    assert "write it with --update and commit it" in differences(checkout)
