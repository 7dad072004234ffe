"""What is looked at early: the window whose blocks are reported, and whether the flow allows it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from millstream.api.early import ESTIMATE, MARKS, Looks
from millstream.api.sources import Files
from millstream.errors import ConfigError
from millstream.graph import nodes
from millstream.operators.dedup import Dedup
from millstream.operators.early.sampling import Sampled
from millstream.operators.windows.family import Windows
from millstream.ops.estimating.answers import totalled
from millstream.plan.snapshots import Ranking, ranking_of
from millstream.plan.stages import Plan


@dataclass(frozen=True)
class Target:
    """The window that is looked at, and the plan that has its blocks reported."""

    plan: Plan
    windows: Sampled  # whose blocks are reported
    answers: Sampled  # whose results are the answer: the same, or a ranking of them
    top: Ranking | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        """Its key columns."""
        return self.windows.family.keys


def target_of(plan: Plan, step: str | None) -> Target:
    """Find the window that is to be looked at; refuses flows whose input has an order."""
    _check_source(plan)
    first = _first(plan)
    tops = {top.step: (one, top) for one in first for top in _rankings(plan, one)}
    names = [name for one in first for name in one.steps] + [*tops]
    if step is None:
        ends = [name for name in names if not _ranked(tops, plan, name)]
        if len(ends) > 1:
            raise ConfigError(
                f"snapshots(): the flow has several aggregates ({', '.join(ends)}); say which with "
                "step="
            )
        step = ends[0]
    elif step not in names:
        raise ConfigError(f"snapshots(step={step!r}): there are {', '.join(names)}")
    windows, top = tops.get(step, (plan.operator_of(step), None))
    assert isinstance(windows, Windows)
    node = plan.node(step)
    assert isinstance(node, nodes.Windowed)
    held = node.emission.mode == "snapshot"
    if top is None:
        answers = sampled = _sampled(windows, step=step, held=held)
        operators = {**plan.operators, windows.name: sampled}
    else:
        ranking = plan.operator_of(step)
        assert isinstance(ranking, Windows)
        before = node.inputs[0].name
        sampled = _sampled(windows, step=before, results=False)
        answers = _sampled(ranking, step=step, blocks=False, held=held)
        operators = {**plan.operators, windows.name: sampled, ranking.name: answers}
    return Target(replace(plan, operators=operators), sampled, answers, top)


def _sampled(windows: Windows, **said: Any) -> Sampled:
    return Sampled(windows.family, windows.numbers, windows.lasting, **said)


def target_for(plan: Plan, looks: Looks | None) -> tuple[Looks, Target] | None:
    """What a run looks at: what was asked for, or a step with emit="snapshot"; None if neither."""
    emitted = [node for node in plan.windowed() if node.emission.mode == "snapshot"]
    if looks is None and not emitted:
        return None
    if not emitted:
        assert looks is not None
        return looks, _checked(plan, looks.step, looks)
    node = emitted[0]
    if looks is not None and looks.step not in (None, node.name):
        raise ConfigError(
            f'snapshots(step={looks.step!r}): {node.name!r} has emit="snapshot", and one step of '
            "a flow is looked at"
        )
    own: Looks = node.emission.looks
    target = _checked(plan, node.name, own, MARKS)
    return own if looks is None else replace(looks, ratios=own.ratios, metric=own.metric), target


def _checked(plan: Plan, step: str | None, looks: Looks, marks: tuple[str, ...] = ()) -> Target:
    target = target_of(plan, step)
    _check_ratios(target, looks)
    _check_columns(target, looks, marks)
    return target


def _check_ratios(target: Target, looks: Looks) -> None:
    """Ratios are of counts and sums, under names of their own."""
    if not looks.ratios:
        return
    job = target.windows.job
    if target.top is not None:
        raise ConfigError(
            f"snapshots(ratios=): {target.top.step!r} is a ranking, which has none; look at the "
            f"groups with step={job.name!r}"
        )
    totals = [m.name for m in job.measures if totalled(m) is not None]
    for name, pair in looks.ratios:
        for one in pair:
            if one not in totals:
                have = ", ".join(totals) or "none"
                raise ConfigError(
                    f"snapshots(ratios=): {name!r} is of {one!r}, which is no count or sum of "
                    f"{job.name!r}; there are: {have}"
                )
        taken = {*job.keys, *(m.name + end for m in job.measures for end in ESTIMATE)}
        if {name + end for end in ESTIMATE} & taken:
            raise ConfigError(f"snapshots(ratios=): the name {name!r} is already a column")


def _check_columns(target: Target, looks: Looks, marks: tuple[str, ...]) -> None:
    """A snapshot has each of its columns once, those included that it adds to an answer."""
    job, top = target.windows.job, target.top
    values = [*(m.name for m in job.measures), *(name for name, _ in looks.ratios)]
    columns = {job.name: [*job.keys, *(name + end for name in values for end in ESTIMATE)]}
    if top is not None:
        estimates = (top.by + end for end in ESTIMATE)
        columns[top.step] = [*top.keys, "place", top.column, *estimates, "settled"]
    columns[target.answers.step] += marks
    for step, names in columns.items():
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ConfigError(
                f"snapshots(): a snapshot of {step!r} would have two columns {twice!r}, one of its "
                "own and one of the program's; give the key or the aggregate another name"
            )


def _first(plan: Plan) -> list[Windows]:
    """The windows that get what is read; all of them are over the whole input."""
    found: list[Windows] = []
    for one in plan.operators.values():
        if plan.level_of(one) > 1:
            continue
        if not isinstance(one, Windows) or not one.family.span.whole:
            raise ConfigError(
                f"snapshots(): {one.steps[0]!r} works on its input in the order of time, and "
                "blocks are read in random order; only aggregates over the whole input, like "
                ".key_by(...).agg(...), have early answers"
            )
        found.append(one)
    if not found:
        raise ConfigError(
            "snapshots(): this flow aggregates nothing; add .key_by(...).agg(...), or use run()"
        )
    return found


def _rankings(plan: Plan, windows: Windows) -> list[Ranking]:
    """The rankings of the groups of windows that come right after them."""
    after = (one for step in windows.steps for one in plan.consumers(plan.node(step)))
    return [top for one in after if (top := ranking_of(one)) is not None]


def _ranked(tops: dict[str, tuple[Windows, Ranking]], plan: Plan, step: str) -> bool:
    """Whether a window is there for a ranking only."""
    return any(
        step in windows.steps and [n.name for n in plan.consumers(plan.node(step))] == [top]
        for top, (windows, _) in tops.items()
    )


def _check_source(plan: Plan) -> None:
    sources = plan.sources()
    spec = sources[0].spec
    if len(sources) > 1 or not isinstance(spec, Files) or spec.follow:
        found = ", ".join(f"{node.name} ({type(node.spec).__name__})" for node in sources)
        raise ConfigError(
            f"snapshots(): needs one source of stored files, ms.Files(...) without follow; the "
            f"flow has {found}"
        )
    if spec.lateness_micros() is not None or spec.participant is not None:
        raise ConfigError(
            f"snapshots(): source {sources[0].name!r} has lateness= or participant=, which go by "
            "the order of records, and blocks are read in random order; leave them out"
        )
    for node in plan.nodes:
        if isinstance(node, nodes.Process | nodes.Published | nodes.Update | Dedup):
            raise ConfigError(
                f"snapshots(): {node.name!r} publishes or updates in the order of time, and blocks "
                "are read in random order; use run()"
            )
