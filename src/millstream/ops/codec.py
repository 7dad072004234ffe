"""Python values at rest: MessagePack, never pickle.

States of users' aggregates and keys and values of MapReduce jobs pass through here on their way to
a block or a segment. Tuples come back as lists, except in keys and sets, where they must be
hashable.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.errors import RunError

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder()
pack, unpack = _encoder.encode, _decoder.decode  # for plain values, where every call counts
_IMMUTABLE = (int, float, str, bytes, bool, type(None))
_PLAIN_TYPES = frozenset((int, float, str, bytes, bool, type(None)))
_all_plain = _PLAIN_TYPES.issuperset
_NAME_TYPES = _PLAIN_TYPES | {tuple, datetime}  # that may be names in a dict as they are
_MOST_KEYS = 10_000
_NANOSECONDS = (np.dtype("M8[ns]"), np.dtype("m8[ns]"))
MIXED_NAME = "millstream.mixed"  # of the type of columns of packed values


def encode(value: Any) -> bytes:
    """A value as bytes; the error says what can be kept and what cannot."""
    try:
        try:
            return pack(value if type(value) in _PLAIN_TYPES else portable(value))
        except OverflowError:  # a whole number of more than 64 bits, somewhere in it
            return pack(portable(value, large=True))
    except (TypeError, ValueError, RecursionError) as error:
        raise RunError(
            f"a value of type {type(value).__name__} cannot be stored ({error}); use numbers, "
            "strings, bytes, booleans, None, dates, times, and lists, tuples or dicts of them"
        ) from error


def encode_key(value: Any) -> bytes:
    """The key of a slate as bytes: dates, and what else people write as text, as text."""
    try:
        return _encoder.encode(value.tolist() if type(value).__module__ == "numpy" else value)
    except OverflowError as error:
        raise RunError(
            f"a key of type {type(value).__name__} cannot be stored: whole numbers in keys of "
            "slates have at most 64 bits; use their text"
        ) from error
    except TypeError as error:
        raise RunError(
            f"a key of type {type(value).__name__} cannot be stored ({error}); use numbers, "
            "strings, bytes, booleans, None, datetimes, and tuples of them"
        ) from error


def portable(value: Any, large: bool = False) -> Any:
    """A value with extensions in place of what MessagePack does not have.

    `large`: also of whole numbers of more than 64 bits, which are rare and looked for only then.
    """
    kind = type(value)
    if kind in _PLAIN_TYPES:
        if large and kind is int and not _SMALLEST <= value <= _LARGEST:
            return _extended(6, value)
        return value
    if kind in (list, tuple):
        if not large and _all_plain(map(type, value)):
            return value
        return [portable(one, large) for one in value]
    if kind is dict:
        if not large and _all_plain(map(type, value.values())) and _all_plain(map(type, value)):
            return value
        return _portable_dict(value, large)
    if kind in _EXTENDED:
        return _extended(_EXTENDED[kind], value)
    if kind in _SETS:  # in one order, as that of a set is another one in every process
        return msgspec.msgpack.Ext(_SETS[kind], pack(sorted(map(encode, value))))
    if kind is datetime and value.tzinfo is None:
        return _extended(3, value)
    plain = as_plain(value)
    return value if type(plain) is kind else portable(plain, large)


def as_plain(value: Any) -> Any:
    """A value of another library, or of a class made of a plain one, as the plain value it is."""
    kind = type(value)
    if kind in _PLAIN_TYPES:
        return value
    if kind.__module__ == "numpy":
        nanoseconds = getattr(value, "dtype", None) in _NANOSECONDS  # which would be numbers
        return (value.astype(f"{value.dtype.kind}8[us]") if nanoseconds else value).tolist()
    if isinstance(value, Enum):
        return as_plain(value.value)
    if isinstance(value, UUID):
        return str(value)
    if kind.__module__.startswith("pandas."):
        name = kind.__name__
        if name in ("NaTType", "NAType"):
            return None
        if name in ("Timestamp", "Timedelta"):
            micros = value.as_unit("us")
            return micros.to_pydatetime() if name == "Timestamp" else micros.to_pytimedelta()
    if isinstance(value, pa.Scalar):
        return as_plain(value.as_py())
    for base, plainly in _BASES.items():
        if isinstance(value, base):
            return value if kind is base and base not in _BUFFERS else plainly(value)
    return value


def _clock(value: datetime) -> datetime:
    day, of_day = (value.year, value.month, value.day), (value.hour, value.minute, value.second)
    return datetime(*day, *of_day, value.microsecond, value.tzinfo, fold=value.fold)


_BUFFERS = (bytearray, memoryview)
_BASES: dict[type, Callable[[Any], Any]] = {
    str: str.__str__,
    int: int.__int__,
    float: float.__float__,
    bytes: bytes,
    dict: dict,
    list: list,
    tuple: list,
    datetime: _clock,
    bytearray: bytes,
    memoryview: bytes,
}


def _portable_dict(value: dict[Any, Any], large: bool) -> Any:
    """A dict; as its pairs if it has a name that is an extension, or has one in it."""
    names = [portable(name, large) for name in value]
    values = [portable(one, large) for one in value.values()]
    if _NAME_TYPES.issuperset(map(type, names)):
        return dict(zip(names, values, strict=True))
    return msgspec.msgpack.Ext(_PAIRS, pack(list(zip(names, values, strict=True))))


def check_plain(value: Any) -> None:
    """Refuse what would come back as something else, such as a set or a date.

    A set would even come back in an order that is different in every process.
    """
    if type(value) is dict:  # most slates are done here, without a call for every value
        for name, one in value.items():
            if type(one) not in _PLAIN_TYPES or type(name) not in _PLAIN_TYPES:
                break
        else:
            return
    _check_all((value,))


def _check_all(values: Iterable[Any]) -> None:
    if _all_plain(map(type, values)):
        return
    for value in values:
        if isinstance(value, dict):
            _check_all(value.values())
            if not all(isinstance(name, _IMMUTABLE) for name in value):
                raise TypeError("a dict whose keys are not strings or numbers cannot be stored")
        elif isinstance(value, (list, tuple)):
            _check_all(value)
        elif isinstance(value, datetime):
            if value.tzinfo is None:
                raise TypeError(f"a datetime without a time zone cannot be stored: {value!r}")
        elif not isinstance(value, _IMMUTABLE) or isinstance(value, Enum):
            raise TypeError(
                f"a {type(value).__name__} cannot be stored: it would come back as something else; "
                "use numbers, strings, bytes, booleans, None, datetimes with a time zone, and "
                "lists or dicts of them"
            )


def decode(data: bytes) -> Any:
    """The inverse of `encode`."""
    return _row_decoder.decode(data)


def decode_key(data: bytes) -> Any:
    """Like `decode`, with every list as a tuple, so that the key can be hashed."""
    return as_key(_row_decoder.decode(data))


class Keys(dict[bytes, Any]):
    """Packed keys as users know them, each unpacked once while there are not too many."""

    def __missing__(self, packed: bytes) -> Any:
        key = decode_key(packed)
        if type(key) in _PLAIN_TYPES and len(self) < _MOST_KEYS:  # others might be changed
            self[packed] = key
        return key


def as_key(value: Any) -> Any:
    """A key as users see it: lists become tuples."""
    if isinstance(value, (list, tuple)):
        return tuple(as_key(v) for v in value)
    return value


def fresh(value: Any) -> Any:
    """A copy a user's function may change freely."""
    kind = type(value)
    if kind in _PLAIN_TYPES:
        return value
    if kind is list and _all_plain(map(type, value)):
        return value.copy()
    if kind is dict and _all_plain(map(type, value.values())) and _all_plain(map(type, value)):
        return value.copy()
    return value if isinstance(value, _IMMUTABLE) else decode(encode(value))


