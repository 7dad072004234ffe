"""A schema registry for tests: a real HTTP server that speaks Confluent's protocol."""

from __future__ import annotations

import base64
import json
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.local import Handler, LocalServer


class Registry(LocalServer):
    """Schemas by number and by subject; with `auth` only for who brings it."""

    def __init__(self, auth: str | None = None) -> None:
        self.auth = auth
        self.schemas: dict[int, dict[str, Any]] = {}
        self.subjects: dict[str, list[int]] = {}
        self.asked: list[str] = []
        self.failing = 0  # so many answers are errors of the server
        super().__init__(_handler(self))

    def add(
        self, subject: str, schema: str, kind: str = "AVRO", serialized: str | None = None
    ) -> int:
        """Register a schema; gives its number, the same for the same schema."""
        for number, known in self.schemas.items():  # noqa: B007
            if (known["schema"], known["kind"]) == (schema, kind):
                break
        else:
            number = len(self.schemas) + 1
            self.schemas[number] = {"schema": schema, "kind": kind, "serialized": serialized}
        versions = self.subjects.setdefault(subject, [])
        if number not in versions:
            versions.append(number)
        return number


def _handler(registry: Registry) -> type[Handler]:
    class Registering(Handler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            words = [unquote(word) for word in parts.path.strip("/").split("/")]
            serialized = parse_qs(parts.query).get("format") == ["serialized"]
            match words:
                case ["schemas", "ids", number] if int(number) in registry.schemas:
                    self._schema(int(number), serialized)
                case ["schemas", "ids", _]:
                    self._answer(404, {"error_code": 40403, "message": "Schema not found"})
                case ["subjects", subject, "versions", _] if subject in registry.subjects:
                    self._schema(registry.subjects[subject][-1], serialized)
                case _:
                    self._answer(404, {"error_code": 40401, "message": "Subject not found"})

        def do_POST(self) -> None:
            subject = unquote(self.path.split("/")[2])
            given = json.loads(self.body())
            self._answer(200, {"id": registry.add(subject, given["schema"])})

        def _schema(self, number: int, serialized: bool) -> None:
            known = registry.schemas[number]
            text = known["serialized"] if serialized else known["schema"]
            told = {"id": number, "version": 1, "schema": text}
            kind = {} if known["kind"] == "AVRO" else {"schemaType": known["kind"]}
            self._answer(200, {**told, **kind})

        def _answer(self, code: int, body: Any) -> None:
            registry.asked.append(self.path)
            if registry.failing:
                registry.failing -= 1
                code, body = 500, {"error_code": 50001, "message": "the store is away"}
            wanted = base64.b64encode((registry.auth or "").encode()).decode()
            if registry.auth and self.headers.get("Authorization") != f"Basic {wanted}":
                code, body = 401, {"error_code": 401, "message": "Unauthorized"}
            kind = "application/vnd.schemaregistry.v1+json"
            self.answer(code, {"Content-Type": kind}, json.dumps(body).encode())

    return Registering
