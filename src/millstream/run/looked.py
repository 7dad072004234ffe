"""What is looked at early: the window whose blocks are reported, and whether the flow allows it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from millstream.api.aggregates import Builtin
from millstream.api.sources import Files
from millstream.errors import ConfigError
from millstream.graph import nodes
from millstream.operators.early.sampling import Sampled
from millstream.operators.windows.family import Windows
from millstream.plan.stages import Plan


@dataclass(frozen=True)
class Top:
    """A ranking of the groups of the window before it."""

    step: str
    name: str  # the column of its result
    keys: tuple[str, ...]
    column: str  # who is ranked: a key of the window before
    by: str  # one of its aggregates
    k: int


@dataclass(frozen=True)
class Looked:
    """The window that is looked at, and the plan that has its blocks reported."""

    plan: Plan
    windows: Sampled  # whose blocks are reported
    answers: Sampled  # whose results are the answer: the same, or a ranking of them
    top: Top | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        """Its key columns."""
        return self.windows.family.keys


def looked_at(plan: Plan, step: str | None) -> Looked:
    """Find the window that is to be looked at; refuses flows whose input has an order."""
    _check_source(plan)
    first = _first(plan)
    tops = {top.step: (one, top) for one in first if (top := _ranking(plan, one)) is not None}
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
    answers = sampled = Sampled(windows.family, windows.numbers)
    operators = {**plan.operators, windows.name: sampled}
    if top is not None:
        ranking = plan.operator_of(top.step)
        assert isinstance(ranking, Windows)
        answers = Sampled(ranking.family, ranking.numbers, blocks=False)
        sampled = replace(sampled, results=False)
        operators |= {ranking.name: answers, windows.name: sampled}
    return Looked(replace(plan, operators=operators), sampled, answers, top)


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


def _ranking(plan: Plan, windows: Windows) -> Top | None:
    """The top_k over the groups of a window, if that is what comes right after it."""
    before = plan.node(windows.steps[0])
    for node in plan.consumers(before):
        if not isinstance(node, nodes.Windowed) or len(node.aggs) != 1 or len(node.inputs) != 1:
            continue
        ((name, agg),) = node.aggs
        if not isinstance(agg, Builtin) or agg.kind != "top_k" or not node.window.span.whole:
            continue
        values = [measure.name for measure in windows.family.jobs[0].measures]
        keys = set(windows.family.keys)
        ranks_keys = agg.column not in node.keys and keys == {*node.keys, agg.column}
        if ranks_keys and agg.by in values:
            k = dict(agg.options)["k"]
            return Top(node.name, name, node.keys, str(agg.column), str(agg.by), int(k))
    return None


def _ranked(tops: dict[str, tuple[Windows, Top]], plan: Plan, step: str) -> bool:
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
        if isinstance(node, nodes.Process | nodes.Published | nodes.Update):
            raise ConfigError(
                f"snapshots(): {node.name!r} publishes or updates in the order of time, and blocks "
                "are read in random order; use run()"
            )
