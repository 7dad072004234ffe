"""The Spark that a flow runs on, or several together: opened by the first, closed by the last."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from millstream.plan.stages import Plan
from millstream.run.spark.carrying import Carrier, Riding
from millstream.run.spark.cores import Decided, wait_for_cores
from millstream.run.spark.onframes import OnFrames
from millstream.run.spark.onspark import OnSpark
from millstream.run.spark.remote import is_remote, open_remote
from millstream.run.spark.session import (
    check_cluster,
    close_session,
    end_java,
    has_session,
    open_session,
    remove_scratch,
)
from millstream.settings import Settings

OnAny = OnSpark | OnFrames
# Jobs of flows that need all cores take turns, and small ones do not wait behind them.
_IN_TURNS = {"spark.scheduler.mode": "FAIR"}


@dataclass(frozen=True)
class Opened:
    """A session and the cores it has; over Connect who runs something there finds out."""

    session: Any
    decided: Decided | None


class Spark:
    """One session for so many flows; each opens and closes it once."""

    def __init__(self, name: str, settings: Settings, users: int = 1) -> None:
        self._name, self.users, self._several = name, users, users > 1
        turns = _IN_TURNS if self._several else {}
        self._settings = replace(settings, spark={**turns, **settings.spark})
        self._overdue: set[int] = set()  # users whose time to end is over
        self._ours = False  # known as soon as there is a session
        self._scratch: Path | None = None
        self._carrier: Carrier | None = None
        self._opened: Opened | BaseException | None = None
        self._opening, self._counting = threading.Lock(), threading.Lock()

    def open(self, scratch: Path) -> Opened:
        """Open it, or give what another has opened; what went wrong for one is raised for all.

        `scratch`: where Spark keeps blocks on disk if it works for one flow alone. For several that
        is its own affair, since another run may take the checkpoint of one of them before its end.
        """
        with self._opening:
            if self._opened is None:
                try:
                    self._opened = self._open(None if self._several else scratch)
                except BaseException as error:
                    self._opened = error
            if isinstance(self._opened, BaseException):
                raise self._opened
            return self._opened

    def _open(self, scratch: Path | None) -> Opened:
        settings = self._settings
        if is_remote(settings):
            session, self._ours = open_remote(self._name, settings)
            return Opened(session, None)
        session, ours = open_session(self._name, settings, scratch)
        self._ours, self._scratch = ours, scratch
        try:
            decided = wait_for_cores(session, settings)
            if ours:
                check_cluster(session)
            if self._several and settings.runner != "frames":
                self._carrier = Carrier(session)
        except BaseException:
            if ours:
                close_session(session)
            raise
        return Opened(session, decided)

    def executor(self, session: Any, plan: Plan, checkpoint: Path, timeout: int | None) -> OnAny:
        """What runs the tasks of a plan; `timeout` of its functions, in microseconds."""
        if is_remote(self._settings):
            return OnFrames(session, plan, checkpoint, timeout)
        if self._settings.runner == "frames":
            from pyspark.sql import SparkSession

            frames = session if hasattr(session, "createDataFrame") else SparkSession(session)
            return OnFrames(frames, plan, checkpoint, timeout)
        if self._carrier is not None:
            return Riding(session, plan, checkpoint, timeout, self._carrier)
        return OnSpark(session, plan, checkpoint, timeout)

    def give_up(self, user: object, executor: OnAny | None) -> None:
        """A flow does not end in time: end its job, or all, if no other flow works here."""
        with self._counting:
            self._overdue.add(id(user))
            alone = len(self._overdue) >= self.users
        here = not is_remote(self._settings) and (self._ours or not has_session())
        if alone and here:
            end_java(kill=True)
        elif executor is not None:
            executor.cancel()

    def close(self, user: object, executor: OnAny | None) -> None:
        """A flow needs it no more; the last one closes what was opened here."""
        with self._counting:
            self.users -= 1
            self._overdue.discard(id(user))
            last = self.users == 0
        if executor is not None and not (last and self._ours):
            executor.close()
        if not last:
            return
        if self._carrier is not None:
            self._carrier.close()
        if isinstance(self._opened, Opened) and self._ours:
            session = self._opened.session
            session.stop() if is_remote(self._settings) else close_session(session)
            if self._scratch is not None:
                remove_scratch(self._scratch)
