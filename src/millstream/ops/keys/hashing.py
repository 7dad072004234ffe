"""Keys: stable hashes for shards, and dense codes for grouping.

The hash of a key decides its shard, and so where its state lies for as long as the checkpoint
lives: it must never depend on the process, the batch or the parallelism. Nor on the type of the
column of one chunk: 1 and 1.0 have one hash, because the type a chunk infers for a column depends
on what else is in it; so has a null of any type. "1" and True are keys of their own.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Collection
from decimal import Context, Decimal
from typing import Any
from zlib import crc32

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.ops.chunks import Int64, begins, flat
from millstream.ops.codec import encode
from millstream.ops.keys.siphash import LONGEST, UInt64, sip_hashes
from millstream.ops.mixed import REFUSED, by_kind, is_mixed, mixed, wrapped

_HASH_KEY = "millstream-key-0"  # fixed for ever: exactly 16 characters
_ALL_BITS = 2**64 - 1
_ALL_DIGITS = Context(prec=100)
_TAGS = {"null": 1, "bool": 2, "int": 3, "float": 4, "string": 5, "time": 6, "other": 7}


def canonical(column: pa.Array) -> pa.Array:
    """The one form in which equal keys are equal: 64-bit numbers, one zero, one NaN."""
    kind = column.type
    if is_mixed(kind):
        return mixed(_alike(value, _shortest) for value in column.to_pylist())
    if pa.types.is_dictionary(kind):
        column = pc.cast(column, kind.value_type)
        kind = column.type
    if pa.types.is_integer(kind) and kind != pa.int64():
        try:
            return pc.cast(column, pa.int64())
        except pa.ArrowInvalid:  # unsigned, beyond what 64 bits with a sign have
            return mixed(column.to_pylist())
    if pa.types.is_floating(kind):
        values = pc.cast(column, pa.float64()).to_numpy(zero_copy_only=False) + 0.0
        values[np.isnan(values)] = np.nan
        return pa.array(values, mask=np.asarray(pc.is_null(column)))
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pc.cast(column, pa.string())
    return column


def one_number(value: Any) -> Any:
    """A number as it stands among whole numbers, if it is one: 1.0 and 1 are one key."""
    if isinstance(value, float):
        if value != value:
            return math.nan
        return int(value) if abs(value) < 2.0**53 and value == int(value) else value
    if isinstance(value, (list, tuple)):
        return [one_number(one) for one in value]
    return value


def _tagged(column: pa.Array) -> tuple[str, np.ndarray[Any, Any]]:
    kind = column.type
    if pa.types.is_null(kind):
        return "null", np.zeros(len(column), np.uint64)
    if pa.types.is_boolean(kind):
        return "bool", np.asarray(pc.cast(column, pa.int64()).fill_null(0))
    if pa.types.is_integer(kind):
        return "int", np.asarray(pc.cast(column, pa.int64()).fill_null(0))
    if pa.types.is_floating(kind):
        return "float", np.asarray(pc.cast(column, pa.float64()).fill_null(0.0))
    if pa.types.is_string(kind):
        return "string", _hashed_texts(column.fill_null(""))
    if pa.types.is_timestamp(kind):
        micros = pc.cast(column, pa.timestamp("us", kind.tz), safe=False)
        return "time", np.asarray(pc.cast(micros, pa.int64()).fill_null(0))
    digests = [
        int.from_bytes(hashlib.blake2b(_told(v), digest_size=8).digest(), "big")
        for v in column.to_pylist()
    ]
    return "other", np.array(digests, np.uint64)


def _told(value: Any) -> bytes:
    value = _alike(value, _digits)
    try:
        return msgspec.msgpack.encode(value, enc_hook=str)
    except OverflowError:
        return encode(value)


def _alike(value: Any, decimal: Callable[[Decimal], Any]) -> Any:
    """A value whose parts do not depend on the type of the column of its chunk.

    That gives records of several orders of fields one order, what they lack a null, whole numbers
    beside fractions a point, and decimals the digits of the longest.
    """
    if isinstance(value, dict):
        parts = {name: _alike(one, decimal) for name, one in value.items() if one is not None}
        return dict(sorted(parts.items()))
    if isinstance(value, list | tuple):
        return [_alike(one, decimal) for one in value]
    return decimal(value) if isinstance(value, Decimal) else one_number(value)


def _digits(value: Decimal) -> str:
    """What is hashed of a decimal, fixed for ever."""
    return f"{value.normalize(_ALL_DIGITS):f}" if value else "0"


def _shortest(value: Decimal) -> Decimal:
    """The one of equal decimals that stands for them all."""
    if not value.is_finite():
        return value
    short = value.normalize(_ALL_DIGITS) if value else Decimal(0)
    return Decimal(f"{short:f}") if short.adjusted() < _ALL_DIGITS.prec else short


def _mix(values: UInt64) -> UInt64:
    """The finaliser of splitmix64, so that combined hashes spread over all bits."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _salt(tag: str) -> np.uint64:
    with np.errstate(over="ignore"):
        return np.uint64(_TAGS[tag]) * np.uint64(0x9E3779B97F4A7C15)


