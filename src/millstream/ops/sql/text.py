"""Text: case, length, trimming, parts of it, joining, replacing and searching plain text."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from millstream.ops.sql.applying import Function, by_row, elementwise, kernel, with_options
from millstream.ops.sql.coercion import all_of, fixed
from millstream.ops.sql.types import Datum, ExpressionError

_LONGEST = 1_000_000  # characters that a text is filled up to
_STRING = pa.string()


def _ascii(of: Datum) -> bool:
    return bool(pc.all(pc.string_is_ascii(of), min_count=0).as_py())


def _change_case(ascii_kernel: str, scalar: Callable[[str], str]) -> Callable[..., Datum]:
    # Arrow maps single characters; Java, like Python, maps ß to SS.
    slow = elementwise(scalar, _STRING)

    def vector(args: Sequence[Datum]) -> Datum:
        return pc.call_function(ascii_kernel, list(args)) if _ascii(args[0]) else slow(args)

    return vector


def _trim(side: str) -> Function:
    strip = {"": str.strip, "l": str.lstrip, "r": str.rstrip}[side]
    trim = getattr(pc, f"utf8_{side}trim")
    return Function(
        all_of(_STRING, _STRING),
        with_options(lambda of, chars: trim(of, characters=chars), strip, _STRING),
    )


def _row_substring(text: str, start: int, length: int | None = None) -> str:
    begin = start - 1 if start > 0 else (len(text) + start if start < 0 else 0)
    end = len(text) if length is None else begin + length
    return text[max(begin, 0) : max(end, 0)]


def _substring(of: Datum, start: int, length: int | None = None) -> Datum:
    begin = start - 1 if start > 0 else start
    if length is None:
        return pc.utf8_slice_codeunits(of, begin)
    if length <= 0:
        return pc.utf8_slice_codeunits(of, 0, 0)
    end = begin + length
    return pc.utf8_slice_codeunits(of, begin, None if begin < 0 <= end else end)


def _concat(args: Sequence[Datum]) -> Datum:
    return pc.binary_join_element_wise(*args, pa.scalar(""), null_handling="emit_null")


def _replace(of: Datum, old: str, new: str) -> Datum:
    return pc.replace_substring(of, old, new) if old else of


def _row_replace(text: str, old: str, new: str) -> str:
    return text.replace(old, new) if old else text


def _position(of: Datum, part: str) -> Datum | None:
    # The kernel counts bytes.
    return pc.add(pc.find_substring(of, part), 1) if _ascii(of) else None


def _padding(text: str, length: int, fill: str) -> str:
    """What is missing to `length`."""
    if length > _LONGEST:
        raise ExpressionError(f"LPAD and RPAD make texts of up to {_LONGEST:,} characters")
    missing = max(0, length - len(text)) if fill else 0
    return (fill * (missing // max(1, len(fill)) + 1))[:missing]


def _row_lpad(text: str, length: int, fill: str) -> str:
    return (_padding(text, length, fill) + text)[: max(0, length)]


def _row_rpad(text: str, length: int, fill: str) -> str:
    return (text + _padding(text, length, fill))[: max(0, length)]


def _row_split_part(text: str, delimiter: str, number: int) -> str:
    if number == 0:
        raise ExpressionError("SPLIT_PART counts parts from 1, or from -1 backwards; 0 is no part")
    parts = text.split(delimiter) if delimiter else [text]
    at = number - 1 if number > 0 else len(parts) + number
    return parts[at] if 0 <= at < len(parts) else ""


def _test(vector: Callable[..., Datum], scalar: Callable[..., bool]) -> Function:
    return Function(all_of(_STRING, pa.bool_()), with_options(vector, scalar, pa.bool_()))


FUNCTIONS: dict[str, Function] = {
    "upper": Function(fixed(_STRING, result=_STRING), _change_case("ascii_upper", str.upper)),
    "lower": Function(fixed(_STRING, result=_STRING), _change_case("ascii_lower", str.lower)),
    "length": Function(fixed(_STRING, result=pa.int32()), kernel("utf8_length")),
    "trim": _trim(""),
    "ltrim": _trim("l"),
    "rtrim": _trim("r"),
    "substring": Function(
        fixed(_STRING, pa.int32(), pa.int32(), result=_STRING),
        with_options(_substring, _row_substring, _STRING),
    ),
    "concat": Function(all_of(_STRING, _STRING), _concat),
    "replace": Function(all_of(_STRING, _STRING), with_options(_replace, _row_replace, _STRING)),
    "startswith": _test(pc.starts_with, str.startswith),
    "endswith": _test(pc.ends_with, str.endswith),
    "contains": _test(pc.match_substring, operator.contains),
    "instr": Function(
        all_of(_STRING, pa.int32()),
        with_options(_position, lambda text, part: text.find(part) + 1, pa.int32()),
    ),
    "lpad": by_row(_row_lpad, _STRING, pa.int32(), _STRING, result=_STRING),
    "rpad": by_row(_row_rpad, _STRING, pa.int32(), _STRING, result=_STRING),
    "split_part": by_row(_row_split_part, _STRING, _STRING, pa.int32(), result=_STRING),
}
