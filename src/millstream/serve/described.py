"""What can be asked, as OpenAPI: made from the table of routes, so nothing is missing in it.

A route of the table says which parameters it has and what it answers; a parameter reads itself
from a request, or says what is wrong with it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Route

from millstream.serve.keys import LONGEST_TEXT

_INTEGER = re.compile(r"-?[0-9]{1,19}", re.ASCII)


@dataclass(frozen=True)
class Text:
    """A text, not longer than a key."""

    name: str

    @property
    def schema(self) -> dict[str, Any]:
        """Which values it has."""
        return {"type": "string", "maxLength": LONGEST_TEXT}

    def read(self, query: QueryParams) -> str | None:
        """What a request says; None if it says nothing."""
        given = query.get(self.name)
        if given is not None and len(given) > LONGEST_TEXT:
            raise HTTPException(400, f"{self.name}: at most {LONGEST_TEXT} characters")
        return given


@dataclass(frozen=True)
class Number:
    """A whole number in a range."""

    name: str
    least: int
    most: int

    @property
    def schema(self) -> dict[str, Any]:
        """Which values it has."""
        return {"type": "integer", "minimum": self.least, "maximum": self.most}

    def read(self, query: QueryParams) -> int | None:
        """What a request says; None if it says nothing."""
        given = query.get(self.name)
        if given is None:
            return None
        if not _INTEGER.fullmatch(given) or not self.least <= int(given) <= self.most:
            raise HTTPException(
                400, f"{self.name}: expected a whole number from {self.least} to {self.most}"
            )
        return int(given)


class Described(Route):
    """A route that says what it answers."""

    def __init__(
        self,
        path: str,
        endpoint: Callable[..., Any],
        tag: str,
        answers: dict[str, Any],
        parameters: Sequence[Text | Number] = (),
        refusals: Sequence[int] = (),
    ) -> None:
        super().__init__(path, endpoint, methods=["GET"])
        self.tag, self.answers = tag, answers
        self.parameters, self.refusals = parameters, (400, 401, 403, 404, 429, 431, *refusals)

    def describe(self) -> dict[str, Any]:
        """This route for OpenAPI."""
        names = sorted(self.param_convertors)
        inside = [{"name": name, "in": "path", "required": True} for name in names]
        return {
            "summary": self.name,
            "description": (self.endpoint.__doc__ or "").strip(),
            "tags": [self.tag],
            "parameters": [
                *({**one, "schema": {"type": "string"}} for one in inside),
                *({"name": p.name, "in": "query", "schema": p.schema} for p in self.parameters),
            ],
            "responses": {"200": self.answers}
            | {str(status): _ERROR for status in sorted(self.refusals)},
        }


def describe(routes: Sequence[BaseRoute]) -> dict[str, Any]:
    """A table of routes as OpenAPI."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Millstream",
            "description": "Slates, views, status and changes of a flow. Everything is read-only.",
            "version": "1",
        },
        "paths": {
            route.path_format: {"get": route.describe()}
            for route in routes
            if isinstance(route, Described)
        },
    }


def _answer(description: str, schema: dict[str, Any], kind: str = "application/json") -> Any:
    return {"description": description, "content": {kind: {"schema": schema}}}


_ERROR = {
    "description": "What is wrong with the request.",
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "properties": {"error": {"type": "string"}},
                "required": ["error"],
            }
        }
    },
}


_SLATE = {
    "type": "object",
    "properties": {"key": {}, "slate": {}, "ts": {"type": ["string", "null"]}},
    "required": ["key", "slate", "ts"],
}
_ONE_SLATE = {
    "type": "object",
    "properties": {**_SLATE["properties"], "batch": {"type": "integer"}},  # type: ignore[dict-item]
    "required": ["key", "slate", "ts", "batch"],
}
_PAGE = {
    "type": "object",
    "properties": {
        "updater": {"type": "string"},
        "batch": {"type": "integer"},
        "slates": {"type": "array", "items": _SLATE},
        "next": {"type": ["string", "null"]},
    },
    "required": ["updater", "batch", "slates", "next"],
}
_UPDATERS = {
    "type": "object",
    "properties": {
        "batch": {"type": "integer"},
        "updaters": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "name": {"type": "string"},
                    "keys": {"type": "array"},
                    "slates": {"type": "integer"},
                    "ttl": {"type": ["integer", "null"]},
                    "clock": {"type": "string"},
                },
                "required": ["name", "keys", "slates", "ttl", "clock"],
            },
        },
    },
    "required": ["batch", "updaters"],
}
_STATUS = {
    "type": "object",
    "properties": {
        "flow": {"type": "string"},
        "batch": {"type": "integer"},
        "at": {"type": "number"},
        "running": {"type": "boolean"},
        "complete": {"type": "boolean"},
        "rates": {"type": "object"},
        "state_bytes": {"type": "object"},
        "watermark": {"type": ["string", "null"]},
        "lag_seconds": {"type": ["number", "null"]},
        "sources": {"type": "array"},
        "operators": {"type": "array"},
        "queues": {"type": "array"},
        "memory": {"type": ["object", "null"]},
        "ledger": {"type": "object"},
        "dead": {"type": "integer"},
        "late": {"type": "integer"},
        "future": {"type": "integer"},
        "failed": {"type": "integer"},
        "hot": {"type": "object"},
        "graph": {"type": "object"},
        "history": {"type": "array"},
        "answers": {"type": ["object", "null"]},
    },
    "required": ["flow", "batch", "at", "running", "complete", "sources", "operators", "graph"],
}

_VIEWS = {
    "type": "object",
    "properties": {
        "batch": {"type": "integer"},
        "views": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "name": {"type": "string"},
                    "columns": {"type": "array"},
                    "rows": {"type": "integer"},
                },
                "required": ["name", "columns", "rows"],
            },
        },
    },
    "required": ["batch", "views"],
}
_ROWS = {
    "type": "object",
    "properties": {
        "view": {"type": "string"},
        "batch": {"type": "integer"},
        "rows": {"type": "array", "items": {"type": "object"}},
        "next": {"type": ["string", "null"]},
    },
    "required": ["view", "batch", "rows", "next"],
}

UPDATERS = _answer("All updaters.", _UPDATERS)
PAGE = _answer("A page.", _PAGE)
SLATE = _answer("The slate of a key.", _ONE_SLATE)
STATUS = _answer("The status.", _STATUS)
EVENTS = _answer(
    "Events `slate`, `batch` and `reset`, without end.", {"type": "string"}, "text/event-stream"
)
VIEWS = _answer("All views.", _VIEWS)
ROWS = _answer("A page.", _ROWS)
ROW_EVENTS = _answer(
    "Events `row`, `batch` and `reset`, without end.", {"type": "string"}, "text/event-stream"
)
METRICS = _answer("Prometheus' text format.", {"type": "string"}, "text/plain")
