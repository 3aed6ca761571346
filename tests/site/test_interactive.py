"""The pages a reader works with: explorer, comparison, calculator, SQL in the browser."""

from __future__ import annotations

import csv
import io
import json
import shutil
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from checkout import AGAIN, Served, Watched
from playwright.sync_api import Page
from synthetic import readings

from pipelines.analysis.costs import fit_costs
from pipelines.analysis.session import Loop, session_s
from pipelines.database import open_database
from pipelines.publish.query import examples
from runner.paths import ROOT


def opened(watched: Watched, site: Served, address: str) -> Page:
    page = watched.page
    page.goto(site.url + address)
    page.wait_for_load_state("networkidle")
    return page


def shown(page: Page) -> list[list[str]]:
    """The cells of the explorer's or the answer's table."""
    found: list[list[str]] = page.evaluate(
        "[...document.querySelectorAll('article table.lk-table tbody tr')]"
        ".map(r => [...r.cells].map(c => c.innerText))"
    )
    return found


# --- explorer


def test_the_explorer_starts_with_the_newest_whole_sessions(site: Served, watched: Watched) -> None:
    page = opened(watched, site, "explore/")
    watched.drawn(1)
    rows = shown(page)
    assert [row[1] for row in rows] == ["363 / 0", "27 / 1", "363 / 4", "1,491 / 8"]
    assert {row[6] for row in rows} >= {"CONFIRMED"}
    assert page.url == site.url + "explore/", "defaults are left out"


def test_a_filter_changes_table_chart_and_address(site: Served, watched: Watched) -> None:
    page = opened(watched, site, "explore/")
    page.select_option("#lk-explore-measure", "TTFT, first turn")
    page.select_option("#lk-explore-runs", "every")
    assert page.url.endswith("explore/?measure=TTFT%2C+first+turn&runs=every")
    rows = shown(page)
    assert len(rows) == 8
    title = page.wait_for_selector(".lk-plot .ytitle")
    assert title is not None and "TTFT, first turn" in (title.text_content() or "")
    page.goto(page.url)
    page.wait_for_load_state("networkidle")
    assert shown(page) == rows, "the address keeps the choice"
    assert page.input_value("#lk-explore-runs") == "every"


def test_a_wrong_address_is_a_default(site: Served, watched: Watched) -> None:
    page = opened(watched, site, "explore/?measure=nonsense&axis=sideways&platform=<b>")
    assert page.input_value("#lk-explore-measure") == "whole session"
    assert len(shown(page)) == 4


def test_nothing_that_fits_says_so(site: Served, watched: Watched) -> None:
    page = opened(watched, site, "explore/?baseline=all&measure=whole+session")
    assert "ratio(s) of" in page.inner_text("#lk-explorer [role=status]")


def test_the_chart_names_its_bars_and_draws_targets(site: Served, watched: Watched) -> None:
    page = opened(watched, site, "explore/")
    watched.drawn(1)
    assert "95 % t interval over blocks" in page.inner_text("#lk-explorer figcaption")
    names = page.evaluate(
        "document.querySelector('#lk-explorer .lk-plot').lkFigure.data.map(t => t.name)"
    )
    assert any(name.startswith("target: ") for name in names)
    page.select_option("#lk-explore-targets", "hidden")
    names = page.evaluate(
        "document.querySelector('#lk-explorer .lk-plot').lkFigure.data.map(t => t.name)"
    )
    assert not any(name.startswith("target: ") for name in names)


def test_the_csv_holds_the_rows_that_are_shown(site: Served, watched: Watched) -> None:
    page = opened(watched, site, "explore/")
    with page.expect_download() as found:
        page.click("button:has-text('CSV of these rows')")
    rows = [*csv.DictReader(io.StringIO(Path(found.value.path()).read_text()))]
    assert [row["prefix"] for row in rows] == ["363", "27", "363", "1491"]
    assert all(float(row["low"]) <= float(row["ratio"]) <= float(row["high"]) for row in rows)


def test_the_chart_can_be_kept(site: Served, watched: Watched) -> None:
    page = opened(watched, site, "explore/")
    watched.drawn(1)
    with page.expect_download() as found:
        page.click("button:has-text('PNG of the chart')")
    assert Path(found.value.path()).read_bytes().startswith(b"\x89PNG")


