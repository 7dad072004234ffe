"""Columns of values of many types: what MapReduce jobs and reduce functions may give.

Arrow's columns have one type. Where values have one, their column is a plain one. Where they do
not, it is a column of packed values (`ops/codec.py`) under a type of its own, which Arrow hands
around like any other and which gives back Python values.

Which values share a column depends on batches and tasks, so a column of what functions gave is
marked as exact: put below another, no value of it changes, neither 1 to 1.0 nor {"a": 1} to
{"a": 1, "b": None}. Columns without the mark follow the rules of SQL, where 1 and 2.5 are doubles.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

from millstream.errors import RunError
from millstream.ops.codec import MIXED_NAME, as_plain, decode, encode, python_values

_NUMBERS = {int, float}
_SCALARS = {bool, int, float, str, bytes, date, timedelta}
_KNOWN = {*_SCALARS, type(None), datetime, time, Decimal, list, tuple, dict, set, frozenset}
_ENDS = set(range(-38, 1))  # of decimals that Arrow gives back with all their digits
_EXACT = {b"millstream.exact": b"1"}
REFUSED = (
    pa.ArrowInvalid,
    pa.ArrowTypeError,
    pa.ArrowNotImplementedError,
    OverflowError,
    UnicodeEncodeError,
)


class MixedScalar(pa.ExtensionScalar):  # type: ignore[misc]
    """One value of a mixed column."""

    def as_py(self, **_: Any) -> Any:
        """The value it was made of."""
        return None if self.value is None else decode(self.value.as_py())


class MixedType(pa.ExtensionType):  # type: ignore[misc]
    """Values of any type that can be packed."""

    def __init__(self) -> None:
        super().__init__(pa.binary(), MIXED_NAME)

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: pa.DataType, serialized: bytes) -> MixedType:
        return cls()

    def __arrow_ext_scalar_class__(self) -> type[MixedScalar]:
        return MixedScalar

    def __reduce__(self) -> tuple[Any, ...]:
        return MixedType, ()

    def __hash__(self) -> int:  # Arrow's own extension types have none
        return hash(self.extension_name)


MIXED = MixedType()
pa.register_extension_type(MIXED)


def is_mixed(kind: pa.DataType) -> bool:
    """Whether a type is that of mixed values."""
    return isinstance(kind, MixedType)


def holds_mixed(kind: pa.DataType) -> bool:
    """Whether a type is that of mixed values, or of lists or structs with such in them."""
    if is_mixed(kind):
        return True
    fields = (kind.field(index) for index in range(kind.num_fields))
    return any(holds_mixed(field.type) for field in fields)


def mixed(values: Iterable[Any]) -> pa.Array:
    """Python values as a mixed column."""
    return wrapped(pa.array([None if v is None else encode(v) for v in values], pa.binary()))


def wrapped(packed: pa.Array) -> pa.Array:
    """Packed values as a mixed column."""
    return pa.ExtensionArray.from_storage(MIXED, packed)


def as_mixed(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Any column as a mixed one."""
    return column if is_mixed(column.type) else mixed(python_values(column))


def column_of(values: list[Any], bad: dict[int, str]) -> pa.Array | None:
    """Values as a column: plain if that changes none of them, mixed otherwise.

    Values that cannot be packed are noted with the reason, and there is no column then.
    """
    kinds = set(map(type, values))
    if not kinds <= _KNOWN:
        values = list(map(as_plain, values))
        kinds = set(map(type, values))
    plain = kinds - {type(None)}
    if (len(plain) == 1 and plain <= _SCALARS) or _alike([v for v in values if v is not None]):
        try:
            return pa.array(values)
        except REFUSED:
            pass
    packed: list[bytes | None] = []
    for index, value in enumerate(values):
        try:
            packed.append(None if value is None else encode(value))
        except RunError as error:
            bad[index] = str(error)
    return None if bad else wrapped(pa.array(packed, pa.binary()))


def widened(values: list[Any]) -> pa.Array | None:
    """Values as a plain column in which numbers may all be doubles, if that loses no digit."""
    if not _alike([v for v in values if v is not None], widen=True):
        return None
    try:
        return pa.array(values)
    except REFUSED:
        return None


def _alike(values: list[Any], widen: bool = False) -> bool:
    """Whether a plain column gives values back as they were; `widen`: or as equal numbers."""
    kinds = set(map(type, values))
    if (len(kinds) <= 1 and kinds <= _SCALARS) or (widen and kinds == _NUMBERS):
        return True
    if kinds == {datetime}:
        return len({value.tzinfo is None for value in values}) == 1
    if kinds == {time}:
        return all(value.tzinfo is None for value in values)  # Arrow has no zone for these
    if kinds == {Decimal}:
        ends = {value.as_tuple().exponent for value in values}  # 1.10 is not to become 1.1
        return widen or (len(ends) == 1 and ends <= _ENDS)
    if kinds <= {list, tuple}:
        return _alike([one for value in values for one in value if one is not None], widen)
    if kinds == {dict}:
        names = values[0].keys()
        if any(value.keys() != names for value in values):
            return False
        if not all(isinstance(name, str) for name in names):
            return False  # Arrow would make texts of bytes
        columns = ([value[name] for value in values] for name in names)
        return all(_alike([one for one in column if one is not None], widen) for column in columns)
    return False


