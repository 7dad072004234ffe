"""Let windows over the same stream and key share one family of panes, whatever their sizes."""

from __future__ import annotations

import math
from dataclasses import replace

from millstream.graph import nodes
from millstream.operators.protocol import KeyedStep
from millstream.ops.windows.jobs import Family, WindowJob
from millstream.ops.windows.running import PRESENCE, can_run
from millstream.plan.stages import Plan

MOST_PANES = 100_000  # a window cut finer than this is better off with panes of its own
FINER = 60  # likewise if sharing makes its panes so many times finer


def share_panes(plan: Plan) -> Plan:
    """Group jobs into families; every job counts time in the panes of its family."""
    groups: dict[tuple[object, ...], list[tuple[str, list[WindowJob]]]] = {}
    owners: dict[str, tuple[object, ...]] = {}  # stored panes -> whose they are
    for node in plan.windowed():
        if node.name in plan.homes:
            owners.setdefault(plan.homes[node.name], _shared_by(node))
    others = {node.name for node in plan.nodes if isinstance(node, KeyedStep)}
    for node in plan.windowed():
        job, shared = plan.jobs[node.name], _shared_by(node)
        families = groups.setdefault(shared, [])
        home = plan.homes.get(job.name)
        for name, members in families:
            at_home = home is None or home == name
            if at_home and _fit([*members, job], plan.units.get(name)):
                members.append(job)
                break
        else:
            number, full = len(families), {name for name, _ in families}
            name = home or _name(plan, job, number)
            while (
                name in full  # its windows do not fit in there
                or name in plan.groups  # updaters go by this name
                or name in others
                or owners.setdefault(name, shared) != shared
                or not _fit([job], plan.units.get(name))  # stored panes it cannot count in
            ):
                number += 1
                name = _name(plan, job, number)
            families.append((name, [job]))
    made: dict[str, Family] = {}
    for grouped in groups.values():
        for name, members in grouped:
            jobs = tuple(
                replace(job, kept=job.span.step) if can_run(job) else job
                for job in _in_units(members, plan.units.get(name))
            )
            extra = (PRESENCE,) if any(map(can_run, jobs)) else ()
            made[name] = Family(name, jobs, extra)
    by_name = {job.name: job for family in made.values() for job in family.jobs}
    return replace(plan, families=made, jobs=by_name)


def _shared_by(node: nodes.Windowed) -> tuple[object, ...]:
    """What jobs of a family have in common; only plain windows over time can share."""
    plain = node.window.kind in ("tumbling", "sliding", "hopping") and not node.in_order
    plain = plain and node.window.span.calendar is None
    alone = "" if plain else node.name
    return (node.inputs, node.keys, node.null_keys, node.partition, alone)


def unit_of(jobs: list[WindowJob]) -> int:
    """The width of panes that fit all these windows, and the moments they are looked at."""
    moments = (job.emission.every_event for job in jobs if job.emission.by_event)
    return math.gcd(*(n for job in jobs for n in (job.span.size, job.span.slide)), *moments)


def _fit(jobs: list[WindowJob], known: int | None) -> bool:
    """Whether these windows can share panes (of a width that may be given)."""
    if jobs[0].span.whole or jobs[0].kind != "time":
        return True
    unit = unit_of(jobs)
    if known is not None:
        if unit % known:
            return False
        unit = known
    return len(jobs) == 1 or all(
        job.span.size // unit <= MOST_PANES and job.span.pane // unit <= FINER for job in jobs
    )


def _in_units(jobs: list[WindowJob], known: int | None) -> list[WindowJob]:
    if jobs[0].span.whole or jobs[0].kind != "time":
        return jobs
    unit = known or unit_of(jobs)
    return [replace(job, span=replace(job.span, unit=unit)) for job in jobs]


def _name(plan: Plan, job: WindowJob, number: int) -> str:
    """A name that stays when windows come and go, so that their panes can be found again."""
    source = plan.node(job.name).inputs[0].name
    apart = job.span.whole or job.ordered or job.partition or job.kind != "time"
    apart = apart or job.span.calendar is not None
    alone = f" for {job.name}" if apart else ""
    keys = " by " + " ".join(job.keys) if job.keys else ""
    return f"{source}{keys}{alone}" + (f" {number + 1}" if number else "")
