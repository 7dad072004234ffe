"""What a user's function reads of what it is given, as far as its bytecode tells.

Loops that call functions per record make Python values of Arrow columns. A column nobody reads, or
a time nobody looks at, need not be made. Only what is certain counts: a parameter whose every use
is `record["name"]`, `record.get("name")` or `"name" in record` reads these columns and no others.
Anything else (it is handed on, gone through, assigned, captured) means that all may be read, and
so does any bytecode that is not known here.
"""

from __future__ import annotations

import dis
from collections.abc import Callable
from functools import lru_cache
from types import CodeType, FunctionType, MethodType
from typing import Any

_LOADS = {"LOAD_FAST", "LOAD_FAST_BORROW"}
_CALLS = {"PRECALL", "CALL"}
_SEES_ALL = {"locals", "vars", "eval", "exec", "dir"}  # builtins that look at local variables


def columns_read(fn: Callable[..., Any], place: int) -> frozenset[str] | None:
    """The columns a function reads of the record it gets at a place; None: perhaps all."""
    found = _parameter(fn, place)
    return None if found is None else _columns(*found)


def is_read(fn: Callable[..., Any], place: int) -> bool:
    """Whether a function may look at what it gets at a place."""
    found = _parameter(fn, place)
    return found is None or _touched(*found)


def _parameter(fn: Any, place: int) -> tuple[CodeType, str] | None:
    """The code of a function and the name of a parameter, if both are as they look."""
    if isinstance(fn, MethodType):
        fn, place = fn.__func__, place + 1
    if not isinstance(fn, FunctionType):
        return None
    code = fn.__code__
    if place >= code.co_argcount or _SEES_ALL.intersection(code.co_names):
        return None
    name = code.co_varnames[place]
    return None if name in code.co_cellvars else (code, name)


@lru_cache(maxsize=256)
def _touched(code: CodeType, name: str) -> bool:
    return any(_names(step, name) for step in dis.get_instructions(code))


@lru_cache(maxsize=256)
def _columns(code: CodeType, name: str) -> frozenset[str] | None:
    steps = list(dis.get_instructions(code))
    read = set()
    for at, step in enumerate(steps):
        if _names(step, name):
            column = _column(steps, at) if step.opname in _LOADS else None
            if column is None:
                return None
            read.add(column)
    return frozenset(read)


def _names(step: dis.Instruction, name: str) -> bool:
    """Whether an instruction is about a local variable; one may be about two."""
    if "FAST" not in step.opname:
        return False
    return name in step.argval if isinstance(step.argval, tuple) else step.argval == name


def _column(steps: list[dis.Instruction], at: int) -> str | None:
    """The column that a load of the record is for; None if it is for something else."""
    after = steps[at + 1 : at + 5]
    before = steps[at - 1] if at else None
    if before is not None and after and after[0].opname == "CONTAINS_OP":
        return None if _reached_otherwise([steps[at], after[0]]) else _text(before)
    if len(after) < 2 or _reached_otherwise(after[:2]):
        return None
    if after[1].opname == "BINARY_SUBSCR" or after[1].argrepr == "[]":
        return _text(after[0])
    if _is_method(after[0]) and after[0].argval == "get":
        call = next((one for one in after[2:] if one.opname != "LOAD_CONST"), None)  # a default
        known = call is not None and call.opname in _CALLS and not _reached_otherwise(after[2:])
        return _text(after[1]) if known else None
    return None


def _is_method(step: dis.Instruction) -> bool:
    """Whether a method is looked up in order to be called, and not to be handed on."""
    return step.opname == "LOAD_METHOD" or (step.opname == "LOAD_ATTR" and "self" in step.argrepr)


def _text(step: dis.Instruction) -> str | None:
    known = step.opname == "LOAD_CONST" and isinstance(step.argval, str)
    return step.argval if known else None


def _reached_otherwise(steps: list[dis.Instruction]) -> bool:
    """Whether a jump leads into the middle, so that what stands before is not what was loaded."""
    return any(step.is_jump_target for step in steps)