def test_the_parquet_holds_every_published_ratio(site: Served) -> None:
    rows = pq.read_table(site.layout.built / "downloads" / "ratios.parquet").num_rows
    with open_database(site.layout.database) as database:
        known = database.one(
            "select count(*) as n from ratios join run using (run_id) where published"
        )
    assert rows == known["n"] > 0


def test_each_number_leads_to_its_run_expectation_command_and_query(
    site: Served, watched: Watched
) -> None:
    page = opened(watched, site, "explore/")
    links = page.locator("#lk-explorer tbody tr").first.locator("a")
    targets = [(link.inner_text(), str(link.get_attribute("href"))) for link in links.all()]
    assert [text for text, _ in targets] == ["run", "expectation", "command", "SQL"]
    for _, address in targets[:3]:
        page.goto(address)
        anchor = address.partition("#")[2]
        assert not anchor or page.locator(f"#{anchor}").count() == 1
    page.goto(targets[3][1])
    page.wait_for_selector("#lk-query-sql")
    query = page.input_value("#lk-query-sql")
    with open_database(site.layout.database) as database:
        assert len(database.rows(query)) == 1


# --- comparison


def test_two_runs_show_what_differs_before_their_grades(site: Served, watched: Watched) -> None:
    page = opened(watched, site, "compare/")
    assert page.input_value("#lk-compare-second") == AGAIN
    tables = page.locator("#lk-compare table caption").all_inner_texts()
    assert tables[-1].startswith("Whole session: time of the second run")
    grades = {row[1]: row[5] for row in shown(page) if len(row) == 6}
    assert grades["live_kv"] == "slower"
    assert grades["reprefill"] in ("level", "unclear")


def test_the_later_run_first_is_told_how(site: Served, watched: Watched) -> None:
    page = opened(watched, site, "compare/")
    first = page.input_value("#lk-compare-first")
    page.select_option("#lk-compare-first", AGAIN)
    assert "Choose two different runs" in page.inner_text("#lk-compare")
    page.select_option("#lk-compare-second", first)
    assert f"nox -s compare -- {AGAIN} {first}" in page.inner_text("#lk-compare")


# --- calculator


def worth(page: Page, **values: object) -> Any:
    for name, value in values.items():
        page.fill(f"#lk-worth-{name}", str(value))
    return page.inner_text("#lk-calculator output")


@pytest.mark.parametrize(
    "loop", [Loop(27, 1, 32, 24), Loop(2000, 6, 64, 200), Loop(700, 0, 8, 5), Loop(5000, 20, 1, 1)]
)
def test_the_page_and_the_pipelines_compute_the_same(
    site: Served, watched: Watched, loop: Loop
) -> None:
    page = opened(watched, site, "worth/")
    state = {name: str(getattr(loop, name)) for name in ("prefix", "hops", "generate", "result")}
    found = page.evaluate(
        "state => { const p = document.getElementById('lk-calculator');"
        " return window.lkCalculate({...state, share: '20'}, JSON.parse(p.dataset.machines)[0]); }",
        state,
    )
    costs = fit_costs(readings())
    assert found["live"] == pytest.approx(session_s(costs, loop, kept=True))
    assert found["cold"] == pytest.approx(session_s(costs, loop, kept=False))


def test_the_answer_follows_the_form_and_the_address(site: Served, watched: Watched) -> None:
    page = opened(watched, site, "worth/")
    said = worth(page, prefix=4000, hops=10)
    assert "times as long" in said and "the formula was off by" in said
    assert "prefix=4000" in page.url and "hops=10" in page.url
    page.goto(page.url)
    assert worth(page) == said
    page.select_option("#lk-worth-machine", "own")
    assert page.is_enabled("#lk-worth-prefill")
    assert "the formula was off" not in worth(page, prefill=100, decode=10)


def test_rates_of_ones_own_are_tokens_over_rates(site: Served, watched: Watched) -> None:
    page = opened(watched, site, "worth/?machine=own")
    said = worth(page, prefix=1000, hops=1, generate=1, result=99, prefill=100, decode=10)
    # 1000 + 100 tokens with live KV, 1000 + 1100 without, no decode step.
    assert "11.0 s with live KV and 21.0 s without: 1.91 times" in said


