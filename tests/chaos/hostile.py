"""Random hostile input through random steps to random sinks, in process.

A `Case` is made of a seed: files of some format with values that senders should not send, a few
steps, and sinks. It is run in several ways of cutting the input into batches and tasks, which must
come to the same, with books that balance, and what was written must read back to what was given.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import json
import math
import random
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import millstream as ms
from millstream.run.batches.letters import letters_in
from millstream.state.storage import open_storage
from millstream.testing import run_in_process

WAYS = ("aggregated", "dead", "late", "diverted", "dropped")
START = datetime(2024, 1, 1, tzinfo=UTC)
SCHEMA = "id bigint, k string, v bigint, x double, s string, ts timestamp"
COLUMNS = ("id", "k", "v", "x", "s", "ts")
WHOLE = [0, 1, -1, 7, 7, 2**31, 2**53 + 1, 2**62, 2**63 - 1, -(2**63), 2**63, 2**64, 10**30, None]
REAL = [0.0, -0.0, 0.1, 1e300, -1e300, 5e-324, 1e16, 3, None, math.inf, -math.inf, math.nan]
TEXT = [
    "", "a", "b", "ä", "\U0001f600", "a\x00b", "NULL", "null", "NaN", "1", "-0", '"', "a,b", "'",
    "a\tb", " a ", "\u2028", "\ufeffa", "e\u0301", "x" * 5000, "__HIVE_DEFAULT_PARTITION__", None,
]  # fmt: skip
BREAKS = ["a\nb", "a\r\nb", "\n"]
MOMENTS = [
    "1969-12-31T23:59:59Z", "9999-12-31T23:59:59Z", "10000-01-01T00:00:00Z", "2024-02-30T00:00:00Z",
    "yesterday", "", "0001-01-01T00:00:00Z", "2024-01-01T00:00:00+14:00", None, "-1", "NaN",
]  # fmt: skip
RAW = [
    b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b"{}", b'{"id": 1, "id": 2}', b"\x00", b"   ",
    b'{"k": "\\ud800", "id": 5}', b'{"k": "\\ud83d\\ude00", "id": 6}', b'{"v": 1e999, "id": 7}',
    b'{"v": NaN, "id": 8}', b'{"s": ' + b"[" * 200 + b"]" * 200 + b', "id": 9}', b'{"v": true}',
    b'{"s": {"a": [1, "b", null]}, "id": 10}', b'{"x": "1.5", "id": "11"}', b'{"id": 1.0}',
]  # fmt: skip


@dataclass
class Case:
    """One flow over one input; `given` are the records that were meant, where there are some."""

    seed: int
    at: Path
    words: list[str] = field(default_factory=list)  # what it is, for a message

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.at.mkdir(parents=True, exist_ok=True)
        self.format = self.rng.choice(["csv", "json", "json", "text", "parquet"])
        self.options: dict[str, Any] = {}
        self.records = [self._record(n) for n in range(self.rng.choice([0, 1, 5, 40, 120]))]
        self.lines = self._write()
        self.plan = self._steps()

    # -- input ------------------------------------------------------------------------------------

    def _record(self, number: int) -> dict[str, Any]:
        rng = self.rng
        hostile = rng.random() < 0.3
        when: Any = (START + timedelta(seconds=number + rng.randrange(-5, 5))).isoformat()
        row = {
            "id": number,
            "k": rng.choice(TEXT if hostile else ["a", "b", "c"]),
            "v": rng.choice(WHOLE if hostile else range(9)),
            "x": rng.choice(REAL if hostile else [0.5, 1.5]),
            "s": rng.choice(TEXT),
            "ts": rng.choice(MOMENTS) if hostile and rng.random() < 0.4 else when,
        }
        if hostile and rng.random() < 0.3:
            row.pop(rng.choice(COLUMNS))
        return row

    def _write(self) -> int | None:
        """Files of the input; gives how many records there are, if that is known."""
        rng, directory = self.rng, self.at / "in"
        directory.mkdir()
        parts = [
            self.records[n :: max(1, files)]
            for files in [rng.choice([1, 1, 3])]
            for n in range(files)
        ]
        counts = [
            getattr(self, f"_{self.format}")(directory / f"{n}", rows)
            for n, rows in enumerate(parts)
        ]
        self.words.append(f"{self.format} {self.options}")
        return None if None in counts else sum(counts)

    def _json(self, path: Path, rows: list[dict[str, Any]]) -> int:
        lines = [json.dumps(row, ensure_ascii=self.rng.random() < 0.5).encode() for row in rows]
        for raw in self.rng.sample(RAW, self.rng.randrange(6)):
            lines.insert(self.rng.randrange(len(lines) + 1), raw)
        self._put(path, "jsonl", lines)
        return sum(bool(line.strip(b" \t\r")) for line in lines)

    def _text(self, path: Path, rows: list[dict[str, Any]]) -> int:
        lines = [str(row.get("s")).encode("utf-8") for row in rows]
        if self.rng.random() < 0.3:
            lines.insert(0, self.rng.choice([b"\xff\xfe\x00", b"y" * 300_000, b"\x00" * 9]))
        self._put(path, "txt", lines)
        return len(lines)

    def _csv(self, path: Path, rows: list[dict[str, Any]]) -> None:
        rng, out = self.rng, io.StringIO()
        multiline = self.options.setdefault("multiline", rng.random() < 0.3)
        encoding = self.options.setdefault(
            "encoding", rng.choice([None, None, "cp1252", "latin-1"])
        )
        end = rng.choice(["\n", "\r\n"])
        out.write(
            rng.choice(["", end, "#c" + end * 2]) if self.options.setdefault("comment", "#") else ""
        )
        writer = csv.writer(out, lineterminator=end)
        writer.writerow(COLUMNS)
        for row in rows:
            values = [row.get(name, "") for name in COLUMNS]
            if multiline and rng.random() < 0.2:
                values[4] = rng.choice(BREAKS)
            writer.writerow(values)
            if rng.random() < 0.05:
                out.write(rng.choice(["1,2", '"open', ",,,,,,,,", "a\x00,b", "   "]) + end)
        data = out.getvalue().encode(encoding or "utf-8", "replace")
        data = codecs.BOM_UTF8 + data if encoding is None and rng.random() < 0.3 else data
        self._pack(path, "csv", data)

    def _parquet(self, path: Path, rows: list[dict[str, Any]]) -> int:
        whole = [v if v is None or abs(v) < 2**63 else None for v in (r.get("v") for r in rows)]
        times = [START + timedelta(seconds=n) if "ts" in r else None for n, r in enumerate(rows)]
        table = pa.table({
            "id": pa.array([r.get("id") for r in rows], pa.int64()),
            "k": pa.array([r.get("k") for r in rows], pa.string()),
            "v": pa.array(whole, self.rng.choice([pa.int64(), pa.decimal128(20, 0)])
                          if len(self.words) == 0 else pa.int64()),
            "x": pa.array([r.get("x") for r in rows], pa.float64()),
            "s": pa.array([r.get("s") for r in rows], pa.string()),
            "ts": pa.array(times, pa.timestamp("us", "UTC")),
        })  # fmt: skip
        pq.write_table(table, f"{path}.parquet", row_group_size=self.rng.choice([1, 7, 1000]))
        return len(rows)

    def _put(self, path: Path, ending: str, lines: list[bytes]) -> None:
        end = self.rng.choice([b"\n", b"\n", b"\r\n"])
        self._pack(path, ending, b"".join(line + end for line in lines))

    def _pack(self, path: Path, ending: str, data: bytes) -> None:
        if self.rng.random() < 0.3:
            path, data = Path(f"{path}.{ending}.gz"), gzip.compress(data)
        else:
            path = Path(f"{path}.{ending}")
        path.write_bytes(data)

    # -- steps ------------------------------------------------------------------------------------

    def _steps(self) -> list[str]:
        if self.format == "text":
            steps, keyed = ["upper", "split"], ["lengths", "none"]
        else:
            steps = ["where", "with", "with", "map", "flat", "loose"]
            keyed = ["none", "agg", "agg", "slide", "session", "rows", "reduce", "update", "join",
                     "changes", "group", "over", "distinct", "dedup", "top"]  # fmt: skip
        chosen = self.rng.sample(steps, self.rng.randrange(0, 3))
        plan = [*chosen, self.rng.choice(keyed)]
        self.words.append(" ".join(plan))
        return plan

    def flow(self, out: Path) -> tuple[ms.Flow, dict[str, ms.Memory]]:
        """The flow, with sinks of its own; the same for every run of a case."""
        rng = random.Random(self.seed + 1)
        flow, options = ms.Flow("hostile"), dict(self.options)
        if self.format != "text":
            options |= {"schema": SCHEMA if rng.random() < 0.7 or self.format == "csv" else None}
            if self.format == "parquet" or options["schema"] is not None:
                options |= {"time": "ts", "lateness": rng.choice(["0s", "5s", "1h"])}
            if self.format == "parquet":
                options["schema"] = None
        source = ms.Files(self.at / "in", format=self.format, **options)
        stream = flow.source(source, name="in")
        timed = "time" in options
        for step in self.plan:
            stream = STEPS[step](flow, stream, rng, timed)
        memory = {"memory": ms.Memory()}
        stream.sink(memory["memory"], name="memory")
        stream.sink(ms.Jsonl(out / "jsonl"), name="jsonl")
        stream.sink(ms.Csv(out / "csv"), name="csv")
        if "loose" not in self.plan:
            stream.sink(ms.Parquet(out / "parquet"), name="parquet")
        return flow, memory


def _twice(row: dict[str, Any]) -> list[dict[str, Any]]:
    if row.get("id") is not None and row["id"] % 11 == 3:
        raise ValueError("refused")
    return [row, row] if row.get("k") == "b" else [row]


def _loose(row: dict[str, Any]) -> dict[str, Any]:
    """Columns that come and go, of values of many types."""
    made = {name: value for name, value in row.items() if value is not None}
    if row.get("id") is not None:
        made["odd"] = [1, 2.5, "t", None, [1, "a"], {"a": 1}, True][row["id"] % 7]
    return made


def _named(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "x": None if row["x"] is None else row["x"] * 2}


def _sums(key: Any, rows: list[dict[str, Any]], window: Any) -> Any:
    yield {"n": len(rows), "first": rows[0].get("id"), "last": rows[-1].get("id")}


def _count(event: Any, slate: dict[str, Any], ctx: Any) -> dict[str, Any]:
    slate["n"] = slate.get("n", 0) + 1
    slate["v"] = (event.value.get("v") or 0) + slate.get("v", 0)
    return {"k": event.key, "n": slate["n"], "v": slate["v"]}


def _window(stream: Any, window: Any, rng: random.Random) -> Any:
    every = {
        "n": ms.count(), "t": ms.sum("v"), "m": ms.mean("v"), "lo": ms.min("v"), "hi": ms.max("x"),
        "f": ms.first("s"), "l": ms.last("s"), "top": ms.top_k("s", 2), "d": ms.distinct("s"),
        "sd": ms.std("x"), "sx": ms.sum("x"), "all": ms.collect("id"), "q": ms.quantile("x", 0.5),
    }  # fmt: skip
    chosen = rng.sample(sorted(every), rng.randrange(1, 5))
    keyed = stream.key_by("k")
    over = keyed if window is None else keyed.window(window)
    return over.agg(**{name: every[name] for name in chosen})


def _timed(make: Any) -> Any:
    """A window over time where there are times, else the whole input."""
    return lambda flow, stream, rng, timed: _window(stream, make(rng) if timed else None, rng)


STEPS: dict[str, Any] = {
    "none": lambda f, s, r, t: s,
    "where": lambda f, s, r, t: s.where(
        r.choice(["v >= 0", "k <> 'a'", "x / v > 0", "length(s) < 9"])
    ),
    "with": lambda f, s, r, t: s.with_column(
        "w", r.choice(["v + 1", "v * v", "x / v", "upper(s)", "CAST(s AS BIGINT)", "abs(v)", "-v"])
    ),
    "map": lambda f, s, r, t: s.map(_named),
    "flat": lambda f, s, r, t: s.flat_map(_twice),
    "loose": lambda f, s, r, t: s.map(_loose),
    "upper": lambda f, s, r, t: s.select("upper(value) AS value"),
    "split": lambda f, s, r, t: s.flat_map(
        lambda row: [{"value": w} for w in row["value"].split()]
    ),
    "lengths": lambda f, s, r, t: s.key_by("value").agg(n=ms.count()),
    "agg": _timed(lambda r: ms.tumbling(r.choice(["7s", "1m"]))),
    "slide": _timed(lambda r: ms.sliding("20s", "5s")),
    "session": _timed(lambda r: ms.session("3s")),
    "rows": lambda f, s, r, t: _window(s, ms.count_window(5, r.choice([2, 5])), r),
    "reduce": lambda f, s, r, t: s.key_by("k").reduce(_sums),
    "update": lambda f, s, r, t: s.key_by("k").update(_count, name="count"),
    "join": lambda f, s, r, t: s.join(
        s.select("k", "v AS other").distinct("k", "other"), on="k", how=r.choice(["inner", "semi"])
    ),
    "changes": lambda f, s, r, t: s.changes(key="id").where("v > 2"),
    "group": lambda f, s, r, t: s.key_by("k").agg(n=ms.count(), t=ms.sum("v"), hi=ms.max("s")),
    "over": lambda f, s, r, t: s.changes(key="id").key_by("k").top(2, by="v"),
    "distinct": lambda f, s, r, t: s.distinct("k", "v"),
    "dedup": lambda f, s, r, t: s.dedup("k"),
    "top": lambda f, s, r, t: s.key_by("k").top(2, by=r.choice(["v", "x", "s"])),
}


@dataclass
class Outcome:
    """What one run of a case came to."""

    refused: str | None
    rows: list[dict[str, Any]]
    ledger: dict[str, dict[str, int]]
    dead: Counter[tuple[str, str]]
    out: Path


def _lasting(raw: str) -> str:
    """What a dead letter shows, without columns that only neighbours of a record have."""
    try:
        row = json.loads(raw)
    except ValueError:
        return raw
    if not isinstance(row, dict):
        return raw
    return repr(sorted((name, value) for name, value in row.items() if value is not None))


def run(case: Case, number: int, **options: Any) -> Outcome:
    """Run a case to its end; what is refused before the run is no failure."""
    out = case.at / f"out{number}"
    try:
        flow, memory = case.flow(out)
        ledger = run_in_process(flow, out / "ck", dead_letter_limit=1.0, **options)
    except ms.ConfigError as error:
        return Outcome(str(error), [], {}, Counter(), out)
    letters = letters_in(open_storage(out / "ck" / "dead"))
    dead = Counter((one["operator"], _lasting(one["raw"])) for one in letters)
    return Outcome(None, memory["memory"].rows, ledger, dead, out)


# -- what must hold ------------------------------------------------------------------------------

MANY: tuple[dict[str, Any], ...] = (
    {},
    {"batch_rows": 3, "batch_bytes": 400},
    {"batch_rows": 5, "batch_bytes": 900, "parallelism": 3},
)


def check(seed: int, at: Path) -> str:
    """Run one case in every way; gives what became of it."""
    case = Case(seed, at)
    told = f"seed {seed}: {'; '.join(case.words)}"
    runs = [run(case, number, **options) for number, options in enumerate(MANY)]
    first = runs[0]
    assert {one.refused for one in runs} == {first.refused}, told
    if first.refused is not None:
        return "refused"
    for one in runs:
        for step, account in one.ledger.items():
            assert account["offered"] == sum(account[way] for way in WAYS), (told, step, account)
        if case.lines is not None:
            assert one.ledger.get("in", {}).get("offered", 0) == case.lines, told
        _reads_back(case, one, told)
    for one in runs[1:]:
        for step, account in first.ledger.items():
            if step == "in" or not _by_batches(case):
                mine = {way: one.ledger.get(step, {}).get(way, 0) for way in ("offered", *WAYS)}
                wanted = {way: account[way] for way in ("offered", *WAYS)}
                assert mine == wanted, f"{told}\n{step}\n{wanted}\n{mine}"
        assert one.dead == first.dead or _by_batches(case), (
            f"{told}\n{first.dead - one.dead}\n{one.dead - first.dead}"
        )
        rows, others = (_integrated(case, outcome.rows) for outcome in (first, one))
        assert rows == others, f"{told}\n{rows - others}\n{others - rows}"
    return "dead letters" if first.dead else "clean"


def _by_batches(case: Case) -> bool:
    """Whether what is given, and taken back again, follows batches: then its sum is compared."""
    return case.plan[-1] in ("changes", "over", "top")


def _integrated(case: Case, rows: list[dict[str, Any]]) -> Counter[str]:
    if case.plan[-1] in ("over", "top"):  # rows without a name of their own
        return Counter()
    if case.plan[-1] != "changes":
        return Counter(map(_canonical, rows))
    table: dict[Any, str] = {}
    for row in rows:
        op, mine = row["op"], {name: value for name, value in row.items() if name != "op"}
        assert (row["id"] in table) == (op != "+"), row
        table.pop(row["id"], None)
        if op != "-":
            table[row["id"]] = _canonical(mine)
    return Counter(table.values())


def _canonical(row: dict[str, Any]) -> str:
    """A row as text: nothing and null are the same, and so are floats that differ in rounding."""
    return repr(
        sorted(
            (name, float(f"{value:.9g}") if isinstance(value, float) else value)
            for name, value in row.items()
            if value is not None and not (name in _BOUNDS and value > _ARRIVED)
        )
    )


_BOUNDS = ("window_start", "window_end")
_ARRIVED = datetime(2026, 1, 1, tzinfo=UTC)  # no such time is in the input: it is that of the run


def _reads_back(case: Case, one: Outcome, told: str) -> None:
    """What files of sinks hold is what was given to memory."""
    for kind in ("jsonl", "csv", "parquet"):
        account = one.ledger.get(kind)
        if account is None:
            continue
        found = _READ[kind](sorted((one.out / kind).glob("part-*")))
        assert len(found) == account["aggregated"], (told, kind)
        if account["dead"]:
            continue
        for name in {name for row in one.rows for name in row}:
            values = [row.get(name) for row in one.rows]
            if all(type(value) in _PLAIN[kind] for value in values):
                given = Counter(_shown(kind, value) for value in values)
                back = Counter(_shown(kind, row.get(name)) for row in found)
                assert back == given, f"{told}\n{kind} {name}\n{given - back}\n{back - given}"


def _shown(kind: str, value: Any) -> str:
    if kind == "csv":
        return "" if value is None else str(value)
    return repr(value)


_PLAIN: dict[str, set[type]] = {
    "jsonl": {int, str, bool, type(None)},
    "csv": {int, str, type(None)},
    "parquet": {int, str, bool, float, datetime, type(None)},
}


def _csv_rows(files: list[Path]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for file in files:
        with file.open(newline="", encoding="utf-8") as stream:
            found += list(csv.DictReader(stream))
    return found


_READ: dict[str, Any] = {
    "jsonl": lambda files: [
        json.loads(line) for file in files for line in file.read_bytes().split(b"\n") if line
    ],
    "csv": _csv_rows,
    "parquet": lambda files: [
        row for file in files for row in pq.ParquetFile(file).read().to_pylist()
    ],
}
