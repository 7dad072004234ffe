"""Times that are not ISO-8601: by a format, against strptime, and by what a sample shows."""

from __future__ import annotations

import contextlib
import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream as ms
from millstream.errors import ConfigError
from millstream.io.columns import event_time
from millstream.io.formats import Format, infer_format, parse_schema
from millstream.io.readers import parse_lines
from millstream.io.timeformats import formats_of, time_format
from millstream.testing import run_in_process

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FORM = r"\A[0-9]{1,2}/[0-9]{1,2}/[0-9]{4} [0-9]{1,2}:[0-9]{2}\Z"  # strptime takes other digits
FORMATS = [
    *("%m/%d/%Y %H:%M", "%d.%m.%y %H:%M:%S", "%Y%m%d", "%d-%b-%Y %I:%M %p", "%Y/%m/%d %H:%M:%S.%f"),
    *("%d/%b/%Y:%H:%M:%S %z", "%B %d, %Y", "%a %d %b %Y %H:%M:%S"),
]


def micros(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(microseconds=1)


@settings(max_examples=60)
@given(
    st.lists(st.datetimes(datetime(1970, 1, 1), datetime(2068, 1, 1)), min_size=1, max_size=5),
    st.sampled_from(FORMATS),
)
def test_as_strptime_reads_it(moments: list[datetime], text: str) -> None:
    texts = [moment.replace(tzinfo=UTC).strftime(text) for moment in moments]
    found, bad = time_format(text).micros(pa.array([*texts, None, "soon"]), "UTC")
    read = [datetime.strptime(one, text) for one in texts]
    wanted = [micros(one if one.tzinfo else one.replace(tzinfo=UTC)) for one in read]
    assert found.tolist()[:-2] == wanted
    assert bad.tolist() == [False] * (len(texts) + 1) + [True]


@settings(max_examples=60)
@given(st.text("0123456789/ :", max_size=16) | st.from_regex(FORM))
def test_what_strptime_refuses_is_refused(text: str) -> None:
    _, (bad,) = time_format("%m/%d/%Y %H:%M").micros(pa.array([text]), "UTC")
    try:
        datetime.strptime(text.strip(), "%m/%d/%Y %H:%M")
    except ValueError:
        assert bad
    else:
        assert not bad


def test_a_zone_holds_for_them(tmp_path: Path) -> None:
    times = ["07/01/2024 08:15", "12/31/2024 23:59", "02/30/2024 08:15", ""]
    fmt = Format(
        "csv",
        parse_schema("at timestamp, n int"),
        "at",
        zone="America/New_York",
        time_format="%m/%d/%Y %H:%M",
    )
    data = "".join(f"{one},{n}\n" for n, one in enumerate(times)).encode()
    parsed = parse_lines(fmt, data, 0, first_line_is_header=False)
    zone = ZoneInfo("America/New_York")
    wanted = [datetime(2024, 7, 1, 8, 15, tzinfo=zone), datetime(2024, 12, 31, 23, 59, tzinfo=zone)]
    assert parsed.ts is not None and parsed.ts.tolist() == [micros(one) for one in wanted]
    assert parsed.table["at"].to_pylist() == wanted
    assert ["02/30/2024" in d.error or "is null" in d.error for d in parsed.dead] == [True, True]


def test_a_flow_windows_by_them(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("at,n\n1/2/2024 08:15,1\n1/2/2024 08:59,2\n1/13/2024 09:00,3\n")
    out = ms.Memory()
    flow = ms.Flow("odd")
    source = ms.Files(tmp_path / "a.csv", time="at", time_format="%m/%d/%Y %H:%M", zone="UTC")
    flow.source(source).key_by().window(ms.tumbling("1h")).agg(n=ms.sum("n")).sink(out)
    run_in_process(flow, tmp_path / "ck")
    assert sorted((row["window_start"].isoformat(), row["n"]) for row in out.rows) == [
        ("2024-01-02T08:00:00+00:00", 3),
        ("2024-01-13T09:00:00+00:00", 3),
    ]


@pytest.mark.parametrize("unit", ["ms", "milliseconds"])
def test_numbers_by_the_name_of_their_unit(tmp_path: Path, unit: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text("at\n1704183300000\n")
    fmt = infer_format("csv", [str(path)], time="at", time_unit=unit)
    parsed = parse_lines(fmt, b"1704183300000\n", 0, first_line_is_header=False)
    assert parsed.ts is not None
    assert parsed.ts.tolist() == [micros(datetime(2024, 1, 2, 8, 15, tzinfo=UTC))]
    fmt = infer_format("csv", [str(path)], time="at")
    parsed = parse_lines(fmt, b"1704183300000\n", 0, first_line_is_header=False)
    assert "in time_unit='s'" in parsed.dead[0].error


@pytest.mark.parametrize(
    ("text", "options", "parts"),
    [
        ("12/31/2024 08:15", {}, ["'12/31/2024 08:15'", 'give time_format="%m/%d/%Y %H:%M"']),
        ("1/2/2024", {}, ['"%m/%d/%Y" or time_format="%d/%m/%Y"']),
        ("19-Sep-03", {"time_format": "%d.%m.%Y", "zone": "UTC"}, ['give time_format="%d-%b-%y"']),
        ("1/2/2024", {"time_format": "%m/%d/%Y"}, ['add zone="UTC"']),
        ("1/2/2024", {"time_format": "%m/%d"}, ["the year, the month and the day"]),
        ("1/2/2024", {"time_format": "%m/%d/%Y %Q"}, ["'%Q' is not known", "%H"]),
        ("1/2/2024", {"time_format": "%m/%d/%Y %I"}, ["%I with %p"]),
        ("1/2/2024", {"time_format": "%m/%d/%Y", "schema": "at bigint"}, ["is for texts"]),
    ],
)
def test_what_is_refused_says_what_to_give(
    tmp_path: Path, text: str, options: dict[str, Any], parts: list[str]
) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"at\n{text}\n")
    with pytest.raises(ConfigError) as caught:
        infer_format("csv", [str(path)], time="at", **options)
    for part in parts:
        assert part in str(caught.value)


def test_texts_that_are_no_time_have_no_format() -> None:
    assert formats_of(["hello"]) == []
    assert formats_of(["03/14/2024", "04/15/2024"]) == ["%m/%d/%Y"]


# -- times inside of longer texts -----------------------------------------------------------------

LOG = [
    '10.0.0.1 - - [01/Mar/2026:12:00:05 +0100] "GET / HTTP/1.1" 200 1',
    "no time here",
    '10.0.0.1 - - [31/Feb/2026:12:00:05 +0100] "GET / HTTP/1.1" 200 1',
    '10.0.0.2 - - [01/Mar/2026:11:00:06 +0000] "GET /a] HTTP/1.1" 200 1',
]


def test_times_of_an_access_log(tmp_path: Path) -> None:
    (tmp_path / "access.log").write_text("\n".join(LOG) + "\n")  # a sample is looked at
    fmt = infer_format(
        "text",
        [str(tmp_path / "access.log")],
        time="value",
        time_pattern=r"\[([^]]+)\]",
        time_format="%d/%b/%Y:%H:%M:%S %z",
    )
    parsed = parse_lines(fmt, "\n".join(LOG).encode(), 0, first_line_is_header=False)
    moments = [datetime(2026, 3, 1, 11, 0, second, tzinfo=UTC) for second in (5, 6)]
    assert parsed.ts is not None
    assert parsed.ts.tolist() == [micros(one) for one in moments]
    assert parsed.table.column("value").to_pylist() == [LOG[0], LOG[3]]
    assert [dead.raw for dead in parsed.dead] == LOG[1:3]
    assert "finds nothing in it" in parsed.dead[0].error


@pytest.mark.parametrize(
    ("pattern", "lines", "expected"),
    [
        ("at=([^ ]+)", ["x at=1970-01-01T00:00:01Z y", "at=2.5"], [1_000_000, 2_500_000]),
        (r"^\d+", ["17 x", "4"], [17_000_000, 4_000_000]),
        (r"[(\]](?P<when>[0-9:TZ-]+)", ["(1970-01-01T00:00:03Z)"], [3_000_000]),
    ],
)
def test_patterns(pattern: str, lines: list[str], expected: list[int]) -> None:
    fmt = infer_format("text", [], time="value", time_pattern=pattern)
    parsed = parse_lines(fmt, "\n".join(lines).encode(), 0, first_line_is_header=False)
    assert parsed.ts is not None
    assert parsed.ts.tolist() == expected


@pytest.mark.parametrize(
    ("pattern", "told"),
    [("[", "no regular expression"), ("(a)(b)", "with 2 groups"), ("(?<=x)a", "looking around")],
)
def test_patterns_that_cannot_be_used(pattern: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        infer_format("text", [], time="value", time_pattern=pattern)


@pytest.mark.parametrize(
    ("pattern", "told"),
    [("at=(.*)", "'at=(.*)' finds nothing"), ("^[0-9.]+", "")],
)
def test_a_sample_shows_what_a_pattern_finds(tmp_path: Path, pattern: str, told: str) -> None:
    (tmp_path / "some.log").write_text("17.5 [05/Mar/26] x\n18 [06/Mar/26] y\n")
    found = (
        contextlib.nullcontext() if not told else pytest.raises(ConfigError, match=re.escape(told))
    )
    with found:
        infer_format("text", [str(tmp_path / "some.log")], time="value", time_pattern=pattern)


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_numbers_within_texts_are_as_exact_as_those_of_a_column(unit: str) -> None:
    each = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    numbers = [1_700_000_039 * each + each - 1, -each - 1, 0, 2**63 - 1]
    column = Format("json", parse_schema("at bigint"), "at", unit)
    wanted, far = event_time(column, pa.array(numbers))
    within = Format("text", parse_schema("at string"), "at", unit, time_pattern="at=([^ ]+)")
    texts = [f"x at={number} y" for number in [*numbers, 2**63]]
    found, bad = event_time(within, pa.array(texts))
    assert list(bad) == [*far, len(numbers)]
    good = [row for row in range(len(numbers)) if row not in far]
    assert found[good].tolist() == wanted[good].tolist()


def test_unsigned_numbers_and_decimals_are_times(tmp_path: Path) -> None:
    numbers = [1_700_000_039_999_999_999, 2**64 - 1]
    for kind, unit, values in [
        (pa.uint64(), "ns", numbers),
        (pa.decimal128(20, 6), "s", [Decimal("1700000039.999999")]),
    ]:
        pq.write_table(pa.table({"at": pa.array(values, kind)}), tmp_path / "a.parquet")
        source = ms.Files(tmp_path / "a.parquet", time="at", time_unit=unit)
        windows = ms.Flow("t").source(source).key_by().window(ms.tumbling("10s"))
        found = windows.agg(n=ms.count()).head()
        assert [(row["window_start"].second, row["n"]) for row in found] == [(50, 1)]
        assert found.dead == len(values) - 1