def test_break_even_is_where_the_share_is_reached(site: Served, watched: Watched) -> None:
    page = opened(watched, site, "worth/?machine=own")
    worth(page, prefix=1000, hops=1, generate=1, result=99, prefill=100, decode=10, share=25)
    state = {"prefix": "1000", "hops": "1", "generate": "1", "result": "99", "prefill": "100",
             "decode": "10", "share": "25"}  # fmt: skip
    even = page.evaluate("state => window.lkCalculate(state, null).even", state)
    # Saved share = P / (2 P + 100), at least a quarter from P = 50 on.
    assert even == 50


def test_what_cannot_be_computed_says_why(site: Served, watched: Watched) -> None:
    page = opened(watched, site, "worth/")
    assert "Prefix, tokens: a whole number of at least 1." in worth(page, prefix=0)
    assert "at most 1000" in worth(page, prefix=100, hops=2000)


# --- SQL


@pytest.fixture
def engine(site: Served) -> None:
    """The page's engine comes through npm; a machine without npm builds a site without it."""
    built = (site.layout.built / "assets" / "vendor" / "duckdb").is_dir()
    if not built and shutil.which("npm") is None:
        pytest.skip("no npm on PATH: the site is built without SQL in the browser")
    assert built, "npm is there and brought nothing"


def asked(page: Page, sql: str) -> str:
    page.fill("#lk-query-sql", sql)
    page.click("#lk-query button[type=submit]")
    page.wait_for_function(
        "/row|DuckDB says/.test(document.querySelector('#lk-query [role=status]').textContent)"
    )
    return page.inner_text("#lk-query [role=status]")


@pytest.mark.usefixtures("engine")
def test_sql_is_answered_in_the_browser(site: Served, watched: Watched) -> None:
    page = opened(watched, site, "query/")
    assert not [one for one in watched.addresses if "duckdb" in one], "loaded on a click only"
    assert "36 MB" in page.inner_text("#lk-query button[type=submit]")
    started = time.monotonic()
    assert asked(page, "select count(*) as n, 'a' as b from ratios").startswith("1 row(s)")
    assert time.monotonic() - started < 10
    with open_database(site.layout.built / "downloads" / "results.duckdb") as database:
        (row,) = database.rows("select count(*) as n from ratios")
    assert shown(page)[0] == [str(row["n"]), "a"]
    assert "first 1000 rows" in asked(page, "from range(5000)")
    assert "DuckDB says" in asked(page, "from nowhere")
    assert asked(page, "select 1 as again").startswith("1 row(s)"), "an error is no end"


@pytest.mark.usefixtures("engine")
def test_text_from_the_data_is_text(site: Served, watched: Watched) -> None:
    page = opened(watched, site, "query/?sql=select+%27%3Cimg+src%3Dx%3E%27+as+%22%3Cb%3Ex%22")
    assert page.input_value("#lk-query-sql") == "select '<img src=x>' as \"<b>x\""
    asked(page, page.input_value("#lk-query-sql"))
    assert shown(page) == [["<img src=x>"]]
    assert page.locator("#lk-query img, #lk-query th b").count() == 0


@pytest.mark.usefixtures("engine")
def test_a_question_that_takes_too_long_can_be_stopped(site: Served, watched: Watched) -> None:
    page = opened(watched, site, "query/")
    asked(page, "select 1 as ready")
    page.fill(
        "#lk-query-sql", "select sum(a.range * b.range) from range(1000000) a, range(1000000) b"
    )
    page.click("#lk-query button[type=submit]")
    page.click("#lk-query button:has-text('Stop')")
    assert "Stopped" in page.inner_text("#lk-query [role=status]")
    assert asked(page, "select 2 as then").startswith("1 row(s)")


def test_every_example_of_the_page_runs(site: Served) -> None:
    known = examples(ROOT / "RUNBOOK.md")
    assert len(known) > 8
    with open_database(site.layout.built / "downloads" / "results.duckdb") as database:
        for one in known:
            database.rows(one.sql)


def test_the_examples_are_on_the_page(site: Served, watched: Watched) -> None:
    page = opened(watched, site, "query/")
    page.select_option("#lk-query-example", "1")
    known = examples(ROOT / "RUNBOOK.md")
    assert page.input_value("#lk-query-sql") == known[1].sql
    data = json.loads(str(page.get_attribute("#lk-query", "data-examples")))
    assert [one["title"] for one in data] == [one.title for one in known]
