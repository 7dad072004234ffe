"""How large the pages of a parquet file are, by their own headers.

A page is unpacked in one piece, and a few bytes can stand for gigabytes. The footer tells only what
a column takes altogether, or whatever its writer wants to be believed; a page is unpacked to what
its header says. So `parquet.py` asks the headers before it lets Arrow read a page.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO

from pyarrow.parquet import ColumnChunkMetaData

from millstream.errors import RunError

_AHEAD = 256  # bytes read at once; most headers are shorter
_LONGEST = 1024 * 1024  # bytes of a header: it may hold the lowest and highest value of its page
_UNPACKED, _STORED, _DATA, _DATA_V2 = 2, 3, 5, 8  # fields of a header
_VALUES = 1  # field of what it says of data: how many values there are
# Types of Thrift's compact protocol; no header holds a list or a map.
_BOOLEANS, _BYTE, _INTEGERS, _DOUBLE, _BINARY, _STRUCT = (1, 2), 3, (4, 5, 6), 7, 8, 12
_DEEPEST = 8

Fields = dict[int, "int | Fields"]


def page_sizes(file: IO[bytes], column: ColumnChunkMetaData) -> Iterator[int]:
    """The bytes of each page of a column in a row group, once unpacked."""
    at = column.data_page_offset
    if column.has_dictionary_page and 0 < column.dictionary_page_offset < at:
        at = column.dictionary_page_offset
    end, values = at + column.total_compressed_size, 0
    while at < end and values < column.num_values:
        header = _Header(file, at)
        yield header.unpacked
        values += header.values
        at += header.length + header.stored


class _Header:
    """The header of one page: what it says of sizes, and where it ends."""

    def __init__(self, file: IO[bytes], at: int) -> None:
        self._file, self._buffer = file, b""
        self._at = 0
        file.seek(at)
        found = self._struct(0)
        self.length = self._at
        self.unpacked, self.stored = _count(found, _UNPACKED), _count(found, _STORED)
        data = found.get(_DATA, found.get(_DATA_V2, {_VALUES: 0}))
        self.values = _count(data, _VALUES) if isinstance(data, dict) else 0

    def _take(self, count: int) -> bytes:
        end = self._at + count
        if end > _LONGEST:
            raise _unreadable()
        if end > len(self._buffer):
            self._buffer += self._file.read(max(_AHEAD, end - len(self._buffer)))
            if end > len(self._buffer):
                raise _unreadable()
        taken, self._at = self._buffer[self._at : end], end
        return taken

    def _number(self) -> int:
        value = shift = 0
        while shift < 70:
            byte = self._take(1)[0]
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
        raise _unreadable()

    def _integer(self) -> int:
        value = self._number()
        return (value >> 1) ^ -(value & 1)

    def _struct(self, depth: int) -> Fields:
        """Its fields, without texts and lists."""
        found: Fields = {}
        field = 0
        while (head := self._take(1)[0]) != 0:
            kind, step = head & 15, head >> 4
            field = field + step if step else self._integer()
            if kind in _INTEGERS:
                found[field] = self._integer()
            elif kind == _STRUCT and depth < _DEEPEST:
                found[field] = self._struct(depth + 1)
            elif kind not in _BOOLEANS:  # which have no bytes of their own
                self._skip(kind)
        return found

    def _skip(self, kind: int) -> None:
        if kind == _BYTE:
            self._take(1)
        elif kind == _DOUBLE:
            self._take(8)
        elif kind == _BINARY:
            self._take(self._number())
        else:
            raise _unreadable()


def _count(fields: Fields, name: int) -> int:
    found = fields.get(name)
    if not isinstance(found, int) or found < 0:
        raise _unreadable()
    return found


def _unreadable() -> RunError:
    return RunError("the header of a page is damaged")
