"""Malformed records among good ones: the answer is the same, and each is accounted for."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.io.records import MAX_RAW, raw_text
from millstream.testing import run_in_process

SCHEMA = "id bigint, key string, value bigint, ts timestamp"
WAYS = ("aggregated", "dead", "late", "diverted", "dropped")
T = b'"ts":"2024-01-01T00:00:00Z"'
BAD_JSON = {
    "array": b'[1, "#"]',
    "string": b'"#"',
    "word": b"hello #",
    "cut off": b'{"id": 1, "key": "#", ' + T + b', "value":',
    "cut off in a string": b'{"id": 1, ' + T + b', "key": "#',
    "two objects": b"{" + T + b', "key": "#"}{' + T + b"}",
    "trailing comma": b"{" + T + b', "key": "#",}',
    "single quotes": b"{'key': '#'}",
    "text for a number": b"{" + T + b', "key": "#", "value": "many"}',
    "fraction for a whole number": b"{" + T + b', "key": "#", "value": 1.5}',
    "too large a number": b"{" + T + b', "key": "#", "value": 99999999999999999999}',
    "object for a string": b"{" + T + b', "key": {"is": "#"}}',
    "no time": b'{"id": 1, "key": "#", "value": 1}',
    "null time": b'{"key": "#", "ts": null}',
    "not a time": b'{"key": "#", "ts": "yesterday"}',
    "not UTF-8": b"{" + T + b', "key": "#\xff\xfe"}',
    "too deep": b"{" + T + b', "key": "#", "more": ' + b"[" * 300 + b"]" * 300 + b"}",
}
BAD_CSV = {
    "too few fields": b"1,#",
    "too many fields": b"1,#,2,2024-01-01T00:00:00Z,x",
    "open quote": b'1,"#,2,2024-01-01T00:00:00Z',
    "text for a number": b"one,#,2,2024-01-01T00:00:00Z",
    "fraction for a whole number": b"1,#,2.5,2024-01-01T00:00:00Z",
    "too large a number": b"1,#,99999999999999999999,2024-01-01T00:00:00Z",
    "no time": b"1,#,2,",
    "not a time": b"1,#,2,2024-13-45T00:00:00Z",
    "not UTF-8": b"1,#\xff\xfe,2,2024-01-01T00:00:00Z",
}


def good_lines(count: int, seed: int) -> dict[str, list[bytes]]:
    """The same kind of records as JSON and as CSV, in the order of their time."""
    random_ = random.Random(seed)
    lines: dict[str, list[bytes]] = {"jsonl": [], "csv": []}
    for i in range(count):
        ts = f"2024-01-01T00:{i * 60 // count:02d}:{random_.randrange(60):02d}Z"
        key, value = f"k{random_.randrange(9)}", random_.randrange(-50, 50)
        row = {"id": i, "key": key, "value": value, "ts": ts}
        lines["jsonl" if i % 2 else "csv"].append(
            json.dumps(row).encode() if i % 2 else f"{i},{key},{value},{ts}".encode()
        )
    return lines


def bad_lines(count: int) -> dict[str, list[bytes]]:
    """Malformed lines of all kinds in turn, each with a number of its own."""
    return {
        name: [
            list(kinds.values())[i % len(kinds)].replace(b"#", b"bad-%d" % i)
            for i in range(count // 2)
        ]
        for name, kinds in (("jsonl", BAD_JSON), ("csv", BAD_CSV))
    }


def write(path: Path, good: dict[str, list[bytes]], bad: dict[str, list[bytes]]) -> None:
    """Three files of each format, the malformed lines strewn among the good ones."""
    path.mkdir(parents=True)
    random_ = random.Random(3)
    for name, lines in good.items():
        slots = sorted(random_.choices(range(len(lines) + 1), k=len(bad.get(name, []))))
        mixed: list[bytes] = []
        done = 0
        for slot, line in zip(slots, bad.get(name, []), strict=False):
            mixed += [*lines[done:slot], line]
            done = slot
        mixed += lines[done:]
        size = -(-len(mixed) // 3)
        for number in range(3):
            part = mixed[number * size : (number + 1) * size]
            head = [b"id,key,value,ts"] if name == "csv" else []
            (path / f"{number}.{name}").write_bytes(b"\n".join([*head, *part]) + b"\n")


def build(path: Path, out: Path, fn: Any = None) -> ms.Flow:
    flow = ms.Flow("malformed")
    options = {"schema": SCHEMA, "time": "ts", "lateness": "2m"}
    lines = flow.source(ms.Files(path / "*.csv", **options), name="csv")
    objects = flow.source(ms.Files(path / "*.jsonl", **options), name="json")
    rows = lines.union(objects)
    if fn is not None:
        rows = rows.map(fn, schema=SCHEMA)
    windowed = rows.key_by("key").window(ms.sliding("5m", "1m"))
    windowed.agg(n=ms.count(), total=ms.sum("value"), ids=ms.collect("id")).sink(ms.Jsonl(out))
    return flow


def answer(out: Path) -> Counter[bytes]:
    return Counter(line for path in out.glob("part-*") for line in path.read_bytes().splitlines())


def letters(checkpoint: Path, pattern: str = "[0-9]*.jsonl") -> list[dict[str, Any]]:
    paths = sorted((checkpoint / "dead").glob(pattern))
    return [json.loads(line) for path in paths for line in path.read_bytes().splitlines()]


def run(path: Path, checkpoint: Path, fn: Any = None, **options: Any) -> Any:
    out = checkpoint.with_suffix(".out")
    options = {"parallelism": 2, "batch_rows": 500, **options}
    ledger = run_in_process(build(path, out, fn), checkpoint, **options)
    for step, account in ledger.items():
        assert account["offered"] == sum(account.get(way, 0) for way in WAYS), step
    return answer(out), ledger


def raises_on_some(row: dict[str, Any]) -> dict[str, Any]:
    if row["id"] % 100 == 7:
        raise LookupError(f"nothing known of {row['id']}")
    return row


@pytest.mark.parametrize("raising", [False, True], ids=["parse", "parse and map"])
def test_ten_thousand_malformed_records_change_nothing(tmp_path: Path, raising: bool) -> None:
    good, bad = good_lines(12_000, 1), bad_lines(10_000)
    assert len(BAD_JSON) + len(BAD_CSV) >= 12
    write(tmp_path / "clean", good, {})
    write(tmp_path / "mixed", good, bad)
    fn = raises_on_some if raising else None
    clean, before = run(tmp_path / "clean", tmp_path / "ck1", fn, dead_letter_limit=1)
    mixed, ledger = run(tmp_path / "mixed", tmp_path / "ck2", fn, dead_letter_limit=1)
    assert clean == mixed
    assert ledger["csv"]["dead"] == ledger["json"]["dead"] == 5_000
    for name in ("csv", "json"):
        assert ledger[name]["aggregated"] == before[name]["aggregated"] == 6_000
    assert ledger["agg"] == before["agg"]
    found = letters(tmp_path / "ck2")
    by_operator = Counter(letter["operator"] for letter in found)
    wanted = {"csv": 5_000, "json": 5_000}
    if raising:
        wanted["map"] = ledger["map"]["dead"]
        assert wanted["map"] == 120
    assert by_operator == wanted
    malformed = [raw_text(line[:MAX_RAW]) for lines in bad.values() for line in lines]
    raws = [letter["raw"] for letter in found if letter["operator"] != "map"]
    assert Counter(raws) == Counter(malformed)
    for letter in found:
        check_letter(letter)


def check_letter(letter: dict[str, Any]) -> None:
    """File and offset lead to the very line."""
    assert letter["error"]
    assert letter["source"] in ("csv", "json")
    with open(letter["file"], "rb") as lines:
        lines.seek(letter["offset"])
        line = lines.readline().rstrip(b"\n")
    if letter["operator"] == "map":
        assert letter["error"].startswith("LookupError: nothing known of")
        number = json.loads(letter["raw"])["id"]
        assert number == (json.loads(line)["id"] if line[:1] == b"{" else int(line.split(b",")[0]))
    else:
        assert raw_text(line) == letter["raw"]


def test_above_the_limit_the_run_stops_and_commits_nothing(tmp_path: Path) -> None:
    good = good_lines(6_000, 2)
    write(tmp_path / "clean", good, {})
    clean, _ = run(tmp_path / "clean", tmp_path / "ck1")
    path, checkpoint = tmp_path / "data", tmp_path / "ck2"
    write(path, good, {})
    for name, lines in bad_lines(600).items():  # all of them in the last files
        with open(path / f"2.{name}", "ab") as out:
            out.write(b"\n".join(lines) + b"\n")
    with pytest.raises(ms.RunError, match=r"more than the limit of 1\.0%") as caught:
        run(path, checkpoint)
    manifests = sorted((checkpoint / "manifests").iterdir())
    rejected = len(manifests)
    assert rejected >= 2, "there should be good batches before"
    assert f"Batch {rejected} was not committed" in str(caught.value)
    where = checkpoint / "dead" / f"rejected-{rejected:08d}.jsonl"
    assert str(where) in str(caught.value)
    assert "raise dead_letter_limit" in str(caught.value)
    inspected = letters(checkpoint, "rejected-*.jsonl")
    assert 0 < len(inspected) <= 600
    for letter in inspected:
        check_letter(letter)
    with pytest.raises(ms.RunError, match="more than the limit"):  # nothing has changed
        run(path, checkpoint)
    assert sorted((checkpoint / "manifests").iterdir()) == manifests
    found, ledger = run(path, checkpoint, dead_letter_limit=0.5)
    assert found == clean
    assert ledger["csv"]["dead"] == ledger["json"]["dead"] == 300
    assert not list((checkpoint / "dead").glob("rejected-*"))
    assert len(letters(checkpoint)) == 600


def test_a_few_bad_records_are_below_the_limit(tmp_path: Path) -> None:
    good = good_lines(6_000, 4)
    write(tmp_path / "clean", good, {})
    write(tmp_path / "mixed", good, bad_lines(30))
    clean, _ = run(tmp_path / "clean", tmp_path / "ck1")
    mixed, ledger = run(tmp_path / "mixed", tmp_path / "ck2")
    assert clean == mixed
    assert ledger["csv"]["dead"] + ledger["json"]["dead"] == 30
