"""Event-time arithmetic: texts, numbers and wall-clock times to microseconds since the epoch, UTC.

Used by the column conversion (`columns.py`) right after a block of records was parsed, and by
format inference in the driver. Everything works on whole columns; a value that cannot be converted
is reported in a mask, never raised, so that one bad record does not disturb its neighbours.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millstream.ops.zones import MAX_MICROS, MIN_MICROS, localize

Ints: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]

MICROS = {"s": 1_000_000.0, "ms": 1_000.0, "us": 1.0, "ns": 0.001}  # microseconds in one unit
DAY = 86_400_000_000
_UTC_TYPE = pa.timestamp("us", "UTC")
_NAIVE_TYPE = pa.timestamp("us")
_DATE = r"^\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])"
_CLOCK = r"[T ]([01]\d|2[0-3])(:[0-5]\d(:[0-5]\d(\.\d{1,9})?)?)?"
_ZONED = _DATE + _CLOCK + r"(Z|[+-]\d\d(:?\d\d)?)$"
_NAIVE = _DATE + f"({_CLOCK})?$"
_FANOUT = 16  # cutting in 16 reaches a single value of 262,144 in five steps


def out_of_range(micros: Ints) -> Bools:
    """True where the instant lies outside the years 1 to 9999, which Python cannot represent."""
    return (micros < MIN_MICROS) | (micros > MAX_MICROS)


def cast_each(array: pa.Array, target: pa.DataType) -> tuple[pa.Array, Bools]:
    """Cast; a value that does not fit becomes null and is marked, found by repeated cutting."""
    try:
        return array.cast(target), np.zeros(len(array), bool)
    except pa.ArrowInvalid:
        if len(array) == 1:
            return pa.nulls(1, target), np.ones(1, bool)
    step = -(-len(array) // _FANOUT)
    parts = [cast_each(array.slice(i, step), target) for i in range(0, len(array), step)]
    return pa.concat_arrays([p[0] for p in parts]), np.concatenate([p[1] for p in parts])


def ints_of(array: pa.Array) -> Ints:
    """The 64-bit values of a timestamp or int64 array; nulls read as 0."""
    numbers = array if pa.types.is_int64(array.type) else array.cast(pa.int64())
    filled = numbers.fill_null(0) if numbers.null_count else numbers
    return np.asarray(filled.to_numpy(zero_copy_only=False), dtype=np.int64)


def nulls_of(array: pa.Array) -> Bools:
    if not array.null_count:
        return np.zeros(len(array), bool)
    return np.asarray(array.is_null().to_numpy(zero_copy_only=False), dtype=bool)


def floor_micros(values: Ints, unit: str) -> tuple[Ints, Bools]:
    """Integers in `unit` to microseconds, rounded down; the mask marks what is out of range."""
    if unit == "ns":
        micros = values // 1000
        return micros, out_of_range(micros)
    factor = int(MICROS[unit])
    bad = (values < MIN_MICROS // factor) | (values > MAX_MICROS // factor)
    return np.where(bad, 0, values) * factor, bad  # zeroed first: the product must not overflow


def float_micros(values: npt.NDArray[np.float64], unit: str) -> tuple[Ints, Bools]:
    """Floats in `unit` to the nearest microsecond; NaN, infinities and far years are marked."""
    with np.errstate(all="ignore"):
        scaled = np.rint(values * MICROS[unit])
        bad = ~((scaled >= MIN_MICROS) & (scaled <= MAX_MICROS))
    return np.where(bad, 0.0, scaled).astype(np.int64), bad


def iso_micros(texts: pa.Array, zone: str | None) -> tuple[Ints, Bools]:
    """ISO-8601 texts to microseconds UTC; the mask marks what is unreadable (nulls are not).

    Accepted: `YYYY-MM-DD`, then optionally `T` or a space, `hh[:mm[:ss[.f]]]` with up to nine
    fraction digits (cut to microseconds), then optionally `Z`, `+hh`, `+hhmm` or `+hh:mm`.
    Without an offset the text is wall-clock time in `zone`, and unreadable if there is none.
    """
    for target, finish in _whole_column_ways(zone):
        try:
            micros = finish(ints_of(texts.cast(target)))
        except pa.ArrowInvalid:
            continue
        return _checked(micros, nulls_of(texts), np.zeros(len(texts), bool))
    return _iso_mixed(texts, zone)


def _whole_column_ways(zone: str | None) -> list[tuple[pa.DataType, Callable[[Ints], Ints]]]:
    ways: list[tuple[pa.DataType, Callable[[Ints], Ints]]] = [(_UTC_TYPE, lambda wall: wall)]
    if zone is not None:
        ways.append((_NAIVE_TYPE, lambda wall: localize(wall, zone)))
    return ways


def _iso_mixed(texts: pa.Array, zone: str | None) -> tuple[Ints, Bools]:
    clean = pc.replace_substring_regex(
        pc.ascii_trim_whitespace(texts), r"(\.\d{6})\d{1,3}($|Z|[+-])", r"\1\2"
    )
    micros = np.zeros(len(texts), np.int64)
    bad = np.ones(len(texts), bool)
    # Matching first keeps plain rubbish away from the cast, which is slow for what it refuses.
    zoned = _true(pc.match_substring_regex(clean, _ZONED))
    array, bad[zoned] = cast_each(clean.filter(pa.array(zoned)), _UTC_TYPE)
    micros[zoned] = ints_of(array)
    if zone is not None:
        naive = _true(pc.match_substring_regex(clean, _NAIVE))
        array, bad[naive] = cast_each(clean.filter(pa.array(naive)), _NAIVE_TYPE)
        micros[naive] = localize(ints_of(array), zone)
    return _checked(micros, nulls_of(texts), bad)


def _true(mask: Any) -> Bools:
    return np.asarray(mask.fill_null(False).to_numpy(zero_copy_only=False), dtype=bool)


def _checked(micros: Ints, nulls: Bools, bad: Bools) -> tuple[Ints, Bools]:
    micros = np.where(nulls, 0, micros)  # a null localizes to garbage: it must not look far away
    return micros, (bad | out_of_range(micros)) & ~nulls


def is_naive_text(text: str) -> bool:
    """True when a text has the form of a timestamp, but no zone offset."""
    return re.match(_NAIVE, text.strip()) is not None