# -- one below the other ---------------------------------------------------------------------------


def exactly(
    columns: Mapping[str, pa.Array | pa.ChunkedArray], names: Iterable[str] | None = None
) -> pa.Table:
    """A table with these columns, of which some (or all) are marked as exact."""
    table = pa.table(dict(columns))
    chosen = set(table.column_names if names is None else names)
    fields = [f.with_metadata(_EXACT) if f.name in chosen else f for f in table.schema]
    return pa.Table.from_arrays(table.columns, schema=pa.schema(fields)) if chosen else table


def exact_columns(table: pa.Table) -> list[str]:
    """The columns that are marked as exact."""
    return [field.name for field in table.schema if _is_exact(field)]


def _is_exact(field: pa.Field) -> bool:
    return bool(field.metadata) and _EXACT.items() <= field.metadata.items()


def together(tables: list[pa.Table]) -> pa.Table:
    """Tables one below the other; columns whose types do not go together are mixed.

    Arrow alone would refuse them, and take text for bytes.
    """
    kinds: dict[str, set[pa.DataType]] = {}
    exact: set[str] = set()
    for table in tables:
        exact.update(exact_columns(table))
        for field in table.schema:
            kinds.setdefault(field.name, set()).add(field.type)
    several = {name for name, found in kinds.items() if len(found) > 1}
    apart = {n for n in several if differ(kinds[n]) or (n in exact and not _kept(kinds[n]))}
    try:
        whole = pa.concat_tables(_mixed(tables, apart), promote_options="permissive")
    except pa.ArrowInvalid:  # a number of one of them does not fit the wider type
        whole = pa.concat_tables(_mixed(tables, several), promote_options="permissive")
    return exactly(dict(zip(whole.column_names, whole.columns, strict=True)), exact)


def _kept(kinds: set[pa.DataType]) -> bool:
    """Whether values of all these types are the same values in the type that holds them all."""
    schemas = [pa.schema([("", kind)]) for kind in kinds]
    whole = pa.unify_schemas(schemas, promote_options="permissive").field(0).type
    return all(_fits(kind, whole) for kind in kinds)


def _fits(kind: pa.DataType, whole: pa.DataType) -> bool:
    if kind == whole or pa.types.is_null(kind):
        return True
    if kind.num_fields != whole.num_fields or not pa.types.is_nested(kind):
        return False
    fields = ((kind.field(at), whole.field(at)) for at in range(kind.num_fields))
    return all(one.name == other.name and _fits(one.type, other.type) for one, other in fields)


def _mixed(tables: list[pa.Table], names: set[str]) -> list[pa.Table]:
    changed = []
    for table in tables:
        for at, name in enumerate(table.column_names):
            if name in names and not pa.types.is_null(table.schema.field(at).type):
                table = table.set_column(at, name, as_mixed(table.column(at)))
        changed.append(table)
    return changed


def differ(kinds: set[pa.DataType]) -> bool:
    """Whether no plain column can hold values of all these types."""
    try:
        pa.unify_schemas([pa.schema([("", kind)]) for kind in kinds], promote_options="permissive")
    except (pa.ArrowTypeError, pa.ArrowInvalid):
        return True
    return any(map(pa.types.is_string, kinds)) and any(map(pa.types.is_binary, kinds))


def wider(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """The type of a column that holds values of two types which do not differ too much."""
    schemas = [pa.schema([("", kind)]) for kind in (one, other)]
    return pa.unify_schemas(schemas, promote_options="permissive").field(0).type


def by_kind(column: pa.Array) -> dict[str, list[int]]:
    """The rows of a mixed column by the type of their value; nulls are of none."""
    kinds: dict[str, list[int]] = {}
    for index, value in enumerate(column.to_pylist()):
        if value is not None:
            kinds.setdefault(kind_of(value), []).append(index)
    return kinds


def kind_of(value: Any) -> str:
    """What can be one plain column."""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int" if -(2**63) <= value < 2**63 else "large int"
    if isinstance(value, datetime):
        return "local time" if value.tzinfo is None else "time"
    return type(value).__name__


def in_order(value: Any) -> tuple[Any, ...]:
    """A key that orders any values: numbers, then text, then times, then all others."""
    if isinstance(value, bool | int | float | Decimal):
        return (0, value != value, 0 if value != value else value)
    if isinstance(value, str):
        return (1, value)
    if isinstance(value, datetime) and value.tzinfo is not None:
        return (2, value)
    return (3, encode(value))


def beside(marks: Mapping[str, Any], table: pa.Table, prefix: str) -> pa.Table:
    """Columns that say what rows are known by, and the rows' own, with a prefix, as they are."""
    exact = [f"{prefix}{name}" for name in exact_columns(table)]
    rows = {f"{prefix}{name}": table.column(name) for name in table.column_names}
    return exactly({**marks, **rows}, exact)
