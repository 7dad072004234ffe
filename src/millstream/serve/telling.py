"""Slates and times as JSON, whatever a slate holds."""

from __future__ import annotations

import base64
from typing import Any

import msgspec

from millstream.ops.zones import timestamp
from millstream.serve.slates import Slate, Updater


def to_json(value: Any) -> bytes:
    """Any value a slate can hold as JSON; what JSON cannot say becomes text."""
    try:
        return _encoder.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return _encoder.encode(_plain(value, 0))


def iso(micros: int | None) -> str | None:
    """A time as ISO 8601 in UTC; None if it is none that a calendar has."""
    if micros is None:
        return None
    try:
        return timestamp(micros).isoformat().replace("+00:00", "Z")
    except OverflowError:
        return None


def told(updater: Updater, slate: Slate) -> dict[str, Any]:
    """A slate as it is told to programs."""
    return {"key": slate.key, "slate": content(updater, slate.slate), "ts": iso(slate.ts)}


def content(updater: Updater, value: Any) -> Any:
    """What a slate holds; bytes of a codec that is not known here are told as such."""
    if isinstance(value, bytes):
        return {"codec": updater.codec, "base64": base64.b64encode(value).decode()}
    return value


def _other(value: Any) -> Any:
    if isinstance(value, msgspec.msgpack.Ext):
        return {"ext": value.code, "base64": base64.b64encode(value.data).decode()}
    return str(value)


_encoder = msgspec.json.Encoder(enc_hook=_other)
_DEEPEST = 200


def _plain(value: Any, depth: int) -> Any:
    """A copy in which every key is text and nothing is nested beyond reason."""
    if depth > _DEEPEST:
        return str(type(value).__name__)
    if isinstance(value, dict):
        return {
            k if isinstance(k, str) else _name(k): _plain(v, depth + 1) for k, v in value.items()
        }
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(one, depth + 1) for one in value]
    try:
        _encoder.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return str(value)
    return value


def _name(key: Any) -> str:
    if isinstance(key, bytes):
        return base64.b64encode(key).decode()
    return str(key)
