"""Errors as users meet them: their own lines and our message, without the frames in between.

A mistake in a flow is found deep inside, by a parser or the planner; where exactly says nothing to
who made it. Public methods let such frames go. With the environment variable MILLSTREAM_DEBUG, or
`debug=True` among the options of a run, all of them stay.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Callable
from pathlib import Path
from types import FunctionType, TracebackType
from typing import Any, TypeVar, cast

from millstream.errors import ConfigError, MillstreamError

_HERE = f"{Path(__file__).parents[1]}{os.sep}"
C = TypeVar("C", bound=Callable[..., Any])


class WrongCall(ConfigError, TypeError):
    """A function was called with other arguments than it takes."""


def plainly(cls: C) -> C:
    """Let errors of a function, or of the public methods of a class, show one frame of ours."""
    if not isinstance(cls, type):
        return cast(C, _plain(cls))
    for name, member in list(vars(cls).items()):
        if isinstance(member, FunctionType) and name == "__init__":
            setattr(cls, name, _plain(member, cls.__name__))
        elif isinstance(member, FunctionType) and not name.startswith("_"):
            setattr(cls, name, _plain(member))
        elif isinstance(member, property) and member.fget is not None and name[0] != "_":
            setattr(cls, name, property(_plain(member.fget), doc=member.__doc__))
    return cls


def _plain(method: Callable[..., Any], name: str | None = None) -> Callable[..., Any]:
    called = name or method.__name__

    @functools.wraps(method)
    def told(*args: Any, **options: Any) -> Any:
        __tracebackhide__ = True  # for IPython and pytest
        try:
            return method(*args, **options)
        except MillstreamError as error:
            if options.get("debug") or os.environ.get("MILLSTREAM_DEBUG"):
                raise
            raise without_frames(error) from error.__cause__
        except TypeError as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise  # of something inside, not of the call
            said = re.sub(r"^[\w.<>]*?\w+\(\)", f"{called}()", str(error))
            raise WrongCall(f"{said}; it takes {called}{_takes(method)}") from None

    return told


def _takes(method: Callable[..., Any]) -> str:
    """The names of arguments and their defaults."""
    empty = inspect.Parameter.empty
    parameters = inspect.signature(method).parameters.values()
    named = [one.replace(annotation=empty) for one in parameters if one.name != "self"]
    return str(inspect.Signature(named))


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
