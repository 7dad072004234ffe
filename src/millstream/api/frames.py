"""Errors as users meet them: their own lines and our message, without the frames in between.

A mistake in a flow is found deep inside, by a parser or the planner; where exactly says nothing to
who made it. Public methods let such frames go. With the environment variable MILLSTREAM_DEBUG, or
`debug=True` among the options of a run, all of them stay.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from types import FunctionType, TracebackType
from typing import Any, TypeVar

from millstream.errors import MillstreamError

_HERE = f"{Path(__file__).parents[1]}{os.sep}"
C = TypeVar("C", bound=type)


def plainly(cls: C) -> C:
    """Let errors of the public methods of a class show no frame of this package but one."""
    for name, member in list(vars(cls).items()):
        if isinstance(member, FunctionType) and not name.startswith("_"):
            setattr(cls, name, _plain(member))
        elif isinstance(member, property) and member.fget is not None and name[0] != "_":
            setattr(cls, name, property(_plain(member.fget), doc=member.__doc__))
    return cls


def _plain(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def told(*args: Any, **options: Any) -> Any:
        __tracebackhide__ = True  # for IPython and pytest
        try:
            return method(*args, **options)
        except MillstreamError as error:
            if options.get("debug") or os.environ.get("MILLSTREAM_DEBUG"):
                raise
            raise without_frames(error) from error.__cause__

    return told


def without_frames(error: BaseException) -> BaseException:
    """The same error, and what caused it, without the frames of this package."""
    seen: BaseException | None = error
    while seen is not None:
        seen.__traceback__ = _others(seen.__traceback__)
        seen.__suppress_context__ = True
        seen = seen.__cause__
    return error


def _others(traceback: TracebackType | None) -> TracebackType | None:
    if traceback is None:
        return None
    rest = _others(traceback.tb_next)
    if traceback.tb_frame.f_code.co_filename.startswith(_HERE):
        return rest
    return TracebackType(rest, traceback.tb_frame, traceback.tb_lasti, traceback.tb_lineno)
