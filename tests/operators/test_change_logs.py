"""Change logs: what they say of objects, in any order and any batches, is what the table has."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.serve.following import Follower
from millstream.serve.views import read_all
from millstream.testing import Driver, reference, run_in_process
from tests.variants import variants

Row = dict[str, Any]
WORDS = ("+", "u", "-", "insert", "DELETE", "c", "d", "r")


def log_flow(**options: Any) -> ms.Flow:
    flow = ms.Flow("log")
    source = flow.source(
        ms.Generator(
            tuple, time="ts", lateness="1h", schema="ts timestamp, id long, v long, what string"
        ),
        name="log",
    )
    changes = source.changes(key="id", op="what", **options).named("table")
    changes.sink(ms.Memory(), name="out").view("now")
    return flow


def at(second: int, number: int, value: int, what: str) -> Row:
    return {
        "ts": f"2026-01-01T00:{second // 60:02}:{second % 60:02}Z",
        "id": number,
        "v": value,
    } | {"what": what}


def table_of(path: Path) -> Counter[tuple[int, int]]:
    snapshot = Follower(path).current
    rows = read_all(snapshot, snapshot.view("now")).to_pylist()
    return Counter((row["id"], row["v"]) for row in rows)


def replayed(records: list[Row]) -> Counter[tuple[int, int]]:
    """The definition: records in the order of time, then of their places; the last one counts."""
    rows: dict[int, int] = {}
    for record in sorted(records, key=lambda one: one["ts"]):
        if record["what"] in ("-", "DELETE", "d"):
            rows.pop(record["id"], None)
        else:
            rows[record["id"]] = record["v"]
    return Counter(rows.items())


@pytest.mark.parametrize("seed", variants(range(4)))
def test_a_log_is_the_table_whatever_the_order_and_the_batches(tmp_path: Path, seed: int) -> None:
    made = random.Random(seed)
    records = [at(second, made.randrange(8), second, made.choice(WORDS)) for second in range(120)]
    moved = sorted(records, key=lambda one: made.random() * 30 + records.index(one))
    with Driver(log_flow(), checkpoint=tmp_path / "ck", parallelism=1 + seed % 3) as driver:
        given, sent = Counter[tuple[int, int]](), 0
        while sent < len(moved):
            size = made.randrange(1, 20)
            driver.push("log", moved[sent : sent + size]).step()
            sent += size
            if made.random() < 0.2:
                driver.restart()
            assert table_of(tmp_path / "ck") == replayed(moved[:sent])
        keys: dict[int, Row] = {}
        for row in driver.output("out"):  # a reader adds the changes up by their key
            given[row["op"], 0] += 1
            if row["op"] == "-":
                assert keys.pop(row["id"])["v"] == row["v"]
            else:
                assert (row["op"] == "u") == (row["id"] in keys)
                keys[row["id"]] = row
        assert Counter((row["id"], row["v"]) for row in keys.values()) == replayed(moved)
        assert "what" not in driver.output("out")[0]
        account = driver.ledger["table"]
        assert account["offered"] == account["aggregated"] == len(records)
        assert account["stale"] > 0


def test_what_does_not_fit_is_counted() -> None:
    with Driver(log_flow()) as driver:
        driver.push("log", [at(1, 1, 10, "-"), at(2, 2, 20, "+"), at(3, 2, 21, "-")]).step()
        account = driver.ledger["table"]
        assert (account["unmatched"], account["stale"]) == (1, 0)
        driver.push("log", [at(4, 2, 0, "-"), at(5, 2, 0, "-"), at(2, 2, 99, "u")]).step()
        account = driver.ledger["table"]
        assert (account["unmatched"], account["stale"]) == (3, 1)
        assert driver.output("out") == []  # came and went within one batch, then never there


def test_a_removal_is_remembered_until_nothing_older_can_come(tmp_path: Path) -> None:
    with Driver(log_flow(), checkpoint=tmp_path / "ck") as driver:
        driver.push("log", [at(10, 1, 1, "+")]).step()
        driver.push("log", [at(20, 1, 2, "-")]).step()
        driver.push("log", [at(15, 1, 3, "u")]).step()  # older than the removal
        assert not table_of(tmp_path / "ck")
        driver.push("log", [at(25, 1, 4, "u")]).step()
        assert table_of(tmp_path / "ck") == Counter({(1, 4): 1})


def test_words_that_mean_nothing_are_dead_letters() -> None:
    with Driver(log_flow(ops={"gone": "-", "new": "+"})) as driver:
        driver.push("log", [at(1, 1, 10, "new"), at(2, 2, 20, "what?"), at(3, 3, 30, "INSERT")])
        driver.push("log", [{**at(4, 4, 0, ""), "what": None}]).step()
        driver.push("log", [at(5, 1, 0, "gone")]).step()
        assert [(row["op"], row["id"]) for row in driver.output("out")] == [
            ("+", 1),
            ("+", 3),
            ("-", 1),
        ]
        errors = [letter["error"] for letter in driver.dead]
        assert len(errors) == 2 and "'what' is 'what?'" in errors[0] and "is null" in errors[1]


def test_the_reference_knows_logs() -> None:
    rows = [at(1, 1, 1, "+"), at(2, 2, 2, "+"), at(3, 1, 0, "-"), at(4, 2, 5, "u")]
    found = reference(log_flow(), {"log": rows})["out"]
    assert [(row["id"], row["v"]) for row in found] == [(2, 5)]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"op": "id"}, "not part of the key"),
        ({"ops": {"a": "+"}}, "with op="),
        ({"op": "what", "ops": {"a": "x"}}, "expected words and what they mean"),
    ],
)
def test_mistakes(options: dict[str, Any], told: str) -> None:
    flow = ms.Flow("log")
    source = flow.source(ms.Generator(tuple, time="ts", schema="ts timestamp, id long"))
    with pytest.raises(ms.ConfigError, match=told):
        source.changes(key="id", **options)


# -- Debezium ------------------------------------------------------------------------------------


def envelope(op: str, before: Any, after: Any, **more: Any) -> dict[str, Any]:
    source = {"version": "3.0.0.Final", "connector": "postgresql", "db": "shop", "lsn": 24023128}
    return {
        "before": before,
        "after": after,
        "source": source,
        "op": op,
        "ts_ms": 1767225600000,
    } | more


ENVELOPES: list[Any] = [
    envelope("r", None, {"id": 1, "name": "Ann", "mail": "ann@x"}),
    envelope("c", None, {"id": 2, "name": "Bob", "mail": None}),
    envelope("c", None, {"id": 3, "name": "Cid", "mail": "c@x"}),
    envelope("u", {"id": 1, "name": "Ann"}, {"id": 1, "name": "Anna", "mail": "ann@x"}),
    envelope("d", {"id": 2, "name": None, "mail": None}, None),
    None,  # the tombstone after it
    envelope("u", None, {"id": 3, "name": "Cyd", "mail": "c@x"}, transaction=None),
]
LEFT = [(1, "Anna", "ann@x"), (3, "Cyd", "c@x")]
SQL = """
    CREATE STREAM people (id INT, name STRING, mail STRING, PRIMARY KEY (id))
    WITH (path = '{path}', format = 'debezium-json');
    CREATE MATERIALIZED VIEW now AS SELECT id, name, mail FROM people;
