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

_DIGITS = re.compile(r"-?[0-9]{1,19}", re.ASCII)


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
        if not _DIGITS.fullmatch(given) or not self.least <= int(given) <= self.most:
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
    ) -> None:
        super().__init__(path, endpoint, methods=["GET"])
        self.tag, self.answers, self.parameters = tag, answers, parameters
        too_long = [414] if self.param_convertors else []  # a name or key in the path
        self.refusals = (400, 401, 403, 404, *too_long, 429, 431)

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
            "responses": {"200": self.answers} | {str(one): _ERROR for one in self.refusals},
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


def _object(properties: dict[str, Any], required: Sequence[str] | None = None) -> dict[str, Any]:
    """An object; without `required` it has all its properties."""
    required = list(properties if required is None else required)
    return {"type": "object", "properties": properties, "required": required}


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


_TEXT, _INTEGER, _BOOLEAN = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}
_ANY_LIST, _ANY_OBJECT = {"type": "array"}, {"type": "object"}
_MAYBE_TEXT, _MAYBE_OBJECT = {"type": ["string", "null"]}, {"type": ["object", "null"]}

_ERROR = _answer("What is wrong with the request.", _object({"error": _TEXT}))
_SLATE = {"key": {}, "slate": {}, "ts": _MAYBE_TEXT}
_UPDATER = {
    "name": _TEXT,
    "keys": _ANY_LIST,
    "slates": _INTEGER,
    "ttl": {"type": ["integer", "null"]},
    "clock": _TEXT,
}
_VIEW = {"name": _TEXT, "columns": _ANY_LIST, "rows": _INTEGER}
_STATUS = {
    "flow": _TEXT,
    "batch": _INTEGER,
    "at": {"type": "number"},
    "running": _BOOLEAN,
    "complete": _BOOLEAN,
    "rates": _ANY_OBJECT,
    "state_bytes": _ANY_OBJECT,
    "watermark": _MAYBE_TEXT,
    "lag_seconds": {"type": ["number", "null"]},
    "sources": _ANY_LIST,
    "operators": _ANY_LIST,
    "queues": _ANY_LIST,
    "memory": _MAYBE_OBJECT,
    "ledger": _ANY_OBJECT,
    "dead": _INTEGER,
    "late": _INTEGER,
    "future": _INTEGER,
    "failed": _INTEGER,
    "hot": _ANY_OBJECT,
    "graph": _ANY_OBJECT,
    "history": _ANY_LIST,
    "answers": _MAYBE_OBJECT,
}
_STATUS_AT_LEAST = ("flow", "batch", "at", "running", "complete", "sources", "operators", "graph")

UPDATERS = _answer(
    "All updaters.", _object({"batch": _INTEGER, "updaters": _list(_object(_UPDATER))})
)
PAGE = _answer(
    "A page.",
    _object(
        {"updater": _TEXT, "batch": _INTEGER, "slates": _list(_object(_SLATE)), "next": _MAYBE_TEXT}
    ),
)
SLATE = _answer("The slate of a key.", _object({**_SLATE, "batch": _INTEGER}))
STATUS = _answer("The status.", _object(_STATUS, _STATUS_AT_LEAST))
EVENTS = _answer("Events `slate`, `batch` and `reset`, without end.", _TEXT, "text/event-stream")
VIEWS = _answer("All views.", _object({"batch": _INTEGER, "views": _list(_object(_VIEW))}))
ROWS = _answer(
    "A page.",
    _object({"view": _TEXT, "batch": _INTEGER, "rows": _list(_ANY_OBJECT), "next": _MAYBE_TEXT}),
)
ROW_EVENTS = _answer("Events `row`, `batch` and `reset`, without end.", _TEXT, "text/event-stream")
METRICS = _answer("Prometheus' text format.", _TEXT, "text/plain")
