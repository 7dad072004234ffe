"""Times: texts, numbers and wall clocks to microseconds UTC."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.io.formats import Format, parse_schema
from millstream.io.readers import parse_lines
from millstream.io.timestamps import iso_micros
from millstream.ops.zones import localize

EPOCH = datetime(1970, 1, 1)


def micros(moment: datetime) -> int:
    return (moment - EPOCH.replace(tzinfo=moment.tzinfo)) // timedelta(microseconds=1)


@pytest.mark.parametrize(
    ("text", "zone", "expected"),
    [
        ("1970-01-01T00:00:01Z", None, 1_000_000),
        ("1970-01-01 00:00:01.5Z", None, 1_500_000),
        ("1970-01-01T00:00:00.123456789Z", None, 123_456),
        ("1969-12-31T23:59:59.9999999Z", None, -1),
        ("1970-01-01T01:00:00+01:00", None, 0),
        ("1970-01-01T01:00:00+0100", None, 0),
        ("1970-01-01T01:00+01", None, 0),
        (" 1970-01-01T00:00Z ", None, 0),
        ("1970-01-02", "UTC", 86_400_000_000),
        ("1970-01-01T00:00:00.1234567", "UTC", 123_456),
        ("2024-07-01T12:00:00", "Europe/Paris", micros(datetime(2024, 7, 1, 10))),
        ("2024-01-01T12:00:00", "Europe/Paris", micros(datetime(2024, 1, 1, 11))),
        ("2024-10-27T02:30:00", "Europe/Paris", micros(datetime(2024, 10, 27, 0, 30))),
        ("2024-03-31T02:30:00", "Europe/Paris", micros(datetime(2024, 3, 31, 1))),
        ("2060-07-01T12:00:00", "Europe/Paris", micros(datetime(2060, 7, 1, 10))),
        ("2024-07-01T12:00:00Z", "Europe/Paris", micros(datetime(2024, 7, 1, 12))),
        ("9999-12-31T23:59:59.999999Z", None, 253_402_300_799_999_999),
        ("0001-01-01T00:00:00Z", None, -62_135_596_800_000_000),
    ],
)
def test_texts(text: str, zone: str | None, expected: int) -> None:
    for texts in ([text], [text, "rubbish", None]):
        values, bad = iso_micros(pa.array(texts, pa.string()), zone)
        assert values[0] == expected
        assert bad.tolist() == [False, True, False][: len(texts)]


@pytest.mark.parametrize(
    ("text", "zone"),
    [
        ("2024-01-01T10:00:00", None), ("2024-01-01", None), ("", "UTC"), ("2024-1-1", "UTC"),
        ("2024-01-01T25:00", "UTC"), ("2023-02-29", "UTC"), ("0000-01-01", "UTC"),
        ("9999-12-31T23:59:59-05:00", None), ("9999-12-31T23:00:00", "America/New_York"),
        ("0001-01-01", "Asia/Tokyo"), ("2024-01-01T10:00:00 Z", "UTC"), ("20240101", "UTC"),
        ("2024-01-01T10:00:00.1234567890Z", "UTC"), ("12024-01-01", "UTC"),
    ],
)  # fmt: skip
def test_unreadable(text: str, zone: str | None) -> None:
    assert iso_micros(pa.array([text]), zone)[1].tolist() == [True]


@settings(max_examples=100)
@given(
    st.lists(st.datetimes(datetime(1850, 1, 1), datetime(2150, 1, 1)), min_size=1, max_size=20),
    st.sampled_from(["Europe/Paris", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata"]),
)
def test_localize_agrees_with_zoneinfo(walls: list[datetime], zone: str) -> None:
    tz = ZoneInfo(zone)
    got = localize(np.array([micros(w) for w in walls]), zone)
    for wall, value in zip(walls, got.tolist(), strict=True):
        instant = wall.replace(tzinfo=tz, fold=0).astimezone(UTC)
        if instant.astimezone(tz).replace(tzinfo=None) == wall:
            assert value == micros(instant)
        else:  # a gap: both sides of it are less than a day away
            late = wall.replace(tzinfo=tz, fold=1).astimezone(UTC)
            assert micros(min(late, instant)) <= value <= micros(max(late, instant))


def test_gap_ends_exactly() -> None:
    walls = [datetime(2024, 3, 31, 1, 59, 59), datetime(2024, 3, 31, 2), datetime(2024, 3, 31, 3)]
    got = localize(np.array([micros(w) for w in walls]), "Europe/Paris")
    shift = micros(datetime(2024, 3, 31, 1))
    assert got.tolist() == [shift - 1_000_000, shift, shift]


@pytest.mark.parametrize(
    ("kind", "unit", "text", "expected"),
    [
        ("bigint", "s", "5", 5_000_000), ("bigint", "ms", "-5", -5_000), ("bigint", "us", "5", 5),
        ("bigint", "ns", "-1", -1), ("int", "s", "7", 7_000_000), ("double", "s", "1.5", 1_500_000),
        ("double", "ms", "0.001", 1), ("bigint", "s", "9223372036854775807", None),
        ("bigint", "s", "253402300800", None), ("bigint", "ms", "-62135596800001", None),
        ("double", "s", "nan", None), ("double", "s", "inf", None), ("double", "s", "1e300", None),
        ("bigint", "s", "", None), ("string", "s", "1970-01-01T00:00:01Z", 1_000_000),
        ("string", "s", "", None), ("date", "s", "1970-01-02", 86_400_000_000),
        ("timestamp", "s", "1970-01-02", 86_400_000_000),
    ],
)  # fmt: skip
def test_time_column(kind: str, unit: str, text: str, expected: int | None) -> None:
    schema = parse_schema(f"t {kind}, x int")
    fmt = Format("csv", schema, time="t", time_unit=unit, zone="UTC")
    parsed = parse_lines(fmt, f"{text},1\n".encode(), 0, first_line_is_header=False)
    assert parsed.ts is not None and parsed.ts.dtype == np.int64
    assert parsed.ts.tolist() == ([] if expected is None else [expected])
    assert len(parsed.dead) == (expected is None)
