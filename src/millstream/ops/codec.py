"""Python values at rest: MessagePack, never pickle.

States of users' aggregates and keys and values of MapReduce jobs pass through here on their way to
a block or a segment. Tuples come back as lists, except in keys, where they must be hashable.
"""

from __future__ import annotations

from typing import Any

import msgspec

from millstream.errors import RunError

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder()
_IMMUTABLE = (int, float, str, bytes, bool, type(None))


def encode(value: Any) -> bytes:
    """A value as bytes; the error says what can be kept and what cannot."""
    try:
        return _encoder.encode(_plain(value) if type(value).__module__ == "numpy" else value)
    except (TypeError, OverflowError) as error:
        raise RunError(
            f"a value of type {type(value).__name__} cannot be stored ({error}); use numbers, "
            "strings, bytes, booleans, None, datetimes, and lists, tuples or dicts of them"
        ) from error


def decode(data: bytes) -> Any:
    """The inverse of `encode`."""
    return _decoder.decode(data)


def decode_key(data: bytes) -> Any:
    """Like `decode`, with every list as a tuple, so that the key can be hashed."""
    return as_key(_decoder.decode(data))


def as_key(value: Any) -> Any:
    """A key as users see it: lists become tuples."""
    if isinstance(value, list | tuple):
        return tuple(as_key(v) for v in value)
    return value


def fresh(value: Any) -> Any:
    """A copy a user's function may change freely."""
    return value if isinstance(value, _IMMUTABLE) else decode(encode(value))


def _plain(value: Any) -> Any:
    return value.tolist()
