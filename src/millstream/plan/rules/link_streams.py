"""Find out which updater publishes to which stream, and which of them form cycles.

`ctx.publish(name, ...)` names its stream when it runs. Which streams a function can mean is read
from the strings in its code, in what it refers to and in the object it belongs to; where that says
nothing, `publishes=` does.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterator
from dataclasses import replace
from types import CodeType, FunctionType, MethodType
from typing import Any

from millstream.errors import ConfigError
from millstream.graph import nodes
from millstream.ops.updates.job import UpdateGroup
from millstream.plan.stages import Plan, upstream

_DEPTH = 4  # functions a function may call before its strings are no longer looked at


def link_streams(plan: Plan) -> Plan:
    """Publishers of streams, groups of updaters, and the order of steps with cycles as one."""
    declared = {node.name for node in plan.nodes if isinstance(node, nodes.Published)}
    publishes: dict[str, frozenset[str]] = {}
    for node in plan.publishers():
        publishes[node.name] = _targets(node, declared)
    told = {name for targets in publishes.values() for name in targets}
    diverted = _diverted(plan, declared, told)
    for name in sorted(declared - told - diverted):
        raise ConfigError(
            f"nobody publishes to stream {name!r}; call ctx.publish({name!r}, key, value) in an "
            f"updater (or in process()), or say update(..., publishes=[{name!r}]) where the name "
            f"is not in its code, or overload=ms.divert({name!r}) at a source or an updater"
        )
    plan = replace(plan, publishes=publishes)
    _check_diverted(plan, diverted)
    order = tuple(_components(plan))
    groups: dict[str, UpdateGroup] = {}
    for names in order:
        members = [node for node in plan.updaters() if node.name in names]
        cyclic = len(names) > 1
        if cyclic:
            _check_cycle(plan, names)
        if members:
            jobs = tuple(replace(node.job, name=node.name) for node in members)
            group = UpdateGroup(" ".join(job.name for job in jobs), jobs, cyclic)
            groups[group.name] = group
    return replace(plan, order=order, groups=groups)


def _diverted(plan: Plan, declared: set[str], published: set[str]) -> set[str]:
    """The streams that get what is too much for others; one that is published to has other rows."""
    found: dict[str, str] = {}
    for node in plan.nodes:
        name = nodes.diverts_to(node)
        if name is None:
            continue
        if name not in declared:
            near = difflib.get_close_matches(name, declared, 1)
            hint = (
                f"did you mean {near[0]!r}?" if near else f"declare it with flow.stream({name!r})"
            )
            raise ConfigError(
                f"{node.name}: overload=ms.divert({name!r}): there is no stream {name!r}; {hint}"
            )
        found[name] = node.name
    for name in sorted(found.keys() & published):
        raise ConfigError(
            f"stream {name!r} is published to, and {found[name]!r} diverts its records there: "
            "events have a key and a value, records have columns of their own; declare a stream "
            "for each"
        )
    return {*found}


def _check_diverted(plan: Plan, diverted: set[str]) -> None:
    """Refuse to give a step again what was too much for it."""
    for name in sorted(diverted):
        stream = plan.node(name)
        for node in plan.diverting(stream):
            if stream in upstream(plan, node):
                raise ConfigError(
                    f"{node.name}: overload=ms.divert({name!r}): stream {name!r} leads back to it, "
                    "so that nothing would be gained; let the stream have steps of its own"
                )


def _targets(node: nodes.Update | nodes.Process, declared: set[str]) -> frozenset[str]:
    if node.publishes is not None:
        for name in node.publishes:
            if name not in declared:
                near = difflib.get_close_matches(name, declared, 1)
                hint = f"did you mean {near[0]!r}?" if near else "declare it with flow.stream()"
                raise ConfigError(f"{node.name}: there is no stream {name!r} to publish to; {hint}")
        return frozenset(node.publishes)
    strings: set[str] = set()
    words: set[str] = set()
    own = (node.job.fn, node.job.on_timer) if isinstance(node, nodes.Update) else (node.fn,)
    for fn in own:
        if fn is not None:
            _look(fn, strings, words, set(), _DEPTH)
    found = strings & declared
    if not found and "publish" in words:
        found = set(declared)  # a name that is made while running: it may be any
    return frozenset(found)


def _look(fn: Any, strings: set[str], words: set[str], seen: set[int], depth: int) -> None:
    """Collect the strings a function can reach, and the names it uses."""
    if depth < 0 or id(fn) in seen:
        return
    seen.add(id(fn))
    if isinstance(fn, functools.partial):
        strings.update(s for one in (*fn.args, *fn.keywords.values()) for s in _strings(one))
        _look(fn.func, strings, words, seen, depth - 1)
    elif isinstance(fn, MethodType):
        for value in (*vars(type(fn.__self__)).values(), *_attributes(fn.__self__)):
            strings.update(_strings(value))
            if isinstance(value, FunctionType):
                _look(value, strings, words, seen, depth - 1)
        _look(fn.__func__, strings, words, seen, depth)
    elif isinstance(fn, FunctionType):
        strings.update(s for one in fn.__defaults__ or () for s in _strings(one))
        strings.update(s for one in (fn.__kwdefaults__ or {}).values() for s in _strings(one))
        for cell in fn.__closure__ or ():
            try:
                value = cell.cell_contents
            except ValueError:
                continue
            strings.update(_strings(value))
            _look(value, strings, words, seen, depth - 1)
        names: set[str] = set()
        for code in _codes(fn.__code__):
            names.update(code.co_names)
            strings.update(s for one in code.co_consts for s in _strings(one))
        words.update(names)
        for name in names:
            value = fn.__globals__.get(name)
            strings.update(_strings(value))
            _look(value, strings, words, seen, depth - 1)
    elif callable(fn) and isinstance(vars(type(fn)).get("__call__"), FunctionType):
        strings.update(s for one in _attributes(fn) for s in _strings(one))
        _look(vars(type(fn))["__call__"], strings, words, seen, depth - 1)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from _codes(one)


def _attributes(value: Any) -> list[Any]:
    return list(getattr(value, "__dict__", {}).values())


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple | list | set | frozenset):
        yield from (one for one in value if isinstance(one, str))
    elif isinstance(value, dict):
        yield from (one for one in (*value, *value.values()) if isinstance(one, str))


# -- cycles -------------------------------------------------------------------------------------


def _check_cycle(plan: Plan, names: tuple[str, ...]) -> None:
    if all(one.name in names for name in names for one in plan.feeding(plan.node(name))):
        raise ConfigError(
            f"no source leads to the cycle {' -> '.join(names)}, so no event can ever come to it; "
            "let one of its updaters take a source too, or publish to it from outside"
        )
    for name in names:
        node = plan.node(name)
        if isinstance(node, nodes.Windowed):
            raise ConfigError(
                f"window {name!r} is part of a cycle ({' -> '.join(names)}); a cycle can go "
                "through updaters and stateless steps only"
            )
        if isinstance(node, nodes.Process):
            raise ConfigError(
                f"process step {name!r} is part of a cycle ({' -> '.join(names)}); it keeps "
                "nothing, so nothing could end it: let an updater publish instead"
            )
        if isinstance(node, nodes.Update) and node.job.merge is not None:
            raise ConfigError(f"updater {name!r} is part of a cycle, so it cannot have merge=")
    orders = {node.name: node.job.order for node in plan.updaters() if node.name in names}
    if len(set(orders.values())) > 1:
        raise ConfigError(
            f"the updaters of a cycle must have the same order=, these have: "
            f"{', '.join(f'{name} {order}' for name, order in orders.items())}"
        )


def _components(plan: Plan) -> list[tuple[str, ...]]:
    """Steps in an order in which inputs come first; the steps of a cycle together (Tarjan)."""
    before = {node.name: [n.name for n in plan.feeding(node)] for node in plan.nodes}
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[tuple[str, ...]] = []
    place = {node.name: index for index, node in enumerate(plan.nodes)}

    def visit(name: str) -> None:
        number[name] = low[name] = len(number)
        stack.append(name)
        for other in before[name]:
            if other not in number:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], number[other])
        if low[name] == number[name]:
            members = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            found.append(tuple(sorted(members, key=lambda one: place[one])))

    for node in plan.nodes:
        if node.name not in number:
            visit(node.name)
    return found
