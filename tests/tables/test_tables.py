"""Tables of other systems as sinks: every batch once, whoever is killed; Delta as a source."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import millstream as ms
from millstream.errors import ConfigError, RunError
from millstream.run.batches.letters import letters_in
from millstream.run.outputs.tables import taking
from millstream.run.outputs.tables.moments import beyond
from millstream.run.outputs.tables.taking import Tabled
from millstream.run.outputs.tables.writing import Noted
from millstream.state.checkpoint import Checkpoint
from millstream.testing import run_in_process
from tests import prepared
from tests.services import PostgreSQL, unavailable
from tests.tables.apps import groups

APP = Path(groups.__file__)
KINDS = ("delta", "postgres", "iceberg")
YEAR_10000 = 253_402_300_800_000_000  # its beginning, in microseconds


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgreSQL]:
    try:
        import psycopg  # noqa: F401
    except ImportError as error:
        unavailable(str(error))
    with tempfile.TemporaryDirectory("", "postgres-", "/var/tmp") as folder:  # open to nobody
        os.chmod(folder, 0o755)
        server = PostgreSQL(folder)
        yield server
        server.stop()


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where the tables of a kind are."""
    if request.getfixturevalue("kind") == "postgres":
        return str(request.getfixturevalue("postgres").url)
    return str(tmp_path)


def rows_in(kind: str, place: str, name: str) -> list[dict[str, Any]]:
    """What a reader of a table sees, by a client that is not ours."""
    if kind == "delta":
        from deltalake import DeltaTable

        found: list[dict[str, Any]] = DeltaTable(f"{place}/{name}").to_pyarrow_table().to_pylist()
        return found
    if kind == "iceberg":
        table = groups.catalog(place).load_table(f"shop.{name}")
        return list(table.scan().to_arrow().to_pylist())
    import psycopg
    from psycopg.rows import dict_row

    with psycopg.connect(place, row_factory=dict_row) as connection:
        return list(connection.execute(f"SELECT * FROM {name}").fetchall())


def gave_nothing(sink: str, batch: int) -> int | None:
    """Of a checkpoint that is new."""
    return None


def answer(rows: list[dict[str, Any]]) -> dict[str, tuple[int, int]]:
    """The sum of each group of the orders: its definition."""
    totals: dict[str, tuple[int, int]] = {}
    for row in rows:
        n, total = totals.get(row["k"], (0, 0))
        totals[row["k"]] = (n + 1, total + row["v"])
    return {key: both for key, both in totals.items() if both[1] > groups.LEAST}


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_added_once_and_changes_merged(kind: str, place: str, tmp_path: Path) -> None:
    given = groups.write_orders(tmp_path / "in")
    run_in_process(groups.make_flow(kind, place, tmp_path), tmp_path / "ck", batch_rows=40)
    plain = rows_in(kind, place, "orders")
    assert Counter((r["id"], r["k"], r["v"]) for r in plain) == Counter(
        (r["id"], r["k"], r["v"]) for r in given
    )
    merged = {r["k"]: (r["n"], r["total"]) for r in rows_in(kind, place, "totals")}
    assert merged == answer(given) and len(rows_in(kind, place, "totals")) == len(merged)


@pytest.mark.parametrize("kind", KINDS[:2])
def test_a_batch_that_is_written_again_changes_nothing(
    kind: str, place: str, tmp_path: Path
) -> None:
    given = groups.write_orders(tmp_path / "in")
    for crash in ("half-published:1", "published:2", "after-manifest:3", ""):
        env = {**os.environ, "MILLSTREAM_CRASH_AT": crash}
        code, said = prepared.run(str(APP), kind, place, str(tmp_path), cwd=tmp_path, env=env)
        assert code == (-signal.SIGKILL if crash else 0), said
    name = {"delta": "again", "postgres": "again"}[kind]
    found = Counter((r["id"], r["k"], r["v"]) for r in rows_in(kind, place, name))
    assert found == Counter((r["id"], r["k"], r["v"]) for r in given)


