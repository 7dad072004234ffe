"""Types of columns that tables in a lake do not have, and what stands for them there."""

from __future__ import annotations

import pyarrow as pa

_UNSIGNED = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20),
}


def stored_as(kind: pa.DataType, *, times: bool) -> pa.DataType:
    """The type in a Delta or Iceberg table; `times`: whether it has times of day."""
    is_ = pa.types
    match kind:
        case pa.StructType():
            parts = [(one.name, stored_as(one.type, times=times)) for one in kind]
            return pa.struct(parts)
        case pa.MapType():
            item = stored_as(kind.item_type, times=times)
            return pa.map_(stored_as(kind.key_type, times=times), item)
        case pa.ListType() | pa.LargeListType():
            return pa.list_(stored_as(kind.value_type, times=times))
    if kind in _UNSIGNED:
        return _UNSIGNED[kind]
    if is_.is_timestamp(kind):
        return pa.timestamp("us", kind.tz and "UTC")
    if is_.is_time(kind):
        return pa.time64("us") if times else pa.string()
    if is_.is_duration(kind):
        return pa.int64()  # of microseconds
    if is_.is_date64(kind):
        return pa.date32()
    if is_.is_float16(kind):
        return pa.float32()
    return pa.string() if is_.is_decimal256(kind) else kind


def as_stored(table: pa.Table, *, times: bool) -> pa.Table:
    """Rows with types that a table in a lake has."""
    for at, one in enumerate(table.schema):
        kind = stored_as(one.type, times=times)
        if kind != one.type:
            column = table.column(at)
            if pa.types.is_duration(one.type):
                column = column.cast(pa.duration("us"), safe=False)
            # Unsafe only where nanoseconds are cut off: all else is wider, or was refused before.
            table = table.set_column(at, one.name, column.cast(kind, safe=False))
    return table
