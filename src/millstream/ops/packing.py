"""Records as MessagePack, a column at a time.

A packed record is a map: per column its name and one value. Names are the same for all records,
and values of simple types have forms that NumPy can lay out, so that no Python object is made for
records whose function never looks at them.
"""

from __future__ import annotations

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.ops.chunks import flat

_LARGEST = 1 << 29  # bytes of a table; what is packed of it must fit into one Arrow array
_SECONDS = 1 << 34  # timestamps before this fit into 64 bits: until 2514
_NULL = pa.scalar(b"\xc0", pa.binary())
_encode = msgspec.msgpack.Encoder().encode


def pack_rows(table: pa.Table) -> pa.Array | None:
    """Every record as a packed dict; None if a column has a type that is not laid out here."""
    if not table.num_columns or table.nbytes > _LARGEST:
        return None
    count = table.num_columns
    head = bytes([0x80 | count]) if count < 16 else b"\xde" + count.to_bytes(2, "big")
    parts: list[pa.Array | pa.Scalar] = []
    for name in table.column_names:
        column = flat(table.column(name))
        packed = _packed(column)
        if packed is None:
            return None
        if column.null_count:
            packed = pc.if_else(pc.is_valid(column), packed, _NULL)
        parts += [pa.scalar(head + _encode(name), pa.binary()), packed]
        head = b""
    return pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.binary()))


def _packed(column: pa.Array) -> pa.Array | None:
    kind = column.type
    if pa.types.is_string(kind):
        return _texts(column)
    if pa.types.is_boolean(kind):
        values = np.asarray(column.fill_null(False)).astype(np.uint8)
        return _fixed(b"", 0xC2 + values.reshape(-1, 1))
    if pa.types.is_integer(kind) and kind != pa.uint64():
        values = np.asarray(column.fill_null(0)).astype(">i8")
        return _fixed(b"\xd3", values.view(np.uint8).reshape(-1, 8))
    if kind in (pa.float32(), pa.float64()):
        values = np.asarray(column.fill_null(0.0)).astype(">f8")
        return _fixed(b"\xcb", values.view(np.uint8).reshape(-1, 8))
    if pa.types.is_timestamp(kind) and kind.tz is not None and kind.unit != "ns":
        return _times(column)
    return None


def _texts(column: pa.Array) -> pa.Array:
    """Heads follow from lengths, of which there are few."""
    lengths = np.asarray(pc.binary_length(column).fill_null(0))
    known, which = np.unique(lengths, return_inverse=True)
    heads = pa.array([_text_head(size) for size in known.tolist()], pa.binary())
    texts = column.fill_null("").cast(pa.binary())
    return pc.binary_join_element_wise(
        heads.take(pa.array(which)), texts, pa.scalar(b"", pa.binary())
    )


def _text_head(size: int) -> bytes:
    if size < 32:
        return bytes([0xA0 | size])
    for code, width in ((0xD9, 1), (0xDA, 2)):
        if size < 1 << (8 * width):
            return bytes([code]) + size.to_bytes(width, "big")
    return b"\xdb" + size.to_bytes(4, "big")


def _times(column: pa.Array) -> pa.Array | None:
    micros = np.asarray(
        pc.cast(pc.cast(column, pa.timestamp("us", column.type.tz)), pa.int64()).fill_null(0)
    )
    if len(micros) and (micros.min() < 0 or micros.max() >= _SECONDS * 1_000_000):
        return None
    seconds, rest = np.divmod(micros, 1_000_000)
    values = (
        ((rest * 1000).astype(np.uint64) << np.uint64(34)) | seconds.astype(np.uint64)
    ).astype(">u8")
    return _fixed(b"\xd7\xff", values.view(np.uint8).reshape(-1, 8))


def _fixed(head: bytes, values: np.ndarray) -> pa.Array:
    """Values of one width behind the same head."""
    width = len(head) + values.shape[1]
    laid = np.empty((len(values), width), np.uint8)
    laid[:, : len(head)] = np.frombuffer(head, np.uint8)
    laid[:, len(head) :] = values
    buffers = [None, pa.py_buffer(laid.tobytes())]
    fixed = pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), len(values), buffers)
    return fixed.cast(pa.binary())
