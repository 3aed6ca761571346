"""The built site in a browser: charts, navigation, builder, phone width; and byte for byte."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import typer
from axe_playwright_python.sync_playwright import Axe
from checkout import HOSTILE, Served, Watched, make_checkout
from playwright.sync_api import Browser
from rich.console import Console

from pipelines.paths import Layout
from pipelines.publish.linkcheck import check_site
from pipelines.publish.site import SiteError, build_site
from runner.cli import app
from runner.plan import Request, make_plan

RUN = "runs/cpu-20260102T030405-synthetic/"
PAGES = (
    "", "explore/", "measured/", "worth/", "compare/", "query/", "data/", "runs/", RUN, "config/",
    "method/", "evidence/", "reproduce/", "runbook/", "architecture/", "roadmap/", "changelog/",
    "decisions/",
)  # fmt: skip


def _heights(watched: Watched) -> list[float]:
    found: list[float] = watched.page.evaluate(
        "[...document.querySelectorAll('.lk-plot')].map(p => p.getBoundingClientRect().height)"
    )
    return found


def _arrived(watched: Watched, heading: str) -> None:
    # The address changes before the page does.
    watched.page.wait_for_selector(f"article h1:has-text('{heading}')")
    watched.drawn(watched.page.locator(".lk-plot").count())


def test_charts_draw_on_load_on_click_and_after_back(site: Served, watched: Watched) -> None:
    page = watched.page
    page.goto(site.url)
    watched.drawn(1)
    direct = _heights(watched)
    page.evaluate("window.same = true")
    page.click("article a:has-text('measured against target')")
    _arrived(watched, "Measured against target")
    page.click("article a:has-text('20260102T030405-synthetic')")
    _arrived(watched, "Run 20260102T030405-synthetic")
    page.go_back()
    _arrived(watched, "Measured against target")
    page.go_back()
    _arrived(watched, "What is keeping")
    assert _heights(watched) == direct
    assert page.evaluate("window.same") is True, "the clicks loaded whole pages"
    scripts = [address for address in watched.addresses if "plotly" in address]
    assert len(scripts) == 1, "the chart library is loaded once"


def test_pages_without_a_chart_do_not_load_the_library(site: Served, watched: Watched) -> None:
    watched.page.goto(site.url + "method/")
    watched.page.wait_for_load_state("networkidle")
    assert not [address for address in watched.addresses if "plotly" in address]


def test_charts_follow_the_colour_scheme(site: Served, watched: Watched) -> None:
    page = watched.page
    page.emulate_media(color_scheme="light")
    page.goto(site.url)
    watched.drawn(1)
    ink = "document.querySelector('.lk-plot .xtick text').style.fill"
    light = page.evaluate(ink)
    page.emulate_media(color_scheme="dark")
    page.wait_for_function(f"light => {ink} !== light", arg=light)
    watched.drawn(1)


@pytest.mark.parametrize("name", PAGES)
def test_nothing_scrolls_sideways_on_a_phone(site: Served, watched: Watched, name: str) -> None:
    page = watched.page
    page.set_viewport_size({"width": 390, "height": 800})
    page.goto(site.url + name)
    page.wait_for_load_state("networkidle")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_the_numbers_are_there_without_javascript(site: Served, browser: Browser) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    for name, said in (("", "4.67"), ("measured/", "CONFIRMED"), ("config/", "nox -s sweep --")):
        page.goto(site.url + name)
        assert said in page.inner_text("article") + page.locator("article").inner_html()
    page.goto(site.url)
    assert "it took 5.48 times as long" in page.inner_text("article")
    context.close()


def test_hostile_text_shows_as_text(site: Served, watched: Watched) -> None:
    page = watched.page
    for name in ("", "measured/", "runs/", "runs/cpu-mine/"):
        page.goto(site.url + name)
        page.wait_for_load_state("networkidle")
        assert page.evaluate("document.querySelectorAll('img[src=x]').length") == 0
    assert HOSTILE in page.inner_text("article")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_nothing_in_what_is_ours(
    site: Served, watched: Watched, name: str, scheme: Any
) -> None:
    page = watched.page
    page.emulate_media(color_scheme=scheme)
    page.goto(site.url + name)
    page.wait_for_load_state("networkidle")
    found = Axe().run(page, context="article").response["violations"]
    said = [f"{one['id']}: {node['html'][:120]}" for one in found for node in one["nodes"]]
    # The theme gives each block of code a navigation of its own, and none of them a name.
    assert [one for one in said if "md-code__nav" not in one] == []


def test_a_result_leads_through_the_builder_to_its_own_plan(site: Served, watched: Watched) -> None:
    """Result -> command -> builder -> command: the plan fingerprint stays what it was."""
    page = watched.page
    page.goto(site.url + RUN)
    shown = page.inner_text("table:has(caption:has-text('Command, configuration')) code >> nth=0")
    page.click("article a:has-text('build the command')")
    page.wait_for_selector("#lk-builder form")
    plans = [make_plan(_request(command)).fingerprint for command in (shown, _command(watched))]
    assert plans[0] == plans[1]
    assert _parsed(shown)["blocks"] == 12


def _request(command: str) -> Request:
    params = _parsed(command)
    arms = params.pop("arms")
    return Request(arms=tuple(arms.split(",")) if arms else None, **params)


def _parsed(command: str) -> dict[str, Any]:
    words = shlex.split(command)
    assert words[:3] == ["nox", "-s", "sweep"]
    assert words[3:4] in ([], ["--"])
    sweep = typer.main.get_command(app).commands["sweep"]  # type: ignore[attr-defined]
    params: dict[str, Any] = sweep.make_context("sweep", words[4:]).params
    return params


def _command(watched: Watched) -> str:
    return watched.page.inner_text("#lk-posix")


def test_the_builder_makes_the_command_that_the_form_says(site: Served, watched: Watched) -> None:
    page = watched.page
    page.goto(site.url + "config/")
    page.select_option("#lk-platform", "cuda")
    page.select_option("#lk-model", "shape:qwen2.5-1.5b-q4_k_m")
    page.fill("#lk-prefix", "2000")
    page.fill("#lk-hops", "6")
    page.fill("#lk-blocks", "8")
    page.fill("#lk-threads", "2")
    params = _parsed(_command(watched))
    assert (params["platform"], params["model"]) == ("cuda", "shape:qwen2.5-1.5b-q4_k_m")
    assert (params["prefix"], params["hops"], params["blocks"]) == (2000, 6, 8)
    assert params["threads"] == 2
    assert params["exploratory"] is True, "a point of your own has no expectation"
    assert page.is_disabled("#lk-exploratory") and page.is_disabled("#lk-max_prefix")
    assert "'--'" in page.inner_text("#lk-powershell")


def test_every_option_can_be_said(site: Served, watched: Watched) -> None:
    page = watched.page
    page.goto(site.url + "config/")
    page.check("#lk-arms-live_kv")
    page.check("#lk-arms-llama_server")
    page.uncheck("#lk-calibration")
    page.fill("#lk-n_ctx", "4096")
    page.fill("#lk-wait_quiet", "1.5")
    page.fill("#lk-out", "my runs/it's")
    params = _parsed(_command(watched))
    assert params["arms"] == "live_kv,llama_server"
    assert params["calibration"] is False
    assert (params["n_ctx"], params["wait_quiet"]) == (4096, 1.5)
    assert str(params["out"]) == "my runs/it's"
    said = _command(watched)
    page.goto(page.url)
    assert _command(watched) == said
    page.fill("#lk-resume", "last")
    assert page.is_disabled("#lk-arms") or page.is_disabled("#lk-arms-live_kv")
    assert _parsed(_command(watched))["resume"] == "last"


def test_a_registered_choice_is_not_forced_to_be_exploratory(
    site: Served, watched: Watched
) -> None:
    page = watched.page
    page.goto(site.url + "config/?sweep=reference&max_prefix=1491")
    params = _parsed(_command(watched))
    assert (params["sweep"], params["max_prefix"]) == ("reference", 1491)
    assert params["exploratory"] is False
    assert page.is_enabled("#lk-exploratory")


def test_the_state_goes_through_the_address(site: Served, watched: Watched) -> None:
    page = watched.page
    page.goto(site.url + "config/")
    assert page.url == site.url + "config/"
    page.select_option("#lk-sweep", "reference")
    page.fill("#lk-blocks", "12")
    page.check("#lk-dry_run")
    assert page.url.endswith("config/?sweep=reference&blocks=12&dry_run=1")
    said = _command(watched)
    page.goto(page.url)
    assert _command(watched) == said
    page.select_option("#lk-sweep", "quick")
    page.fill("#lk-blocks", "")
    page.uncheck("#lk-dry_run")
    assert page.url == site.url + "config/", "defaults are left out"


def test_an_impossible_choice_says_why(site: Served, watched: Watched) -> None:
    page = watched.page
    page.goto(site.url + "config/")
    metal = page.locator("#lk-platform option[value=metal]")
    assert metal.is_disabled()
    assert "only on macOS" in metal.inner_text()
    page.fill("#lk-prefix", "8000")
    assert "needs both prefix and hops" in _command(watched)
    page.fill("#lk-hops", "20")
    assert "needs 9152 KV cells, the context has 8192" in _command(watched)
    page.fill("#lk-hops", "1")
    assert _parsed(_command(watched))["hops"] == 1


def test_the_builder_works_after_a_click(site: Served, watched: Watched) -> None:
    page = watched.page
    page.goto(site.url)
    page.click("article a:has-text('build the command')")
    page.wait_for_selector("#lk-builder form")
    assert page.locator("#lk-builder form").count() == 1
    for field in page.locator("#lk-builder select, #lk-builder input").all():
        assert page.locator(f"label[for='{field.get_attribute('id')}']").count() == 1


def test_two_builds_are_the_same_bytes(site: Served, tmp_path: Path) -> None:
    left_out = shutil.ignore_patterns("docs", "results.duckdb")
    other = Layout(shutil.copytree(site.layout.root, tmp_path / "other", ignore=left_out))
    shutil.rmtree(other.built)
    build_site(other, Console(quiet=True), site.url)
    first, second = (_contents(built) for built in (site.layout.built, other.built))
    assert first.keys() == second.keys()
    assert [name for name in first if first[name] != second[name]] == []
    pages = [name for name in first if name.endswith(".html")]
    assert max(len(first[name]) for name in pages) < 500_000


def _contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_the_link_check_finds_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "index.html").write_text("<h1 id='here'>x</h1>")
    (tmp_path / "a.css").write_text(
        "@import 'https://fonts.example/x.css'; a{background:url(b.png)}"
    )
    (tmp_path / "index.html").write_text(
        "<a href='sub/'>ok</a><a href='sub/#here'>ok</a><a href='https://example.org'>ok</a>"
        "<a href='gone/'>1</a><a href='sub/#gone'>2</a><a href='../up'>3</a>"
        "<script src='https://cdn.example/x.js'></script><img src='none.png'>"
    )
    assert [(fault.reference, fault.reason) for fault in check_site(tmp_path)] == [
        ("gone/", "no such page"),
        ("sub/#gone", "no such anchor"),
        ("../up", "leaves the site"),
        ("https://cdn.example/x.js", "loaded from another host"),
        ("none.png", "no such file"),
        ("https://fonts.example/x.css", "loaded from another host"),
        ("b.png", "no such file"),
    ]


def test_a_dead_link_in_the_source_stops_the_build(tmp_path: Path) -> None:
    layout = make_checkout(tmp_path)
    with (layout.source / "method.md").open("a") as page:
        page.write("\n[gone](gone.md)\n")
    with pytest.raises(SiteError, match=r"gone\.md"):
        build_site(layout, Console(quiet=True))


def test_an_unknown_marker_stops_the_build(tmp_path: Path) -> None:
    layout = make_checkout(tmp_path)
    (layout.source / "method.md").write_text("<!-- data: nothing -->\n")
    with pytest.raises(Exception, match="asks for data 'nothing'"):
        build_site(layout, Console(quiet=True))
