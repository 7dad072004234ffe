"""SipHash-2-4 of the texts of a column at once, as pandas hashes them one by one.

Keys have been hashed by pandas since the first checkpoint, so this gives the same numbers. It is
here because pandas takes 40 MB in every process that imports it, and a worker needs nothing else
of it. Texts are sorted by length and worked on word by word, all that have such a word together.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

UInt64 = np.ndarray[Any, np.dtype[np.uint64]]

LONGEST = 1024  # bytes of a text; longer ones are better hashed one by one
_AT_ONCE = 8192  # texts whose state fits into a processor's cache
_MAGIC = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)


def sip_hashes(column: pa.StringArray, key: bytes) -> UInt64:
    """The hash of every text, none of which is null or longer than `LONGEST`; `key`: 16 bytes."""
    ends = np.frombuffer(column.buffers()[1], np.int32)[column.offset :][: len(column) + 1]
    data = column.buffers()[2]
    text = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    text = np.concatenate([text[: ends[-1]], np.zeros(8, np.uint8)])
    words: Any = np.ndarray((len(text) - 7,), "<u8", text, strides=(1,))  # from every byte on
    starts, sizes = ends[:-1].astype(np.int64), np.diff(ends).astype(np.int64)
    order = np.argsort(-sizes, kind="stable")
    found = np.empty(len(column), np.uint64)
    for begin in range(0, len(order), _AT_ONCE):
        rows = order[begin : begin + _AT_ONCE]
        found[rows] = _hashes(words, starts[rows], sizes[rows], key)
    return found


def _hashes(words: Any, starts: Any, sizes: Any, key: bytes) -> UInt64:
    """Of texts in descending order of their sizes."""
    keys = np.frombuffer(key, "<u8")
    v = [np.full(len(starts), np.uint64(one) ^ keys[n % 2]) for n, one in enumerate(_MAGIC)]
    whole = sizes // 8
    for number in range(int(whole[0])):
        many = int(np.searchsorted(-whole, -number, side="left"))  # that have more words than that
        _take_in([one[:many] for one in v], words[starts[:many] + 8 * number])
    bits = (8 * (sizes % 8)).astype(np.uint64)
    rest = words[starts + 8 * whole] & ((np.uint64(1) << bits) - np.uint64(1))
    _take_in(v, rest | (sizes.astype(np.uint64) << np.uint64(56)))
    v[2] ^= np.uint64(0xFF)
    for _ in range(4):
        _round(*v)
    found: UInt64 = v[0] ^ v[1] ^ v[2] ^ v[3]
    return found


def _take_in(v: list[Any], word: Any) -> None:
    v[3] ^= word
    _round(*v)
    _round(*v)
    v[0] ^= word


def _round(a: Any, b: Any, c: Any, d: Any) -> None:
    """One round of the state, in place."""
    a += b
    _turn(b, 13)
    b ^= a
    _turn(a, 32)
    c += d
    _turn(d, 16)
    d ^= c
    a += d
    _turn(d, 21)
    d ^= a
    c += b
    _turn(b, 17)
    b ^= c
    _turn(c, 32)


def _turn(values: Any, bits: int) -> None:
    """Turn the bits of every number to the left, in place."""
    high = values << np.uint64(bits)
    values >>= np.uint64(64 - bits)
    values |= high