def test_an_older_copy_of_a_checkpoint_is_refused(tmp_path: Path) -> None:
    """Its next batch has the number of one that the table has, and other rows."""

    def run(checkpoint: str, files: int) -> None:
        flow = ms.Flow("copied")
        source = ms.Files(tmp_path / "in", schema="v bigint", max_files_per_batch=files)
        flow.source(source).sink(ms.Delta(tmp_path / "table"), name="out")
        run_in_process(flow, tmp_path / checkpoint)

    (tmp_path / "in").mkdir()
    for number in range(4):
        (tmp_path / "in" / f"{number}.csv").write_text(f"v\n{number}\n")
        if number in (0, 2):
            run("ck", 1)
            shutil.copytree(tmp_path / "ck", tmp_path / f"copy{number}")
    with pytest.raises(RunError, match=r"has a batch \d of this flow.*it is an older copy"):
        run("copy0", 9)
    run("copy2", 9)
    assert sorted(row["v"] for row in rows_in("delta", str(tmp_path), "table")) == [0, 1, 2, 3]


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_of_a_checkpoint_that_went_its_own_way_is_refused(
    kind: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its batch has the number of one that the table has, and not the rows."""

    def run(checkpoint: str, files: int) -> None:
        flow = ms.Flow("copied")
        source = ms.Files(tmp_path / "in", schema="v bigint", max_files_per_batch=files)
        flow.source(source).sink(groups.sink(kind, place, "copied"), name="out")
        run_in_process(flow, tmp_path / checkpoint)

    def killed(*given: Any) -> None:
        raise KeyboardInterrupt

    (tmp_path / "in").mkdir()
    for number in range(3):
        (tmp_path / "in" / f"{number}.csv").write_text(f"v\n{number}\n")
        if number == 0:
            run("ck", 1)
            shutil.copytree(tmp_path / "ck", tmp_path / "copy")
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Tabled, "deliver", killed)
        run("ck", 1)  # a batch with the second file is committed, and not written
    run("copy", 9)  # one of the same number, with the second and the third
    with pytest.raises(RunError, match=r"has a batch \d of this flow.*it is an older copy"):
        run("ck", 1)
    assert sorted(row["v"] for row in rows_in(kind, place, "copied")) == [0, 1, 2]


@pytest.mark.parametrize("kind", KINDS)
def test_of_two_copies_that_run_at_once_one_ends(kind: str, place: str) -> None:
    spec = groups.sink(kind, place, "apart")
    one, two = (Tabled("out", spec, "flow:id:both", deltas=False) for _ in range(2))
    for each in (one, two):
        each.check(-1, gave_nothing)
    one.deliver(pa.table({"a": [0]}), 0, 100)
    one.deliver(pa.table({"a": [0]}), 0, 100)
    for batch in (0, 1):
        with pytest.raises(RunError, match="has batch 0 of another run of this flow"):
            two.deliver(pa.table({"a": [9]}), batch, 900)
    one.deliver(pa.table({"a": [2]}), 2, 102)
    late = Tabled("out", spec, "flow:id:both", deltas=False)
    late.check(2, lambda *_: 102)
    for batch in (1, 2):  # what a run before it published is published again
        late.deliver(pa.table({"a": [batch]}), batch, 100 + batch)
    with pytest.raises(RunError, match="does not have"):
        late.check(2, lambda *_: 0)  # of whose batch 2 nothing came here
    for each in (one, two, late):
        each.close()
    assert sorted(row["a"] for row in rows_in(kind, place, "apart")) == [0, 2]


@pytest.mark.parametrize("kind", ["delta"])
def test_two_writers_of_one_batch_write_it_once(kind: str, place: str) -> None:
    rows = pa.table({"a": [1, 2]})
    one, two = (
        Tabled("out", ms.Delta(f"{place}/t"), "flow:id:out", deltas=False) for _ in range(2)
    )
    one.deliver(rows, 0, 7)
    stale = taking.DeltaWriter(ms.Delta(f"{place}/t"), "flow:id:out")
    table = stale._table()
    one.deliver(rows, 1, 7)
    stale._table = lambda: table  # type: ignore[method-assign]  # it has not seen batch 1
    with pytest.raises(taking.Conflict):
        stale.write(rows, None, Noted(0, 7), Noted(1, 7))
    two.deliver(rows, 1, 7)
    assert Counter(r["a"] for r in rows_in(kind, place, "t")) == {1: 2, 2: 2}


def test_a_table_that_others_change_is_written_to_until_it_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = iter(range(20))
    write = taking.DeltaWriter.write

    def in_the_way(self: taking.DeltaWriter, *given: Any) -> None:
        if next(refused, None) is not None:
            raise taking.Conflict("somebody else was first")
        write(self, *given)

    monkeypatch.setattr(taking.DeltaWriter, "write", in_the_way)
    monkeypatch.setattr(taking, "_PAUSE", 0.0)
    sink = Tabled("out", ms.Delta(f"{tmp_path}/t"), "flow:id:out", deltas=False)
    sink.deliver(pa.table({"a": [1]}), 0, 7)
    assert rows_in("delta", str(tmp_path), "t") == [{"a": 1}]
    refused = iter(range(10**9))
    monkeypatch.setattr(taking, "PATIENCE", 0.0)
    with pytest.raises(RunError, match="changed by others all the time"):
        sink.deliver(pa.table({"a": [2]}), 1, 7)


def test_a_database_that_is_started_again_gets_the_batch_once(postgres: PostgreSQL) -> None:
    sink = Tabled("out", ms.Postgres(postgres.url, table="restarted"), "flow:id:r", deltas=False)
    sink.deliver(pa.table({"a": [1]}), 0, 7)
    postgres.stop()
    again = threading.Timer(0.5, postgres.start)
    again.start()
    sink.deliver(pa.table({"a": [2]}), 1, 7)  # it waits
    again.join()
    postgres.stop()  # the connection is gone and nobody has noticed
    postgres.start()
    sink.deliver(pa.table({"a": [3]}), 2, 7)
    sink.deliver(pa.table({"a": [3]}), 2, 7)
    sink.close()
    assert sorted(r["a"] for r in rows_in("postgres", postgres.url, "restarted")) == [1, 2, 3]


def test_a_database_that_stays_away_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("psycopg")
    monkeypatch.setattr(taking, "PATIENCE", 0.0)
    gone = ms.Postgres("postgresql://u:secret@127.0.0.1:1/x", table="t")
    with pytest.raises(RunError, match=r"did not take batch 3, .* at the next start") as error:
        Tabled("out", gone, "flow:id:out", deltas=False).deliver(pa.table({"a": [1]}), 3, 7)
    assert "secret" not in str(error.value)


def test_rows_that_a_database_cannot_take_are_dead_letters(
    postgres: PostgreSQL, tmp_path: Path
) -> None:
    rows = [
        {"k": "a", "v": ["x"], "n": 2**63 - 1},
        {"k": None, "v": [], "n": 1},
        {"k": "b\0", "v": [], "n": 1},
        {"k": "c", "v": ["\0"], "n": 1},
        {"k": "\\u0000", "v": ["\\u0000"], "n": None},
    ]
    flow = ms.Flow("unfit")
    source = ms.Generator(lambda: iter(rows), schema="k string, v array<string>, n bigint")
    flow.source(source, name="in").sink(
        ms.Postgres(postgres.url, table="unfit", key="k"), name="out"
    )
    ledger = run_in_process(flow, tmp_path / "ck", dead_letter_limit=1)
    assert {name: n for name, n in ledger["out"].items() if n}["dead"] == 3
    found = {r["k"]: (r["v"], r["n"]) for r in rows_in("postgres", postgres.url, "unfit")}
    assert found == {"a": (["x"], 2**63 - 1), "\\u0000": (["\\u0000"], None)}
    told = [one["error"] for one in letters_in(Checkpoint(tmp_path / "ck").dead)]
    assert "of its key is null" in told[0] and all("the character 0" in one for one in told[1:])


@pytest.mark.parametrize("kind", KINDS)
def test_what_functions_give_fits_the_table_or_is_a_dead_letter(
    kind: str, place: str, tmp_path: Path
) -> None:
    """A batch that is committed must be one that the table takes: it is asked for ever after."""
    rows: list[dict[str, Any]] = [
        {"k": "a", "v": 1, "w": None},
        {"v": 2},
        {"k": "c", "v": "x"},
        {"k": "d", "v": 2.5},
        {"k": "e", "v": 3.0, "w": [], 'a "b"': 5},
        {"k": "a", "v": 9, "w": [1]},
    ]
    (tmp_path / "in").mkdir()
    for number in range(len(rows)):
        (tmp_path / "in" / f"{number}.jsonl").write_text(f'{{"n": {number}}}\n')
    flow = ms.Flow("fits")
    source = ms.Files(tmp_path / "in", schema="n bigint", max_files_per_batch=1)
    stream = flow.source(source).map(lambda row: rows[row["n"]])
    stream.sink(groups.sink(kind, place, "fits", key="k"), name="out")
    ledger = run_in_process(flow, tmp_path / "ck", dead_letter_limit=1)
    assert (ledger["out"]["aggregated"], ledger["out"]["dead"]) == (3, 3)
    found = {row.pop("k"): row for row in rows_in(kind, place, "fits")}
    assert found == {
        "a": {"v": 9, "w": "[1]", 'a "b"': None},
        "e": {"v": 3, "w": "[]", 'a "b"': 5},
    }
    told = [one["error"] for one in letters_in(Checkpoint(tmp_path / "ck").dead)]
    assert "it has no 'k', which key= names" in told[0]
    assert all("column 'v'" in one and "is int64 in what was written" in one for one in told[1:])


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_types_that_a_lake_does_not_have_are_written_as_others(kind: str, tmp_path: Path) -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    columns = {
        "k": pa.array(["a"]),
        "u": pa.array([2**64 - 1], pa.uint64()),
        "small": pa.array([255], pa.uint8()),
        "half": pa.array([1.5], pa.float16()),
        "long": pa.array([timedelta(seconds=2)], pa.duration("ms")),
        "clock": pa.array([time(1, 2, 3)], pa.time32("s")),
        "day": pa.array([at.date()], pa.date64()),
        "digits": pa.array([Decimal("1.50")], pa.decimal256(60, 2)),
        "at": pa.array([at], pa.timestamp("ns", "Europe/Berlin")),
        "inside": pa.array([{"u": [7]}], pa.struct([("u", pa.list_(pa.uint16()))])),
    }
    sink = Tabled("out", groups.sink(kind, str(tmp_path), "odd", key="k"), "f:i:o", deltas=False)
    for batch in range(2):
        sink.deliver(pa.table(columns), batch, 7)
    (row,) = rows_in(kind, str(tmp_path), "odd")
    assert row == {
        "k": "a",
        "u": Decimal(2**64 - 1),
        "small": 255,
        "half": 1.5,
        "long": 2_000_000,
        "clock": time(1, 2, 3) if kind == "iceberg" else "01:02:03",
        "day": at.date(),
        "digits": "1.50",
        "at": at,
        "inside": {"u": [7]},
    }


@pytest.mark.parametrize("kind", KINDS)
def test_times_that_no_table_holds_are_dead_letters(kind: str, place: str, tmp_path: Path) -> None:
    """Iceberg would refuse them after the commit, and for the others clients have no value."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "far.csv").write_text("n\n0\n1\n")
    flow = ms.Flow("far")
    rows = flow.source(ms.Files(tmp_path / "in", schema="n bigint"))
    far = f"timestamp_micros(n * {YEAR_10000}) AS at"
    rows.select("n", far).sink(groups.sink(kind, place, "far"), name="out")
    run_in_process(flow, tmp_path / "ck", dead_letter_limit=1)
    (letter,) = letters_in(Checkpoint(tmp_path / "ck").dead)
    assert letter["error"] == "column 'at' has a time beyond the years 1 to 9999"
    assert '"at":"10000-01-01' in letter["raw"].replace(" ", "")
    (row,) = rows_in(kind, place, "far")
    assert (row["n"], row["at"].replace(tzinfo=UTC)) == (0, datetime(1970, 1, 1, tzinfo=UTC))


def test_times_are_found_wherever_they_are_in_a_row() -> None:
    micros = pa.timestamp("us", "UTC")
    last, days = YEAR_10000 - 1, YEAR_10000 // 86_400_000_000
    columns = {
        "at": pa.array([last, last + 1, None, 0], micros),
        "second": pa.array([2**62, 0, 0, -(2**62)], pa.timestamp("s")),
        "nano": pa.array([2**63 - 1, -(2**63), 0, 0], pa.timestamp("ns")),
        "day": pa.array([days - 1, days, -719_162, -719_163], pa.date32()),
        "list": pa.array([[0], [], [0, last + 1], None], pa.list_(micros)),
        "map": pa.array([[("k", last + 1)], None, [], [("j", 0)]], pa.map_(pa.string(), micros)),
        "part": pa.array([{"x": [last + 1]}, {"x": None}, None, {"x": [0]}]).cast(
            pa.struct([("x", pa.list_(micros))])
        ),
        "long": pa.array([2**62, 0, None, 5], pa.duration("s")),
    }
    found = {name: [*beyond(pa.table({name: one}))] for name, one in columns.items()}
    assert found == {
        "at": [1],
        "second": [0, 3],
        "nano": [],
        "day": [1, 3],
        "list": [2],
        "map": [0],
        "part": [0],
        "long": [0],
    }
    sliced = pa.table(columns).slice(1)
    assert {0, 1, 2} == set(beyond(sliced)) and not beyond(sliced.slice(0, 0))


def test_iceberg_knows_its_batch_when_snapshots_are_gone_and_takes_new_columns(
    tmp_path: Path,
) -> None:
    pytest.importorskip("pyiceberg")
    spec = groups.sink("iceberg", str(tmp_path), "kept")
    Tabled("out", spec, "flow:id:out", deltas=False).deliver(pa.table({"a": [1]}), 0, 7)
    table = groups.catalog(str(tmp_path)).load_table("shop.kept")
    ours = table.current_snapshot().snapshot_id
    table.append(pa.table({"a": [100]}))  # somebody else
    table.maintenance.expire_snapshots().by_id(ours).commit()
    again = Tabled("out", spec, "flow:id:out", deltas=False)
    again.deliver(pa.table({"a": [1]}), 0, 7)
    again.deliver(pa.table({"a": [2], "b": ["x"]}), 1, 7)
    found = [(r["a"], r["b"]) for r in rows_in("iceberg", str(tmp_path), "kept")]
    assert sorted(found) == [(1, None), (2, "x"), (100, None)]


def test_delta_is_read_and_followed_as_it_grows(tmp_path: Path) -> None:
    from deltalake import DeltaTable, write_deltalake

    table = f"{tmp_path}/t"
    for start in (0, 10):
        write_deltalake(table, pa.table({"id": list(range(start, start + 10))}), mode="append")
    sunk = ms.Memory()
    flow = ms.Flow("d")
    flow.source(ms.Delta(table), name="rows").sink(sunk)
    run_in_process(flow, tmp_path / "ck")
    assert sorted(r["id"] for r in sunk.rows) == list(range(20))

    from millstream.run.sources.versions import Versions
    from millstream.state.storage import open_storage

    place = open_storage(tmp_path / "sources")
    place.create()
    seen = Versions(ms.Delta(table, follow=True), place, "rows")
    assert len(seen()) == 2
    DeltaTable(table).optimize.compact()  # no rows change: nothing to read
    write_deltalake(table, pa.table({"id": [20]}), mode="append")
    assert len(seen()) == 3
    again = Versions(ms.Delta(table, follow=True), place, "rows")
    assert {one.path for one in again()} == {one.path for one in seen()}
    DeltaTable(table).delete("id = 20")
    with pytest.raises(RunError, match=r"version 4 of .* deletes or changes rows"):
        seen()


def test_no_password_but_its_own_is_sent_to_a_database(monkeypatch: pytest.MonkeyPatch) -> None:
    psycopg = pytest.importorskip("psycopg")
    sent: list[dict[str, Any]] = []

    def connect(**given: Any) -> None:
        sent.append(given)
        raise psycopg.OperationalError("no")

    monkeypatch.setattr(psycopg, "connect", connect)
    monkeypatch.setenv("PGPASSWORD", "of somebody else")
    for url, own in (
        ("postgresql://u@h/x?passfile=/etc/other", None),
        ("postgresql://u:in-url@h/x", None),
        ("postgresql://u@h/x", "from-env"),
    ):
        monkeypatch.delenv("MILLSTREAM_POSTGRES_PASSWORD", raising=False)
        if own is not None:
            monkeypatch.setenv("MILLSTREAM_POSTGRES_PASSWORD", own)
        with pytest.raises(ConfigError):
            Tabled("out", ms.Postgres(url, table="t"), "flow:id:out", deltas=False).check(
                -1, gave_nothing
            )
    assert [one["password"] for one in sent] == ["", "in-url", "from-env"]
    assert {one["passfile"] for one in sent} == {"/dev/null/none"}


def test_what_cannot_be_used_is_said_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLSTREAM_POSTGRES_PASSWORD", "hidden")
    wrong = ms.Postgres("postgresql://u:secret@127.0.0.1:1/x", table="t")
    tabled = Tabled("out", wrong, "flow:id:out", deltas=False)
    with pytest.raises(ConfigError, match=r"sink 'out': t at 127\.0\.0\.1:1/x cannot be") as error:
        tabled.check(-1, gave_nothing)
    assert "secret" not in str(error.value) + repr(wrong) and "hidden" not in str(error.value)
    with pytest.raises(ConfigError, match="is not a Delta table"):
        flow = ms.Flow("d")
        flow.source(ms.Delta(tmp_path / "none"), name="rows").sink(ms.Memory())
        run_in_process(flow, tmp_path / "ck")
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(ConfigError, match=r"pip install 'millstream\[delta\]'"):
        Tabled("out", ms.Delta(tmp_path / "t"), "flow:id:out", deltas=False).check(-1, gave_nothing)
    for bad in ({"table": "a;b"}, {"table": "t", "key": 1}):
        with pytest.raises((ConfigError, TypeError)):
            ms.Postgres("postgresql://h/x", **bad)  # type: ignore[arg-type]