# -- extensions and whole records -----------------------------------------------------------------
# MessagePack has no dates, times of day, durations, decimals, sets, times without a zone or whole
# numbers of more than 64 bits, nor have dicts such names: these travel as extensions, so that one
# gets what another gave.

_EXACT = 4 * 10**15  # microseconds that as float seconds round to themselves: until 2096

_KINDS: dict[int, tuple[Callable[[Any], str], Callable[[str], Any]]] = {
    1: (date.isoformat, date.fromisoformat),
    2: (time.isoformat, time.fromisoformat),
    3: (datetime.isoformat, datetime.fromisoformat),
    4: (str, Decimal),
    5: (
        lambda value: str(value // timedelta(microseconds=1)),
        lambda text: timedelta(microseconds=int(text)),
    ),
    6: (hex, lambda text: int(text, 16)),  # decimal digits of a number would be limited
}
_EXTENDED: dict[type, int] = {date: 1, time: 2, Decimal: 4, timedelta: 5}
_SETS: dict[type, int] = {set: 7, frozenset: 8}
_PAIRS = 9  # a dict with names that MessagePack does not have
_SMALLEST, _LARGEST = -(2**63), 2**64 - 1


def python_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """A column as Python values; like `to_pylist`, but many times as fast for times."""
    kind = column.type
    if isinstance(kind, pa.ExtensionType) and kind.extension_name == MIXED_NAME:
        return [None if v is None else decode(v) for v in _storage(column).to_pylist()]
    if not pa.types.is_timestamp(kind) or kind.tz is None or kind.unit == "ns" or not len(column):
        return list(column.to_pylist())
    micros = pc.cast(pc.cast(column, pa.timestamp("us", kind.tz)), pa.int64())
    bounds = pc.min_max(micros).as_py()
    if bounds["min"] is None or bounds["min"] < -_EXACT or bounds["max"] > _EXACT:
        return list(column.to_pylist())
    zone = UTC if kind.tz == "UTC" else ZoneInfo(kind.tz)
    at = datetime.fromtimestamp
    return [None if x is None else at(x / 1e6, zone) for x in micros.to_pylist()]


def _storage(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array([one.storage for one in column.chunks], column.type.storage_type)
    return column.storage


def shared_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """The same for values that repeat, each made once; for those that nobody can change."""
    encoded = flat_dictionary(column)
    values = python_values(encoded.dictionary)
    if column.null_count:
        return [None if at is None else values[at] for at in encoded.indices.to_pylist()]
    return list(map(values.__getitem__, encoded.indices.to_pylist()))


def flat_dictionary(column: pa.Array | pa.ChunkedArray) -> pa.DictionaryArray:
    """A column as the distinct values it has, and which each is."""
    encoded = column.dictionary_encode()
    return encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded


def python_times(micros: Any) -> list[datetime]:
    """Microseconds since the epoch as aware datetimes."""
    return python_values(pa.array(micros).cast(pa.timestamp("us", "UTC")))


def python_rows(table: pa.Table, read: Collection[str] | None = None) -> list[dict[str, Any]]:
    """Every record of a table as a dict of Python values; with only the columns that are read."""
    names = [name for name in table.column_names if read is None or name in read]
    columns = [python_values(table.column(name)) for name in names]
    match names:  # a dict written down is made twice as fast as one of names and values
        case []:
            return [{} for _ in range(len(table))]
        case [a]:
            return [{a: x} for x in columns[0]]
        case [a, b]:
            return [{a: x, b: y} for x, y in zip(*columns, strict=True)]
        case [a, b, c]:
            return [{a: x, b: y, c: z} for x, y, z in zip(*columns, strict=True)]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def encode_rows(table: pa.Table) -> list[bytes]:
    """Every record of a table as a packed dict."""
    columns = []
    for name in table.column_names:
        column = table.column(name)
        values = python_values(column)
        code = _extension(column.type)
        if code is not None:
            values = [None if v is None else _extended(code, v) for v in values]
        elif pa.types.is_nested(column.type) or isinstance(column.type, pa.BaseExtensionType):
            values = [portable(v, large=True) for v in values]
        elif pa.types.is_timestamp(column.type) and column.type.unit == "ns":
            values = list(map(as_plain, values))  # of pandas
        columns.append(values)
    names = table.column_names
    return [pack(dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True)]


def decode_row(data: bytes) -> Any:
    """The inverse of `encode_rows`, for one record."""
    return _row_decoder.decode(data)


def _extension(kind: pa.DataType) -> int | None:
    if pa.types.is_date(kind):
        return 1
    if pa.types.is_time(kind):
        return 2
    if pa.types.is_timestamp(kind) and kind.tz is None:
        return 3
    if pa.types.is_decimal(kind):
        return 4
    if pa.types.is_duration(kind):
        return 5
    return None


def _extended(code: int, value: Any) -> msgspec.msgpack.Ext:
    return msgspec.msgpack.Ext(code, _KINDS[code][0](value).encode())


def _restored(code: int, data: memoryview) -> Any:
    if code in _SETS.values():
        elements = map(decode_key, unpack(data))
        return set(elements) if code == _SETS[set] else frozenset(elements)
    if code == _PAIRS:
        return {as_key(name): one for name, one in _row_decoder.decode(data)}
    return _KINDS[code][1](bytes(data).decode())


_row_decoder = msgspec.msgpack.Decoder(ext_hook=_restored)
unpack_row = _row_decoder.decode  # where every call counts
