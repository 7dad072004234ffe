"""Arrays and maps: their size, and the element at an index or a key."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from millstream.ops.sql.applying import Function, elementwise
from millstream.ops.sql.coercion import element, list_size
from millstream.ops.sql.types import Datum, ExpressionError, as_array, row_count


def _element(args: Sequence[Datum]) -> Datum:
    of, at = (as_array(arg, max(map(row_count, args))) for arg in args)
    if pa.types.is_map(of.type):
        found = elementwise(lambda pairs, key: dict(pairs).get(key), of.type.item_type)
        return found((of, at))
    outside = pc.or_(pc.less(at, 0), pc.greater_equal(at, pc.list_value_length(of)))
    if pc.any(outside).as_py():
        raise ExpressionError("array index out of bounds")
    starts = of.offsets[:-1].cast(pa.int64())
    # An array or an index that is null makes the position null, and the taken value with it.
    return of.values.take(pc.if_else(of.is_valid(), pc.add(starts, at), None))


def _size(args: Sequence[Datum]) -> Datum:
    (of,) = args
    sizes = pc.subtract(of.offsets[1:], of.offsets[:-1])  # there is no kernel for maps
    return pc.if_else(of.is_valid(), sizes, pa.scalar(None, sizes.type))


FUNCTIONS: dict[str, Function] = {
    "element": Function(element, _element),
    "size": Function(list_size, _size),
}
