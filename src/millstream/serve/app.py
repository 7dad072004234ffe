"""The HTTP interface: one table of routes, all of them reading, every answer from one snapshot."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from millstream.errors import CheckpointError, ConfigError
from millstream.ops.expressions import Expression, parse_bounded
from millstream.serve import described, metrics
from millstream.serve.described import Described, Number, Text
from millstream.serve.events import Listeners, Stream, row_events, slate_events
from millstream.serve.guard import Asgi, Guard, Rules
from millstream.serve.keys import LONGEST_TEXT
from millstream.serve.slates import Unknown
from millstream.serve.status import Served
from millstream.serve.telling import to_json, told
from millstream.serve.views import BadRequest, check_condition, place_of, read_page
from millstream.serve.workers import Workers

STATIC = Path(__file__).parent / "static"
MOST_ON_A_PAGE = 1000
_ON_A_PAGE = 100  # unless told otherwise
_LOOK = 0.05  # seconds between looks for a new batch
_LONGEST = 12 * LONGEST_TEXT  # of four bytes each, and percent-encoded
_log = logging.getLogger(__name__)

_PREFIX, _AFTER, _UPDATER = Text("prefix"), Text("after"), Text("updater")
_WHERE = Text("where")
_LIMIT, _SINCE = Number("limit", 1, MOST_ON_A_PAGE), Number("since", -1, 2**62)


def make_app(view: Served, rules: Rules | None = None) -> Asgi:
    """The application that shows a view, behind its guard."""
    rules = rules or Rules()
    interface = Interface(view, rules)

    @contextlib.asynccontextmanager
    async def following(_: Starlette) -> AsyncIterator[None]:
        task = asyncio.ensure_future(_follow(view, interface.listeners))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            interface.close()

    app = Starlette(
        routes=interface.routes(),
        lifespan=following,
        exception_handlers={
            HTTPException: _on_http_error,
            Unknown: partial(_on_mistake, 404),
            BadRequest: partial(_on_mistake, 400),
            Exception: _on_defect,
        },
    )
    app.router.redirect_slashes = False
    return Guard(app, rules)


class Interface:
    """What can be asked of a view."""

    def __init__(self, view: Served, rules: Rules) -> None:
        self.view, self.rules = view, rules
        self.listeners = Listeners(rules.listeners)
        self._pages = Workers("pages", rules.requests)
        self._long_pages = Workers("long-pages", rules.requests)  # nothing else waits for them
        self._figures = Workers("figures", rules.requests)

    def routes(self) -> list[BaseRoute]:
        """The table; what is asked most comes first."""
        return [
            Described("/slates/{updater}/{key:path}", self.slate, "slates", described.SLATE),
            Described("/slates", self.updaters, "slates", described.UPDATERS),
            Described(
                "/slates/{updater}", self.page, "slates", described.PAGE, (_PREFIX, _AFTER, _LIMIT)
            ),
            Described(
                "/events", self.events, "changes", described.EVENTS, (_UPDATER, _PREFIX, _SINCE)
            ),
            Described("/views", self.views, "views", described.VIEWS),
            Described(
                "/views/{view}", self.rows, "views", described.ROWS, (_WHERE, _AFTER, _LIMIT)
            ),
            Described(
                "/views/{view}/events",
                self.row_events,
                "changes",
                described.ROW_EVENTS,
                (_WHERE, _SINCE),
            ),
            Described("/status", self.status, "status", described.STATUS),
            Described("/metrics", self.metrics, "status", described.METRICS),
            Route("/openapi.json", self.openapi),
            Route("/", self.home),
            Mount("/static", StaticFiles(directory=STATIC, check_dir=False)),
        ]

    def close(self) -> None:
        """Nobody asks any more."""
        for one in (self.listeners, self._pages, self._long_pages, self._figures):
            one.close()

    async def slate(self, request: Request) -> Response:
        """The slate of one key: a percent-encoded string, or JSON such as 42 or ["a",1]."""
        key = request.path_params["key"]
        if "/" in key:
            raise HTTPException(404, "a slash inside a key is written %2F")
        snapshot, name = self.view.snapshot, _text(request.path_params["updater"])
        found = snapshot.get_text(name, _text(key))
        if found is None:
            raise HTTPException(404, "there is no slate for this key")
        about = snapshot.updater(name)
        return _json({**told(about, found), "batch": snapshot.batch_of(about)})

    async def updaters(self, _: Request) -> Response:
        """The updaters of the flow. `slates` counts stored rows: at least the number of slates."""
        snapshot = self.view.snapshot
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

    async def page(self, request: Request) -> Response:
        """Slates in the order of their keys' texts; `next` is the `after` of the next page."""
        query, rules = request.query_params, self.rules
        prefix, after = _PREFIX.read(query), _AFTER.read(query)
        limit = _LIMIT.read(query) or _ON_A_PAGE
        snapshot, name = self.view.snapshot, _text(request.path_params["updater"])
        about = snapshot.updater(name)

        def read() -> bytes:
            found = snapshot.page(name, prefix or "", after, limit, rules.seconds, rules.page)
            slates = [told(about, slate) for slate in found.slates]
            page = {"updater": name, "batch": snapshot.batch_of(about), "slates": slates}
            return to_json({**page, "next": found.next})

        pages = self._pages if limit <= _ON_A_PAGE else self._long_pages
        return _json(await pages.do(read))

    async def events(self, request: Request) -> Stream:
        """Changes as server-sent events; `Last-Event-ID` or `since` says from which batch on."""
        query = request.query_params
        updater, prefix = _UPDATER.read(query), _PREFIX.read(query)
        if updater is not None:
            self.view.snapshot.updater(updater)
        tell = partial(slate_events, self.listeners, updater, prefix or "")
        return Stream(self.view, self.listeners, self.rules, tell, self._since(request))

    async def views(self, _: Request) -> Response:
        """The views of the flow. `rows` counts stored rows: at least the number of rows."""
        snapshot = self.view.snapshot
        found = [
            {
                "name": one.view,
                "columns": [{"name": name, "type": kind} for name, kind in one.columns],
                "rows": snapshot.rows(one),
            }
            for one in snapshot.views.values()
        ]
        return _json({"batch": snapshot.batch, "views": found})

    async def rows(self, request: Request) -> Response:
        """Rows of a view that a condition lets through; `next` is the `after` of the next page."""
        query, rules = request.query_params, self.rules
        snapshot, name = self.view.snapshot, _text(request.path_params["view"])
        about, after = snapshot.view(name), _AFTER.read(query)
        where, place = self._condition(request), None if after is None else place_of(after)
        limit = _LIMIT.read(query) or _ON_A_PAGE

        def read() -> bytes:
            found = read_page(snapshot, about, where, place, limit, rules.seconds, rules.page)
            page = {"view": about.view, "batch": snapshot.batch, "rows": found.rows.to_pylist()}
            return to_json({**page, "next": found.next})

        pages = self._pages if limit <= _ON_A_PAGE and where is None else self._long_pages
        return _json(await pages.do(read))

    async def row_events(self, request: Request) -> Stream:
        """Changes of a view as server-sent events: rows with `op` +, - or u, and u with `before`.

        `Last-Event-ID` or `since` says from which batch on.
        """
        about = self.view.snapshot.view(_text(request.path_params["view"]))
        tell = partial(row_events, self.listeners, about.view, self._condition(request))
        return Stream(self.view, self.listeners, self.rules, tell, self._since(request))

    def _condition(self, request: Request) -> Expression | None:
        """What `where` says, as a tree of what is computed in a bounded time."""
        text = _WHERE.read(request.query_params)
        if text is None:
            return None
        try:
            where = parse_bounded(text)
        except ConfigError as error:
            raise BadRequest(f"where: {error}") from None
        check_condition(self.view.snapshot.view(_text(request.path_params["view"])), where)
        return where

    def _since(self, request: Request) -> int | None:
        """From which batch on a listener wants to be told, if there is room for it."""
        since = _SINCE.read(request.query_params)
        if self.listeners.count >= self.rules.listeners:
            raise HTTPException(429, "too many listeners", {"retry-after": "5"})
        last = request.headers.get("last-event-id", "")
        if last.removeprefix("-").isdecimal() and len(last) < 19:
            since = int(last)
        return since

    async def status(self, _: Request) -> Response:
        """What the flow is doing, and how fast."""
        return _json(await self._figures.do(lambda: to_json(self.view.status())))

    async def metrics(self, _: Request) -> Response:
        """The same figures for Prometheus."""
        text = await self._figures.do(lambda: metrics.exposition(self.view.status()))
        return Response(text, media_type=metrics.CONTENT_TYPE)

    async def openapi(self, _: Request) -> Response:
        """This table, for programs."""
        return _json(described.describe(self.routes()))

    async def home(self, _: Request) -> Response:
        """The page."""
        try:
            text = (STATIC / "index.html").read_bytes()
        except FileNotFoundError:
            raise HTTPException(404, "there is no page; see /status and /slates") from None
        return Response(text, media_type="text/html; charset=utf-8")


async def _follow(view: Served, listeners: Listeners) -> None:
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
        text = unquote_to_bytes(segment).decode("utf-8") if len(segment) <= _LONGEST else None
    except UnicodeDecodeError:
        raise HTTPException(400, "the path is not UTF-8") from None
    if text is None or len(text) > LONGEST_TEXT:
        raise HTTPException(414, f"the key or name is longer than {LONGEST_TEXT} characters")
    return text


async def _on_http_error(_: Request, error: Any) -> Response:
    return _json({"error": str(error.detail)}, error.status_code, error.headers)


async def _on_mistake(status: int, _: Request, error: Any) -> Response:
    return _json({"error": str(error)}, status)


async def _on_defect(*_: Any) -> Response:
    """Nothing of paths or code is told; the guard puts it into the log."""
    return _json({"error": "this could not be read; the server's log says why"}, 500)
