"""Type rules: what types a function's arguments are brought to without a `CAST`, and its result's.

A rule takes the types of the arguments and gives those that the function wants and the one that it
gives, or raises a `TypeMismatch`.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from millstream.ops.sql.decimals import as_decimal, result_of, rounded_type
from millstream.ops.sql.types import (
    ATOMS,
    DATE,
    INTEGERS,
    MOST_DIGITS,
    NUMBERS,
    TIMESTAMP,
    DataType,
    TypeMismatch,
    Types,
    common_type,
    is_decimal,
    is_numeric,
    type_name,
)

Coerce = Callable[[Types], tuple[Types, DataType]]

# What is turned into each type without a CAST, besides void and the type itself.
_IMPLICIT: dict[DataType, frozenset[DataType]] = {
    pa.string(): ATOMS,
    pa.bool_(): frozenset({pa.string()}),
    pa.int32(): frozenset({*INTEGERS, pa.string()}),
    pa.int64(): frozenset({*INTEGERS, pa.string()}),
    pa.float64(): NUMBERS | {pa.string()},
    TIMESTAMP: frozenset({pa.string(), DATE}),
    DATE: frozenset({pa.string(), TIMESTAMP}),
}


def fixed(*wanted: DataType, result: DataType) -> Coerce:
    def coerce(types: Types) -> tuple[Types, DataType]:
        for source, target in zip(types, wanted, strict=False):
            require_implicit(source, target)
        return wanted[: len(types)], result

    return coerce


def all_of(wanted: DataType, result: DataType) -> Coerce:
    return lambda types: fixed(*(wanted,) * len(types), result=result)(types)


def require_implicit(source: DataType, target: DataType) -> None:
    if source in (target, pa.null()) or source in _IMPLICIT[target]:
        return
    if is_decimal(source) and target in (pa.float64(), pa.string()):
        return
    raise TypeMismatch(f"{type_name(target)} is needed, not {type_name(source)}")


def alike(types: Types) -> tuple[Types, DataType]:
    """Any types that order; compared as their common type."""
    common = common_type(types)
    if common == pa.null():
        common = pa.bool_()
    if common not in ATOMS and not is_decimal(common) and common != pa.binary():
        raise TypeMismatch(f"{type_name(common)} cannot be compared")
    return (common,) * len(types), pa.bool_()


def extreme(types: Types) -> tuple[Types, DataType]:
    common = common_type(types, promote_strings=False)
    alike((common,))
    return (common,) * len(types), common


def arithmetic(types: Types) -> tuple[Types, DataType]:
    common = common_type(types)
    if len(types) == 1 and common == pa.string():
        common = pa.float64()
    _require_number(common)
    common = pa.float64() if common == pa.null() else common
    return (common,) * len(types), common


def operation(name: str) -> Coerce:
    """Arithmetic of two numbers: of decimals, with as many digits as the result may need."""

    def coerce(types: Types) -> tuple[Types, DataType]:
        if not _are_decimals(types):
            return quotient(types) if name == "/" else arithmetic(types)
        wanted = _decimals(types)
        return wanted, result_of(name, wanted)

    return coerce


def _are_decimals(types: Types) -> bool:
    """Whether they are computed with as decimals: one is, and the others are, or whole numbers."""
    exact = all(is_decimal(one) or one in INTEGERS or one == pa.null() for one in types)
    return exact and any(map(is_decimal, types))


def _decimals(types: Types) -> Types:
    known = next(one for one in types if is_decimal(one))
    return tuple(known if one == pa.null() else as_decimal(one) for one in types)


def rounding(types: Types, places: int) -> tuple[Types, DataType]:
    """ROUND: a decimal has fewer digits then."""
    wanted, source = arithmetic(types)
    return wanted, rounded_type(source, places) if is_decimal(source) else source


def _require_number(of: DataType) -> None:
    if of in (DATE, TIMESTAMP):
        raise TypeMismatch(
            f"a number is needed, not {type_name(of)}; an INTERVAL can be added to a time, and "
            "timestampdiff(SECOND, start, end) tells how far two lie apart"
        )
    if not is_numeric(of) and of != pa.null():
        raise TypeMismatch(f"a number is needed, not {type_name(of)}")


def quotient(types: Types) -> tuple[Types, DataType]:
    arithmetic(types)
    return (pa.float64(),) * len(types), pa.float64()


def whole(types: Types) -> tuple[Types, DataType]:
    common = common_type(types)
    if _are_decimals(types):
        return _decimals(types), pa.int64()
    if common not in INTEGERS and common != pa.null():
        raise TypeMismatch(f"DIV needs whole numbers, not {type_name(common)}")
    return (pa.int64(),) * len(types), pa.int64()


def to_whole(types: Types) -> tuple[Types, DataType]:
    _, source = arithmetic(types)
    if is_decimal(source):
        front = source.precision - source.scale + (source.scale > 0)
        return (source,), pa.decimal128(min(front, MOST_DIGITS), 0)
    return (source if source in INTEGERS else pa.float64(),), pa.int64()


def anything(result: DataType) -> Coerce:
    return lambda types: (types, result)


def list_size(types: Types) -> tuple[Types, DataType]:
    if not (pa.types.is_list(types[0]) or pa.types.is_map(types[0])):
        raise TypeMismatch(f"an array or a map is needed, not {type_name(types[0])}")
    return types, pa.int32()


def element(types: Types) -> tuple[Types, DataType]:
    if pa.types.is_map(types[0]):
        return (types[0], types[0].key_type), types[0].item_type
    if not pa.types.is_list(types[0]):
        raise TypeMismatch(f"[...] needs an array or a map, not {type_name(types[0])}")
    return (types[0], pa.int64()), types[0].value_type
