"""What has changed from one program to the next, and what of that stored state cannot follow.

What must stay is what the stored state and offsets mean: sources, and keyed operators with their
keys and windows. Functions, stateless steps over records, and sinks may change. Windows, aggregates
and updaters may be added and taken away; `adopting.py` fits the stored state to that. Over changes
stateless steps must stay, and who works on them must have done so from the start.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from millstream.run.program.describing import ALL

_LABELS = {  # of fields whose names do not tell by themselves
    "combine": "whether its job has combine()",
    "compared": "what is compared of its rows",
    "cyclic": "whether it is in a cycle of updaters",
    "partition": "whether keys lie where partition= says",
}
_SETTLED = ("ttl", "keeps", "plain", "cycle", "columns")  # may change, or have own rules


@dataclass(frozen=True)
class Difference:
    """How a program differs from the one a checkpoint belongs to."""

    refused: list[str]  # what the stored state and offsets cannot follow
    removed: list[str]  # operators that are gone, and aggregates as "operator.aggregate"


def difference(known: dict[str, Any], now: dict[str, Any]) -> Difference:
    """What has changed from one description of a program to the next, as far as it matters."""
    refused = []
    if known["flow"] != now["flow"]:
        refused.append(f"it belongs to flow {known['flow']!r}, this is {now['flow']!r}")
    before, after = known["sources"], now["sources"]
    refused.extend(f"source {name!r} is gone" for name in before.keys() - after.keys())
    refused.extend(f"source {name!r} is new" for name in after.keys() - before.keys())
    removed = [name for name in known["operators"] if name not in now["operators"]]
    for what in ("sources", "operators"):
        for name in known[what].keys() & now[what].keys():
            one = what.removesuffix("s")
            refused.extend(_fields(f"{one} {name!r}", known[what][name], now[what][name]))
    for name in known["operators"].keys() & now["operators"].keys():
        before, after = known["operators"][name], now["operators"][name]
        if before["kind"] != after["kind"]:
            continue
        refused.extend(_cycles(name, before, after))
        refused.extend(_additions(name, known, now))
        aggs = after.get("aggregates", {})
        removed.extend(f"{name}.{agg}" for agg in before.get("aggregates", {}) if agg not in aggs)
    refused.extend(_readers(known, now))
    return Difference(sorted(refused), removed)


def _fields(what: str, before: dict[str, Any], after: dict[str, Any]) -> Iterator[str]:
    """Fields that must stay and did not."""
    for field in sorted(before.keys() | after.keys()):
        was: Any = before.get(field)
        now: Any = after.get(field)
        if field == "family" and isinstance(was, str) and isinstance(now, str):
            same = all(before.get(n) == after.get(n) for n in ("keys", "kind"))
            if was != now and same:  # else that is said
                yield f"{what}: {_moved(_input(was, before), _input(now, after))}"
            continue
        if (
            field == "aggregates"
            and isinstance(was, dict)
            and isinstance(now, dict)
            and before.get("kind") == after.get("kind")
        ):
            changed = any(was[name] != now[name] for name in was.keys() & now.keys())
        elif field == "rows":
            yield from _unknown_columns(what, was or {}, now or {})
            continue
        elif field == "compared":  # not known of what an earlier version began
            changed = None not in (was, now) and was != now
        else:
            changed = was != now and field not in _SETTLED
        if changed:
            label = _LABELS.get(field, field)
            yield f"{what}: {label} was {_shown(was)}, is {_shown(now)}"


def _unknown_columns(
    what: str, was: dict[str, list[str]], now: dict[str, list[str]]
) -> Iterator[str]:
    """Columns that are read behind a step, and that the rows it has stored do not have."""
    for name in sorted(was.keys() & now.keys()):
        missing = sorted(set(now[name]) - set(was[name]))
        if missing:
            yield (
                f"{what}: {_shown(missing)} of {name!r} is read behind it, and the rows that it "
                "has stored so far do not have it; leave it out, or read all input again"
            )


def _moved(was: str, now: str) -> str:
    if was != now:
        return f"its input was {was!r}, is {now!r}"
    return (
        f"it shared what is stored with other windows over {was!r}, and differs from them now in "
        "its steps before, in nulls= or in partition="
    )


def _input(family: str, operator: dict[str, Any]) -> str:
    """The step an operator reads: panes are named after it and the key."""
    keys = " ".join(map(str, operator["keys"]))
    return family.partition(f" by {keys}" if keys else " for ")[0]


def _cycles(name: str, before: dict[str, Any], after: dict[str, Any]) -> Iterator[str]:
    was, now = before.get("cycle"), after.get("cycle")
    if was is not None and was != now:
        yield (
            f"operator {name!r}: its cycle was {_shown(was)}, is {_shown(now)}, and events that "
            "wait belong to the whole cycle"
        )


def _additions(name: str, known: dict[str, Any], now: dict[str, Any]) -> Iterator[str]:
    """Aggregates that an operator cannot take up, because what it has kept does not tell of them.

    Where panes are kept, windows that began before are known by their start, and get null.
    """
    before, after = known["operators"][name], now["operators"][name]
    fresh = [agg for agg in after.get("aggregates", {}) if agg not in before["aggregates"]]
    if not fresh:
        return
    what = f"operator {name!r}: {', '.join(fresh)} cannot be added to it"
    instead = "give the window with it another name, and it begins with what comes from now on"
    stored, family = known["families"][before["family"]], now["families"][after["family"]]
    if not set(after["keeps"]) <= set(before.get("keeps", after["keeps"])):
        yield f"{what}: values and panes of its open windows were not both kept; {instead}"
    elif not set(family["held"]) <= set(stored.get("held", [ALL])) and ALL not in stored["held"]:
        yield f"{what}: the values kept of its open windows lack a column; {instead}"
    elif not after["plain"] and not set(family["states"]) <= set(stored["states"]):
        yield f"{what}: its open windows have no panes that could tell; {instead}"


def _readers(known: dict[str, Any], now: dict[str, Any]) -> Iterator[str]:
    """Steps and sinks that cannot work on changes from now on.

    Of rows that were there before they would be told only that they go; where a step before them is
    another one, as what they never were. Windows that are new begin after all that was read, and
    joins leave out what goes and never came.
    """
    there = known["operators"]
    before = known.get("changes")  # not known of what an earlier version began
    for name, reads in now["changes"].items():
        step = now["operators"].get(name)
        what = f"{'sink' if step is None else 'operator'} {name!r}"
        if before is not None and name in before:
            if before[name]["steps"] != reads["steps"]:
                was, is_now = (", ".join(one["steps"]) for one in (before[name], reads))
                yield (
                    f"{what}: it worked on changes that came through {was}, now {is_now}: rows "
                    "that came before would be taken back as what they never were"
                )
            continue
        old = [one for one in reads["of"] if one in there]
        unknown = before is None and (step is None or name in there)
        begins = step is not None and ("window" in step or step["kind"] == "join")
        if old and not unknown and not begins:
            whose = ", ".join(map(repr, old))
            yield (
                f"{what} is new and works on changes of {whose}: of rows that came before, it "
                f"would only see that they go. Over an operator of another name than {whose} it "
                "begins with what comes from now on"
            )


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{k}={v}" for k, v in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)