"""


def people(path: Path, lines: list[Any]) -> list[tuple[Any, ...]]:
    (path / "in").mkdir()
    text = "\n".join(json.dumps(line) for line in lines)
    (path / "in" / "people.json").write_text(text + "\n")
    flow = ms.Flow("people")
    flow.sql(SQL.format(path=path / "in"))
    run_in_process(flow, path / "ck")
    found = ms.query(path / "ck", "SELECT * FROM now ORDER BY id").to_pylist()
    return [tuple(row.values()) for row in found]


@pytest.mark.parametrize("wrapped", [False, True])
def test_debezium_envelopes(tmp_path: Path, wrapped: bool) -> None:
    lines = ENVELOPES
    if wrapped:
        lines = [{"schema": {"type": "struct", "fields": []}, "payload": one} for one in ENVELOPES]
    assert people(tmp_path, lines) == LEFT


def test_both_in_one_log(tmp_path: Path) -> None:
    lines = [{"payload": one} if n % 2 else one for n, one in enumerate(ENVELOPES)]
    assert people(tmp_path, lines) == LEFT


def test_what_is_no_change_of_a_row_is_a_dead_letter(tmp_path: Path) -> None:
    wrong = [
        envelope("t", None, None),
        envelope("d", None, None),
        envelope("c", None, None),
        {"id": 7, "name": "bare"},
        envelope("c", None, {"id": "seven"}),
        ["no object"],
    ]
    path = tmp_path / "in.json"
    path.write_text("".join(json.dumps(line) + "\n" for line in [*ENVELOPES, *wrong]) + "{half\n")
    flow = ms.Flow("people")
    schema = "id int, name string, __ts timestamp"
    source = flow.source(
        ms.Files(str(path), format="debezium", schema=schema, time="__ts"), name="people"
    )
    source.changes(key="id", op="__op").view("now")
    ledger = run_in_process(flow, tmp_path / "ck", dead_letter_limit=1.0)
    assert ledger["people"]["dead"] == 7 and ledger["people"]["aggregated"] == 6
    errors = [
        json.loads(line)["error"]
        for one in (tmp_path / "ck" / "dead").glob("*.jsonl")
        for line in one.read_text().splitlines()
    ]
    for told in ("op 't'", "without 'before'", "without 'after'", "no op"):
        assert sum(told in one for one in errors) == 1, (told, errors)
    rows = ms.views(tmp_path / "ck", "now").arrow().sort_by("id").to_pylist()
    assert [(row["id"], row["__ts"].year) for row in rows] == [(1, 2026), (3, 2026)]


@pytest.mark.parametrize("name", ["mail", "m'ail"])
def test_an_update_that_changes_the_key_is_a_dead_letter(name: str, tmp_path: Path) -> None:
    """Debezium goes by the key of the table; by another, a row would stay that is gone."""
    rows = [{"id": 1, name: mail, "n": n} for n, mail in enumerate("aabb")]
    lines = [envelope("c", None, rows[0]), envelope("u", rows[0], rows[1])]
    lines += [envelope("u", rows[1], rows[2]), envelope("u", None, rows[3])]
    path = tmp_path / "in.json"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    flow, schema = ms.Flow("moved"), {"id": "int", name: "string", "n": "int"}
    source = flow.source(ms.Files(str(path), format="debezium", schema=schema), name="people")
    source.changes(key=name, op="__op").view("now")
    ledger = run_in_process(flow, tmp_path / "ck", dead_letter_limit=1.0)
    assert ledger["people"]["dead"] == 1
    (letter,) = (tmp_path / "ck" / "dead").glob("*.jsonl")
    assert f"changes the key {name!r} from 'a' to 'b'" in json.loads(letter.read_text())["error"]
    rows = ms.views(tmp_path / "ck", "now").arrow().sort_by("n").to_pylist()
    assert [row["n"] for row in rows] == [1, 3]


def test_a_log_in_sql() -> None:
    flow = ms.Flow("log")
    flow.sql("""
        CREATE STREAM t (id INT, v INT, what STRING, PRIMARY KEY (id))
        WITH (source = 'http', port = 8401, op = 'what');
        CREATE SINK out WITH (sink = 'jsonl', path = 'out') AS SELECT * FROM t;
    """)
    assert flow.sql("DESCRIBE t") == "id: int\nv: int"
    with Driver(flow) as driver:
        driver.push("t_records", [{"id": 1, "v": 5, "what": "insert"}]).step()
        driver.push("t_records", [{"id": 1, "v": 5, "what": "delete"}]).step()
        assert driver.output("out") == [{"id": 1, "v": 5, "op": "+"}, {"id": 1, "v": 5, "op": "-"}]
    for options, told in (
        ("op = 'wat'", "did you mean what"),
        ("format = 'debezium-json', op = 'what'", "their own op"),
    ):
        with pytest.raises(ms.SqlError, match=told):
            flow.sql(
                "CREATE STREAM u (id INT, what STRING, PRIMARY KEY (id)) "
                f"WITH (source = 'http', port = 8402, {options})"
            )
    with pytest.raises(ms.SqlError, match="needs PRIMARY KEY"):
        flow.sql("CREATE STREAM w (id INT) WITH (path = 'x', format = 'debezium-json')")