def hash_keys(columns: list[pa.Array], salt: int = 0) -> UInt64:
    """A stable 64-bit hash per row over canonical key columns; `salt` gives a second one."""
    total = np.full(len(columns[0]), salt, np.uint64)
    with np.errstate(over="ignore"):
        for column in columns:
            salted = _salted_mixed(column) if is_mixed(column.type) else _salted(column)
            total = _mix((total * np.uint64(31)) ^ _mix(salted))
    return total


def places_of(columns: list[pa.Array]) -> Int64:
    """The place of each key among results of the same time: by hash."""
    hashes = hash_keys(columns) if columns else np.zeros(1, np.uint64)
    return (hashes >> np.uint64(1)).astype(np.int64)


def _hashed(values: Any) -> UInt64:
    """Numbers, as pandas hashes them."""
    return _mix(values.view(np.uint64))


def _hashed_texts(column: pa.StringArray) -> UInt64:
    """Texts, as pandas hashes them."""
    if (pc.max(pc.binary_length(column)).as_py() or 0) <= LONGEST:
        return _mix(sip_hashes(column, _HASH_KEY.encode()))
    return _one_by_one(column.to_numpy(zero_copy_only=False))


def _one_by_one(texts: Any) -> UInt64:
    """By pandas itself; imported only here, since most processes do without."""
    import pandas as pd

    found: UInt64 = pd.util.hash_array(texts, hash_key=_HASH_KEY, categorize=False)
    return found


def _salted(column: pa.Array) -> UInt64:
    """The hashes of one column, different for different types."""
    tag, values = _tagged(column)
    hashed = values if values.dtype == np.uint64 else _hashed(values)
    salted = hashed ^ _salt(tag)
    if tag == "float":  # a whole number is in an integer column if its chunk has only such
        whole = (values == np.rint(values)) & (np.abs(values) < 2.0**53)
        numbers = np.where(whole, values, 0).astype(np.int64)
        as_int = _hashed(numbers)
        salted = np.where(whole, as_int ^ _salt("int"), salted)
    if column.null_count:  # a null is one key, whatever type its chunk has
        salted = np.where(np.asarray(pc.is_null(column)), _salt("null"), salted)
    return salted


def _salted_mixed(column: pa.Array) -> UInt64:
    """The same for values of many types: as each would be hashed in a column of its own type."""
    found = np.full(len(column), _salt("null"), np.uint64)
    values = column.to_pylist()
    for rows in by_kind(column).values():
        same = [values[row] for row in rows]
        try:
            found[rows] = _salted(canonical(pa.array(same)))
        except REFUSED:
            found[rows] = _salted(mixed(same))  # hashed as what they are packed to
    return found


def hash_one(value: str | int, salts: tuple[int, ...]) -> tuple[int, ...]:
    """What `hash_keys` gives for a column of one value, per salt: a lookup has just one key."""
    if isinstance(value, str):
        tag, hashed = "string", int(_one_by_one(np.array([value], object))[0])
    else:
        tag, hashed = "int", _mix_one(value & _ALL_BITS)
    salted = _mix_one(hashed ^ int(_salt(tag)))
    return tuple(_mix_one((salt * 31 & _ALL_BITS) ^ salted) for salt in salts)


def _mix_one(value: int) -> int:
    """`_mix` of one number."""
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _ALL_BITS
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _ALL_BITS
    return value ^ (value >> 31)


def factorize(columns: list[pa.Array]) -> tuple[Int64, list[pa.Array]]:
    """Dense codes per row, and the distinct keys in ascending order, one array per column."""
    if len(columns) == 1:
        return _factorize_one(columns[0])
    codes, uniques = _factorize_one(columns[0])
    parts = [(codes, uniques[0])]
    for column in columns[1:]:
        more, values = _factorize_one(column)
        parts.append((more, values[0]))
        codes, _ = dense(codes * np.int64(len(values[0])) + more)
    # Codes were made dense in ascending order of the parts at every step, so key order holds.
    count = int(codes.max()) + 1 if len(codes) else 0
    some_row = np.zeros(count, np.int64)
    some_row[codes] = np.arange(len(codes))
    return codes, [values.take(pa.array(part[some_row])) for part, values in parts]


