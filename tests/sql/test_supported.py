"""What the tables of docs/sql.md say is supported and no other test has: each does what it says."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import millstream as ms
from millstream.testing import Driver, run_in_process

NUMBERS = """
CREATE STREAM t (id INT, k INT, v INT, PRIMARY KEY (id)) WITH (source = 'http', port = 8401);
"""


def test_approximate_aggregates_of_groups() -> None:
    flow = ms.Flow("sketches")
    flow.sql("CREATE STREAM t (k INT, v INT) WITH (source = 'http', port = 8401)")
    flow.sql(
        "SELECT k, APPROX_COUNT_DISTINCT(v) AS d, PERCENTILE_APPROX(v, 0.5) AS p FROM t GROUP BY k"
    ).sink(ms.Memory(), name="out")
    with Driver(flow) as driver:
        driver.push("t", [{"k": n % 2, "v": n % 1000} for n in range(4000)]).step()
        found = {row["k"]: (row["d"], row["p"]) for row in driver.output("out")}
    for k in (0, 1):  # 500 different values each, the middle one near 500
        assert found[k][0] == pytest.approx(500, rel=0.05)
        assert found[k][1] == pytest.approx(500, abs=25)


@pytest.mark.parametrize("kind", ["csv", "text"])
def test_sinks_of_lines(kind: str, tmp_path: Path) -> None:
    (tmp_path / "in.json").write_text('{"word": "a,b", "n": 1}\n{"word": "c", "n": 2}\n')
    items = "word, n" if kind == "csv" else "word"
    flow = ms.Flow("lines")
    flow.sql(
        f"CREATE STREAM words (word STRING, n INT) WITH (path = '{tmp_path}/in.json'); "
        f"CREATE SINK lines WITH (sink = '{kind}', path = '{tmp_path}/out') AS "
        f"SELECT {items} FROM words"
    )
    run_in_process(flow, tmp_path / "ck")
    (file,) = sorted((tmp_path / "out").glob("part-*"))
    if kind == "text":
        assert file.read_text().splitlines() == ["a,b", "c"]
    else:
        with file.open() as lines:
            assert list(csv.reader(lines)) == [["word", "n"], ["a,b", "1"], ["c", "2"]]


def test_names_are_shown_and_dropped() -> None:
    flow = ms.Flow("names")
    flow.function("half", lambda value: value // 2, returns="int")
    flow.sql(
        f"{NUMBERS} CREATE STREAMED VIEW large AS SELECT id FROM t WHERE v > 5; "
        "CREATE SINK told FROM large WITH (sink = 'console')"
    )
    assert flow.sql("SHOW STREAMS") == "t"
    assert flow.sql("SHOW VIEWS") == "large"
    assert flow.sql("SHOW SINKS") == "told"
    assert flow.sql("SHOW FUNCTIONS") == "half: int"
    with pytest.raises(ms.SqlError, match="large"):
        flow.sql("DROP VIEW large")  # the sink uses it
    flow.sql("DROP SINK told; DROP VIEW large; DROP STREAM t; DROP SINK IF EXISTS told")
    assert flow.sql("SHOW TABLES") == flow.sql("SHOW SINKS")


@pytest.mark.parametrize(
    ("options", "kind", "fields"),
    [
        ("source = 'stdin', format = 'json'", "Stdin", {"format": "json"}),
        ("source = 'socket', host = 'localhost', port = 9000", "Socket", {"port": 9000}),
        ("path = 'in/', format = 'csv', nulls = ('NA', '')", "Files", {"nulls": ("NA", "")}),
    ],
)
def test_options_reach_their_source(options: str, kind: str, fields: dict[str, Any]) -> None:
    flow = ms.Flow("options")
    flow.sql(f"CREATE STREAM s (a INT) WITH ({options})")
    spec: Any = flow.nodes[0].spec  # type: ignore[attr-defined]
    assert type(spec).__name__ == kind
    assert {name: getattr(spec, name) for name in fields} == fields


def test_every_type_of_a_column(tmp_path: Path) -> None:
    row = {"a": "x", "b": 1, "c": 2, "d": 3, "e": 4, "f": 0.5, "g": 0.25, "h": True,
           "i": "2026-01-05", "j": "2026-01-05T09:30:00Z", "l": "1.50", "m": [1, 2],
           "n": {"p": 1, "q": "y"}}  # fmt: skip
    (tmp_path / "in.json").write_text(json.dumps(row) + "\n")
    flow = ms.Flow("types")
    flow.sql(
        "CREATE STREAM s (a STRING, b INT, c BIGINT, d SMALLINT, e TINYINT, f DOUBLE, g FLOAT, "
        "h BOOLEAN, i DATE, j TIMESTAMP, l DECIMAL(5,2), m ARRAY<INT>, n STRUCT<p:INT,q:STRING>) "
        f"WITH (path = '{tmp_path}/in.json')"
    )
    flow.sql("SELECT *, n.q AS q FROM s").sink(ms.Parquet(tmp_path / "out"))
    run_in_process(flow, tmp_path / "ck")
    (file,) = (tmp_path / "out").glob("part-*.parquet")
    found = pq.read_table(file)
    kinds = {
        name: str(kind) for name, kind in zip(found.column_names, found.schema.types, strict=True)
    }
    assert kinds["d"] == "int16" and kinds["e"] == "int8" and kinds["g"] == "float"
    assert kinds["l"] == "decimal128(5, 2)" and kinds["i"] == "date32[day]"
    (got,) = found.to_pylist()
    assert (str(got["l"]), got["m"], got["n"], got["q"]) == ("1.50", [1, 2], row["n"], "y")
