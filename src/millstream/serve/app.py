"""The HTTP interface: one table of routes, all of them reading, every answer from one snapshot."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import unquote_to_bytes

from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.staticfiles import StaticFiles

from millstream.errors import CheckpointError
from millstream.serve import metrics
from millstream.serve.events import Listeners, Stream
from millstream.serve.guard import Asgi, Guard, Receive, Rules, Scope, Send
from millstream.serve.keys import LONGEST_TEXT
from millstream.serve.slates import Unknown
from millstream.serve.status import View
from millstream.serve.telling import to_json, told
from millstream.serve.workers import Workers

STATIC = Path(__file__).parent / "static"
MOST_ON_A_PAGE = 1000
_LOOK = 0.05  # seconds between looks for a new batch
_log = logging.getLogger(__name__)

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


def _answers(description: str, schema: dict[str, Any], *others: int) -> dict[int | str, Any]:
    """The responses of a route, for OpenAPI."""
    good = {"description": description, "content": {"application/json": {"schema": schema}}}
    return {200: good, **dict.fromkeys((400, 401, 403, 404, 429, *others), _ERROR)}


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
        "watermark": {"type": ["string", "null"]},
        "lag_seconds": {"type": ["number", "null"]},
        "sources": {"type": "array"},
        "operators": {"type": "array"},
        "ledger": {"type": "object"},
        "dead": {"type": "integer"},
        "late": {"type": "integer"},
        "hot": {"type": "object"},
        "graph": {"type": "object"},
        "history": {"type": "array"},
    },
    "required": ["flow", "batch", "at", "running", "complete", "sources", "operators", "graph"],
}

KeyText = Annotated[str | None, Query(max_length=LONGEST_TEXT)]
Prefix = Annotated[str, Query(max_length=LONGEST_TEXT)]
Limit = Annotated[int, Query(ge=1, le=MOST_ON_A_PAGE)]
Since = Annotated[int | None, Query(ge=-1, le=2**62)]


def make_app(view: View, rules: Rules | None = None) -> Asgi:
    """The application that shows a view, behind its guard."""
    rules = rules or Rules()
    listeners = Listeners(rules.listeners)
    pages = Workers("pages", 2, rules.requests)
    figures = Workers("figures", 1, rules.requests)  # which never wait for pages

    @contextlib.asynccontextmanager
    async def following(_: FastAPI) -> AsyncIterator[None]:
        task = asyncio.ensure_future(_follow(view, listeners))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            for one in (listeners, pages, figures):
                one.close()

    app = FastAPI(
        title="Millstream",
        description="Slates, status and changes of a flow. Everything is read-only.",
        version="1",
        openapi_url="/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=following,
    )
    app.state.listeners = listeners

    @app.get("/slates", responses=_answers("All updaters.", _UPDATERS), tags=["slates"])
    async def updaters() -> Response:
        """The updaters of the flow. `slates` counts stored rows: at least the number of slates."""
        snapshot = view.snapshot
        found = [
            {
                "name": one.name,
                "keys": list(one.keys),
                "slates": snapshot.rows(one),
                "ttl": one.ttl,
                "clock": one.clock,
            }
            for one in snapshot.updaters.values()
        ]
        return _json({"batch": snapshot.batch, "updaters": found})

    @app.get("/slates/{updater}", responses=_answers("A page.", _PAGE), tags=["slates"])
    async def page(
        updater: str,
        prefix: Prefix = "",
        after: KeyText = None,
        limit: Limit = 100,
    ) -> Response:
        """Slates in the order of their keys' texts; `next` is the `after` of the next page."""
        snapshot, name = view.snapshot, _text(updater)
        about = snapshot.updater(name)

        def read() -> bytes:
            found = snapshot.page(name, prefix, after, limit, rules.seconds, rules.page)
            slates = [told(about, slate) for slate in found.slates]
            page = {"updater": name, "batch": snapshot.batch, "slates": slates}
            return to_json({**page, "next": found.next})

        return _json(await pages.do(read))

    @app.get(
        "/slates/{updater}/{key:path}",
        responses=_answers("The slate of a key.", _ONE_SLATE, 414),
        tags=["slates"],
    )
    async def slate(updater: str, key: str) -> Response:
        """The slate of one key: a percent-encoded string, or JSON such as 42 or ["a",1]."""
        status, body = _find(view, updater, key)
        return Response(body, status, media_type="application/json")

    @app.get("/events", responses={200: _EVENTS, **_REFUSED}, tags=["changes"])
    async def events(
        request: Request,
        updater: KeyText = None,
        prefix: Prefix = "",
        since: Since = None,
    ) -> Any:
        """Changes as server-sent events; `Last-Event-ID` or `since` says from which batch on."""
        if updater is not None:
            view.snapshot.updater(updater)
        if listeners.count >= rules.listeners:
            raise HTTPException(429, "too many listeners", {"retry-after": "5"})
        last = request.headers.get("last-event-id", "")
        if last.removeprefix("-").isdecimal() and len(last) < 19:
            since = int(last)
        return _Streaming(Stream(view, listeners, rules, updater, prefix, since))

    @app.get("/status", responses=_answers("The status.", _STATUS), tags=["status"])
    async def status() -> Response:
        """What the flow is doing, and how fast."""
        return _json(await figures.do(lambda: to_json(view.status())))

    @app.get("/metrics", responses={200: _METRICS, **_REFUSED}, tags=["status"])
    async def prometheus() -> Response:
        """The same figures for Prometheus."""
        text = await figures.do(lambda: metrics.exposition(view.status()))
        return Response(text, media_type=metrics.CONTENT_TYPE)

    @app.get("/", include_in_schema=False)
    async def home() -> Response:
        return _page()

    if STATIC.is_dir():
        app.mount("/static", StaticFiles(directory=STATIC), name="static")
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(RequestValidationError, _on_bad_request)
    app.add_exception_handler(Unknown, _on_unknown)
    app.add_exception_handler(Exception, _on_defect)
    return Guard(_Lookups(view, app), rules)


