from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from runner import catalog
from runner.catalog import Point
from runner.errors import UsageError
from runner.listing import print_catalog


def test_every_data_file_is_valid() -> None:
    assert set(catalog.platforms()) == {"cpu", "cuda", "vulkan", "metal", "rocm"}
    assert set(catalog.sweeps()) == {"competitive", "quick", "reference", "two_by_two"}
    assert catalog.models()["smollm2-135m"].kind == "packaged"


def test_reference_points_are_the_measured_ones() -> None:
    points = catalog.sweeps()["reference"].points
    assert [(p.prefix, p.hops, p.label) for p in points] == [
        (27, 1, "50"),
        (363, 4, "500"),
        (1491, 8, "2000"),
        (2979, 12, "4000"),
        (363, 0, "parity control"),
    ]


@pytest.mark.parametrize("sweep", ["quick", "reference"])
def test_every_point_fits_its_context(sweep: str) -> None:
    found = catalog.sweeps()[sweep]
    assert all(point.n_tokens <= found.n_ctx for point in found.points)
    assert any(point.hops == 0 for point in found.points), "a sweep holds its parity control"


def test_a_point_counts_the_whole_session() -> None:
    assert Point(prefix=100, hops=2).n_tokens == 100 + 3 * 32 + 2 * 24


def test_fetched_models_are_pinned_or_say_where_their_digest_comes_from() -> None:
    for model in catalog.models().values():
        if model.kind == "packaged":
            assert model.sha256 is not None
            assert model.package_sha256 is not None
        assert model.licence
        assert model.output_meaningful == (model.kind in {"packaged", "hub"})


def test_an_unknown_key_is_refused(tmp_path: Path) -> None:
    (tmp_path / "models.toml").write_text('[m]\nkind = "tiny"\nlicense = "MIT"\n')
    with pytest.raises(UsageError, match=r"models\.toml"):
        catalog.models(tmp_path)


def test_a_file_that_is_no_toml_is_refused(tmp_path: Path) -> None:
    (tmp_path / "models.toml").write_text("[m\n")
    with pytest.raises(UsageError, match="cannot read"):
        catalog.models(tmp_path)


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(
        UsageError, match=r"unknown sweep 'huge'; choose one of: competitive, quick"
    ):
        catalog.choose("sweep", "huge", catalog.sweeps())


def test_the_catalog_is_printed_with_every_name() -> None:
    console = Console(width=200, record=True, file=io.StringIO())
    print_catalog(console)
    text = console.export_text()
    names = [*catalog.platforms(), *catalog.models(), *catalog.sweeps()]
    assert [name for name in names if name not in text] == []
