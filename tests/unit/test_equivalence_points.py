"""Free output from rows to a page: shares, first divergence, and a control that may fail."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from pipelines.database import Database, Row
from pipelines.publish.equivalence import equivalence_section, free_output
from pipelines.publish.markup import show
from pipelines.warehouse import SQL
from runner.records import EQUIVALENCE, check_row

POINT = "tool_loop-p363-h4"


def row(comparison: str, hop: int, agreed: int = 32, **changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "run_id": "r1", "point": POINT, "comparison": comparison, "hop": hop,
        "n_tokens": 32, "n_agreed": agreed, "top2_margin": 0.2 if agreed < 32 else None,
        "max_logit_difference": 0.0 if comparison == "matched" else 0.4, "logit_sd": 2.0,
        "reason": None, **changes,
    }  # fmt: skip
    check_row("equivalence", found)
    return found


FREE = [row("free", 1), row("free", 2, 9), row("free", 4, 20, top2_margin=0.1)]
MATCHED = [row("matched", hop) for hop in (1, 2, 4)]


class Tables:
    """The database's two tables that free output is made of."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self.connection = connection
        self.database = Database(connection)

    def fill(self, *rows: dict[str, Any]) -> None:
        incoming = pa.Table.from_pylist(list(rows), schema=EQUIVALENCE)
        self.connection.register("incoming", incoming)
        self.connection.execute("create table equivalence as from incoming")
        self.connection.execute((SQL / "equivalence.sql").read_text(encoding="utf-8"))

    def points(self) -> dict[str, Row]:
        found = self.database.rows("from equivalence_points")
        return {row["comparison"]: row for row in found}


@pytest.fixture
def tables() -> Iterator[Tables]:
    with duckdb.connect() as connection:
        connection.execute(
            f"create table blocks as select 'r1' run_id, '{POINT}' point, 363 n_prefix, 4 n_hops"
        )
        yield Tables(connection)


def test_tokens_count_up_to_the_first_divergence(tables: Tables) -> None:
    tables.fill(*FREE, *MATCHED)
    free = tables.points()["free"]
    assert (free["n_turns"], free["n_tokens"], free["n_agreed"]) == (3, 96, 61)
    assert free["share_agreed"] == pytest.approx(61 / 96)
    assert free["first_divergence_hop"] == 2
    assert (free["smallest_margin"], free["smallest_margin_sd"]) == (0.1, 0.05)
    assert (free["largest_difference"], free["largest_difference_sd"]) == (0.4, 0.2)
    assert (free["short"], free["control_holds"]) == ("61 of 96 tokens", True)
    assert free["sentence"] == (
        "Live KV and re-prefill first part at hop 2 after 9 tokens; where they part, the first"
        " choice leads by as little as 0.05 sd, and logits differ by up to 0.2 sd."
    )


def test_turns_that_never_part(tables: Tables) -> None:
    tables.fill(row("free", 1), row("free", 2), *MATCHED)
    free, matched = tables.points().values()
    assert (free["share_agreed"], free["first_divergence_hop"]) == (1.0, None)
    assert free["sentence"] == (
        "Live KV and re-prefill say the same 64 tokens; logits differ by up to 0.2 sd."
    )
    assert matched["sentence"] == (
        "The control holds: in equal batch shapes all 96 tokens agree, logits within 0 sd."
    )


@pytest.mark.parametrize(
    ("fault", "holds"),
    [
        (row("matched", 8), True),
        (row("matched", 8, max_logit_difference=0.02), True),
        (row("matched", 8, max_logit_difference=0.0202), False),
        (row("matched", 8, 31, max_logit_difference=0.0), False),
        (row("matched", 8, 0, reason="logits that are not finite"), False),
    ],
)
def test_the_control_holds_or_fails_for_both_comparisons(
    tables: Tables, fault: dict[str, Any], holds: bool
) -> None:
    tables.fill(*FREE, *MATCHED, fault)
    for found in tables.points().values():
        assert found["control_holds"] is holds
        assert (found["short"] == "control failed") is not holds
    said = tables.points()["matched"]["sentence"]
    assert said.startswith("The control holds") is holds
    section = equivalence_section(tables.database, "r1")
    assert ("Kept state did not say what its own tokens say" in section) is not holds


def test_a_failed_control_is_loud(tables: Tables) -> None:
    tables.fill(*FREE, *MATCHED[:2], row("matched", 4, 3, max_logit_difference=4.0))
    found = tables.points()
    assert found["matched"]["sentence"] == (
        "CONTROL FAILED: in equal batch shapes 67 of 96 tokens agree, logits differ by up to 2 sd;"
        " kept state is not what its tokens say."
    )
    assert show(free_output(found["free"])) == (
        '<span class="lk-badge" data-state="control failed">control failed</span>'
    )
    section = equivalence_section(tables.database, "r1")
    assert section.index("control failed") < section.index("<table")
    assert "at 363 / 4 (prefix / hops)" in section


def test_what_could_not_be_compared_says_why(tables: Tables) -> None:
    failed = row("free", 0, 0, n_tokens=0, reason="the equivalence process was killed by SIGABRT",
                 top2_margin=None, max_logit_difference=None, logit_sd=None)  # fmt: skip
    tables.fill(failed)
    (free,) = tables.points().values()
    assert (free["n_tokens"], free["share_agreed"], free["control_holds"]) == (0, None, None)
    assert (free["short"], show(free_output(free))) == ("not compared", "not compared")
    assert free["sentence"] == "Not compared: the equivalence process was killed by SIGABRT."
    assert "killed by SIGABRT" in equivalence_section(tables.database, "r1")


def test_a_run_without_the_comparison_says_so(tables: Tables) -> None:
    tables.fill(*FREE)
    assert equivalence_section(tables.database, "another").startswith("<p>Not compared")
    assert show(free_output({"short": None, "control_holds": None})) == "&mdash;"


def test_a_page_shows_points_and_turns(tables: Tables) -> None:
    tables.fill(*FREE, *MATCHED)
    section = equivalence_section(tables.database, "r1")
    assert "control failed" not in section
    assert "<td>61 of 96</td><td>64%</td><td>2</td><td>0.05 sd</td><td>0.2 sd</td>" in section
    assert section.count("<tr>") == 1 + 2 + 1 + 6
    assert "<td>2</td><td>9 of 32</td><td>0.2</td><td>0.4</td><td>2</td>" in section