class _Lookups:
    """Answers what is asked most, one slate, without going through the table of routes."""

    def __init__(self, view: View, app: Asgi) -> None:
        self.view, self.app = view, app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        parts = scope["path"].split("/", 3) if scope["type"] == "http" else []
        if len(parts) != 4 or parts[1] != "slates" or not parts[2]:
            await self.app(scope, receive, send)
            return
        status, body = _find(self.view, parts[2], parts[3])
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
        ]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def _find(view: View, updater: str, key: str) -> tuple[int, bytes]:
    """Status and body for one slate; updater and key are as they stand in the path."""
    if "/" in key:
        return 404, to_json({"error": "a slash inside a key is written %2F"})
    snapshot = view.snapshot
    try:
        name = _text(updater)
        text = _text(key) if len(key) <= 12 * LONGEST_TEXT else None
        if text is None or len(text) > LONGEST_TEXT:
            return 414, to_json({"error": "the key is too long"})
        found = snapshot.get_text(name, text)
    except HTTPException as error:
        return error.status_code, to_json({"error": error.detail})
    except Unknown as error:
        return 404, to_json({"error": str(error)})
    if found is None:
        return 404, to_json({"error": "there is no slate for this key"})
    return 200, to_json({**told(snapshot.updater(name), found), "batch": snapshot.batch})


_REFUSED: dict[int | str, Any] = dict.fromkeys((400, 401, 403, 404, 429), _ERROR)
_EVENTS = {
    "description": "Events `slate`, `batch` and `reset`, without end.",
    "content": {"text/event-stream": {"schema": {"type": "string"}}},
}
_METRICS = {
    "description": "Prometheus' text format.",
    "content": {"text/plain": {"schema": {"type": "string"}}},
}


class _Streaming(Response):
    """A response that writes itself."""

    def __init__(self, stream: Stream) -> None:
        super().__init__()
        self.stream = stream

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.stream(scope, receive, send)


async def _follow(view: View, listeners: Listeners) -> None:
    """Move the view to every new batch, on a thread of its own: slow pages do not hold it up."""
    loop, told = asyncio.get_running_loop(), None
    with ThreadPoolExecutor(1, "millstream-follow") as thread:
        while True:
            try:
                if await loop.run_in_executor(thread, view.follower.advance):
                    listeners.ring()
            except (CheckpointError, OSError) as error:
                view.follower.problem = str(error)
            if view.follower.problem != told:
                told = view.follower.problem
                if told is not None:
                    _log.error("the newest batch cannot be shown: %s", told)
            await asyncio.sleep(_LOOK)


def _json(value: Any, status: int = 200, headers: Any = None) -> Response:
    body = value if isinstance(value, bytes) else to_json(value)
    return Response(body, status, headers, media_type="application/json")


def _text(segment: str) -> str:
    """One percent-encoded segment of a path."""
    try:
        return unquote_to_bytes(segment).decode("utf-8")
    except UnicodeDecodeError:
        raise HTTPException(400, "the path is not UTF-8") from None


def _page() -> Response:
    try:
        text = (STATIC / "index.html").read_bytes()
    except FileNotFoundError:
        return _json({"error": "there is no page; see /status and /slates"}, 404)
    return Response(text, media_type="text/html; charset=utf-8")


async def _on_http_error(_: Request, error: Any) -> Response:
    return _json({"error": str(error.detail)}, error.status_code, error.headers)


async def _on_bad_request(_: Request, error: Any) -> Response:
    said = [f"{'.'.join(map(str, one['loc'][1:]))}: {one['msg']}" for one in error.errors()]
    return _json({"error": "; ".join(said)}, 400)


async def _on_unknown(_: Request, error: Any) -> Response:
    return _json({"error": str(error)}, 404)


async def _on_defect(*_: Any) -> Response:
    """Nothing of paths or code is told; the guard puts it into the log."""
    return _json({"error": "this could not be read; the server's log says why"}, 500)