def _factorize_one(column: pa.Array) -> tuple[Int64, list[pa.Array]]:
    column = canonical(column)
    if is_mixed(column.type):
        codes, (packed,) = _factorize_one(column.storage)
        return codes, [wrapped(packed)]
    if pa.types.is_null(column.type):
        return np.zeros(len(column), np.int64), [column[:1]]
    if pa.types.is_nested(column.type):
        return _factorize_nested(column)
    encoded = column.dictionary_encode(null_encoding="encode")
    values = encoded.dictionary
    indices = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    order = pc.sort_indices(values).to_numpy()
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return rank[indices], [values.take(pa.array(order))]


def _factorize_nested(column: pa.Array) -> tuple[Int64, list[pa.Array]]:
    """Lists and structs have no order in Arrow: theirs is the order of their packed bytes."""
    packed = [_told(value) for value in column.to_pylist()]
    some_row = {data: row for row, data in enumerate(packed)}
    rank = {data: code for code, data in enumerate(sorted(some_row))}
    codes = np.array([rank[data] for data in packed], np.int64)
    return codes, [column.take(pa.array([some_row[data] for data in rank], pa.int64()))]


def dense(codes: Int64) -> tuple[Int64, Int64]:
    """Sparse non-negative codes as dense ones in ascending order, and the sparse one of each."""
    if not len(codes):
        return codes, codes
    low, high = int(codes.min()), int(codes.max())
    if high - low <= 4 * len(codes) + 1024:
        present = np.zeros(high - low + 1, np.bool_)
        present[codes - low] = True
        kept = np.flatnonzero(present)
        return (np.cumsum(present) - 1)[codes - low], kept + low
    kept, inverse = np.unique(codes, return_inverse=True)
    return inverse.astype(np.int64, copy=False), kept


def group_by(keys: Int64, panes: Int64) -> tuple[Int64, Int64, Int64]:
    """Dense group codes over (key, pane), and the key and pane of each group, ascending."""
    if not len(keys):
        return keys, keys, panes
    low, width = int(panes.min()), int(panes.max()) - int(panes.min()) + 1
    if (int(keys.max()) + 1) * width < 2**62:
        groups, sparse = dense(keys * np.int64(width) + (panes - low))
        return groups, sparse // width, sparse % width + low
    groups, first = distinct((keys, panes))
    return groups, keys[first], panes[first]


def distinct(pairs: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]) -> tuple[Int64, Int64]:
    """Dense codes of pairs (as the two hashes of a key), ascending, and the first row of each."""
    order = np.lexsort((pairs[1], pairs[0]))
    first = begins(pairs[0][order], pairs[1][order])
    codes = np.empty(len(order), np.int64)
    codes[order] = np.cumsum(first) - 1
    return codes, order[first]


def key_names(keys: Collection[str]) -> tuple[str, ...]:
    """What the columns of a key are called beside others of ours."""
    return tuple(f"key.{nth}" for nth in range(len(keys)))


def key_arrays(table: pa.Table, names: tuple[str, ...]) -> list[pa.Array]:
    """The key columns of a table as canonical plain arrays."""
    return [canonical(flat(table.column(name))) for name in names]


def blended(first: Int64 | UInt64, *more: Int64 | UInt64) -> Int64:
    """Several numbers per row as one that stands for all of them, from 0 on."""
    total = _mix(first.astype(np.uint64, copy=False))
    with np.errstate(over="ignore"):
        for numbers in more:
            total = _mix((total * np.uint64(31)) ^ _mix(numbers.astype(np.uint64, copy=False)))
    return (total >> np.uint64(1)).astype(np.int64)


def content_hash(table: pa.Table, salt: int = 0) -> UInt64:
    """A stable 64-bit hash of whole rows, whatever the order of their columns.

    A column that is not there is the same as one with null in it.
    """
    total = np.zeros(len(table), np.uint64)
    with np.errstate(over="ignore"):
        for name in table.column_names:
            column = canonical(flat(table.column(name)))
            hashed = hash_keys([column], salt ^ crc32(name.encode()))
            if column.null_count:
                hashed = np.where(np.asarray(pc.is_null(column)), np.uint64(0), hashed)
            total = total + hashed
    return _mix(total)
