"""A schema registry that speaks Confluent's HTTP protocol: schemas by number, and by subject.

A value that was written with a registry begins with a zero byte and the number of its schema.
Schemas never change under their number, so each is asked for once per process.
"""

from __future__ import annotations

import base64
import json
import ssl
import struct
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from typing import Any

from millstream.errors import ConfigError, RunError

MAGIC = 0
_HEAD = struct.Struct(">bI")
_TYPE = "application/vnd.schemaregistry.v1+json"
_TRIES, _PAUSE, _ANSWER = 4, 0.25, 10.0
_LARGEST = 16 * 1024 * 1024


@dataclass(frozen=True)
class Schema:
    """A schema as the registry has it; `references` are others it names, with their texts."""

    text: str
    kind: str = "AVRO"
    number: int = 0
    references: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Registry:
    """Where a registry is; user and password are not shown."""

    url: str = field(repr=False)
    auth: str | None = field(default=None, repr=False)  # "user:password"
    ca: str | None = None  # a file of certificates

    @property
    def shown(self) -> str:
        """Its address without user and password."""
        parts = urllib.parse.urlsplit(self.url)
        return f"{parts.scheme}://{parts.hostname}:{parts.port}{parts.path}"

    def latest(self, subject: str) -> Schema:
        """The newest schema of a subject."""
        return self._schema(f"/subjects/{urllib.parse.quote(subject, '')}/versions/latest")

    def by_number(self, number: int) -> Schema:
        """A schema by its number."""
        key = (self.url, number)
        if key not in _known:
            _known[key] = self._schema(f"/schemas/ids/{number}", number)
        return _known[key]

    def register(self, subject: str, text: str) -> int:
        """The number of a schema under a subject, which is given one if it is new."""
        asked = json.dumps({"schema": text, "schemaType": "AVRO"}).encode()
        path = f"/subjects/{urllib.parse.quote(subject, '')}/versions"
        return int(self._ask(path, asked)["id"])

    def _schema(self, path: str, number: int = 0) -> Schema:
        found = self._ask(path)
        if found.get("schemaType") == "PROTOBUF":  # its descriptor, not its text
            found = {**found, "schema": self._ask(f"{path}?format=serialized")["schema"]}
        references = tuple(
            (str(one["name"]), self._reference(one, found)) for one in found.get("references") or ()
        )
        kind = str(found.get("schemaType") or "AVRO")
        return Schema(str(found["schema"]), kind, int(found.get("id", number)), references)

    def _reference(self, one: dict[str, Any], of: dict[str, Any]) -> str:
        how = "?format=serialized" if of.get("schemaType") == "PROTOBUF" else ""
        subject = urllib.parse.quote(one["subject"], "")
        return str(self._ask(f"/subjects/{subject}/versions/{int(one['version'])}{how}")["schema"])

    def _ask(self, path: str, body: bytes | None = None) -> Any:
        request = urllib.request.Request(self._base() + path, body, {"Accept": _TYPE})
        if body is not None:
            request.add_header("Content-Type", _TYPE)
        if (auth := self._secret()) is not None:
            request.add_header("Authorization", "Basic " + base64.b64encode(auth).decode())
        for again in range(_TRIES):
            try:
                with _open(request, self.ca) as answer:
                    return json.loads(answer.read(_LARGEST))
            except urllib.error.HTTPError as error:
                told = _told(error)
                if error.code in (401, 403):
                    raise ConfigError(
                        f"schema registry {self.shown}: {told}; see registry.auth in options="
                    ) from None
                if error.code < 500 and error.code != 429:
                    raise NotThere(f"schema registry {self.shown}: {told}") from None
            except (OSError, ValueError) as error:
                told = str(getattr(error, "reason", None) or error)
            if again < _TRIES - 1:
                time.sleep(_PAUSE * 2**again)
        raise RunError(f"schema registry {self.shown} does not answer: {told}")

    def _base(self) -> str:
        parts = urllib.parse.urlsplit(self.url)
        host = parts.netloc.rpartition("@")[2]
        return urllib.parse.urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))

    def _secret(self) -> bytes | None:
        if self.auth is not None:
            return self.auth.encode()
        parts = urllib.parse.urlsplit(self.url)
        if parts.username is None:
            return None
        user, password = map(urllib.parse.unquote, (parts.username, parts.password or ""))
        return f"{user}:{password}".encode()


class NotThere(RunError):
    """The registry does not have what it was asked for, or does not take it."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """What a registry answers must come from the registry."""

    def redirect_request(self, *given: Any) -> None:
        return None


def _open(request: urllib.request.Request, ca: str | None) -> Any:
    handlers: list[Any] = [_NoRedirect]
    if request.type == "https":
        context = ssl.create_default_context(cafile=ca)
        handlers.append(urllib.request.HTTPSHandler(context=context))
    return urllib.request.build_opener(*handlers).open(request, timeout=_ANSWER)


def _told(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.loads(error.read(_LARGEST))["message"])[:500]
    except (ValueError, KeyError, TypeError, OSError):
        return f"it answered {error.code}"


def check_url(step: str, url: Any) -> None:
    """Refuse what is no address; shows nothing of it."""
    try:
        parts = urllib.parse.urlsplit(url)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port is not None
    except (ValueError, TypeError, AttributeError):
        good = False
    if not good:
        raise ConfigError(f'{step}(registry=): expected an address like "http://host:8081"')


def head_of(value: bytes) -> int:
    """The number of the schema that a value was written with."""
    if len(value) < _HEAD.size or value[0] != MAGIC:
        raise ValueError("it does not begin with the number of a schema, as the registry has it")
    number: int = _HEAD.unpack_from(value)[1]
    return number


def with_head(number: int, data: bytes) -> bytes:
    """A value that says with which schema it was written."""
    return _HEAD.pack(MAGIC, number) + data


HEAD = _HEAD.size
_known: dict[tuple[str, int], Schema] = {}
