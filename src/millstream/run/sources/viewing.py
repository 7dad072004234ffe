"""One look at a directory for several flows that read it.

Flows that run together and follow the same files see the same of them if one listing serves all who
ask within a moment. So they take the same pieces, and `run/tasks/once.py` reads these once. Who is
behind catches up by itself, and is with the others from the batch on that brings it to the end of a
look.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from millstream.api.sources import Files
from millstream.graph import nodes
from millstream.io.formats import Format
from millstream.run.sources.files.listing import Seen, list_seen
from millstream.run.sources.trackers import make_tracker
from millstream.run.sources.tracking import Tracker
from millstream.state.manifests import SourceState
from millstream.state.storage import Storage

_FRESH = 0.05  # seconds for which a look serves others


class View:
    """The files of a source, as the last look showed them."""

    def __init__(self, spec: Files, clock: Callable[[], float] = time.monotonic) -> None:
        self.spec, self._clock = spec, clock
        self._turn = threading.Lock()
        self._until = 0.0
        self._seen: list[Seen] = []

    def __call__(self) -> list[Seen]:
        with self._turn:
            if self._clock() >= self._until:
                self._seen = list_seen(self.spec)
                self._until = self._clock() + _FRESH
            return list(self._seen)


class Views:
    """The sources that several flows have."""

    def __init__(self, specs: Iterable[Any]) -> None:
        files = [spec for spec in specs if isinstance(spec, Files)]
        again = (spec for at, spec in enumerate(files) if files[:at].count(spec) == 1)
        self._views = [View(spec) for spec in again]

    def make_tracker(
        self, number: int, node: nodes.Source, fmt: Format, checkpoint: Storage, state: SourceState
    ) -> Tracker:
        """The tracker of a source, which looks at its files together with others."""
        view = next((one for one in self._views if one.spec == node.spec), None)
        return make_tracker(number, node, fmt, checkpoint, state, listing=view)
