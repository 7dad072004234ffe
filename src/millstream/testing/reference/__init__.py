"""A slow, obvious interpreter of a flow in plain Python: what the engine is compared with.

It reads the same graph and shares nothing else with the engine: no panes, no partial states, no
batches, no Arrow kernels. Every window is looked up for every record, and every aggregate is
computed from the list of its values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from millstream.api.flow import Flow
from millstream.errors import ConfigError
from millstream.graph import nodes
from millstream.testing.reference.aggregates import aggregate
from millstream.testing.reference.graph import Given, Run, check
from millstream.testing.reference.records import Row, place
from millstream.testing.reference.updates import Discovered

__all__ = ["Answer", "aggregate", "reference", "reference_after"]

Batches = list[dict[str, Given]]


class Answer(dict[str, list[Row]]):
    """Per sink its rows; beside them the slates of updaters, and where their events went.

    `slates` has them by updater and key. `counts` has per updater how many events were `offered`,
    and how many of these were `dead`, `diverted`, or `late` but applied; `failed` are timers whose
    function raised.
    """

    slates: dict[str, dict[Any, Any]]
    counts: dict[str, dict[str, int]]


def reference(
    flow: Flow, inputs: Mapping[str, Given] | None = None, *, batches: Batches | None = None
) -> Answer:
    """The complete answer of a flow: per sink its rows, once all input was read.

    `inputs` gives the records of every source, in the order of their positions, or a dict of its
    files with the records of each. A record is late if its time is more than the lateness of its
    source before the latest time that precedes it in its own participant: its file, or with
    `participant=` all records with the same value, in files in the order of their first times. With
    `batches` instead (a list of such dicts) time moves after every batch; that makes a difference
    to updaters that go by arrival, and to nothing else.

    The answer is a dict with two attributes: `slates` (updater -> key -> slate) and `counts`.

    Of windows with emit="early" or "delta" there is the final answer only: one row per result with
    final=True and without `revision`, or without `op`. That is what the last revision of each key
    and window must come to. Steps that name these columns are refused; functions further down
    simply do not see them. Windows over early results or changes work on the results as they are.

    Updaters are called in the order of time, then of place. The place of a record is where it
    stands in its batch, as if every batch were pushed to a `Driver` source by source; the place of
    what a call emits follows from it. Which streams an updater publishes to is what `publishes=`
    says, or what it does; to find that out the flow may be run several times.

    Not modelled: idle sources, times of arrival, times far ahead of the clock, updaters that go by
    the wall clock, and between batches participants that nobody has declared and that come later.
    Results at the same time of different keys of one job have no order of their own; here they are
    in the order of keys. The same holds for results of one key over rows or bytes that end at the
    same time; here they are in the order of their windows. Nor have rows that one record becomes on
    several ways to one key of an updater.
    """
    if (inputs is None) == (batches is None):
        raise ConfigError("reference(): give either inputs or batches")
    for node in flow.nodes:
        check(node)
    targets: dict[nodes.Node, set[str]] = {
        node: set(node.publishes or ())
        for node in flow.nodes
        if isinstance(node, nodes.Update | nodes.Process)
    }
    while True:
        run = Run(flow.nodes, batches is not None, targets)
        try:
            for batch in batches if batches is not None else [dict(inputs or {})]:
                run.batch(batch)
            run.finish()
        except Discovered as found:
            targets[found.updater].add(found.stream)
            continue
        return _answer(run)


def reference_after(flow: Flow, batches: Batches) -> list[Answer]:
    """What every sink has after each batch: its table, which all that left until then comes to.

    A window with emit="delta" has the results that event time has passed, one with "early" those of
    all records so far (as with every_rows=1), one with "final" those that nothing late can change.
    Steps and windows further down are over these tables. Not for updaters.
    """
    for node in flow.nodes:
        check(node)
        if isinstance(node, nodes.Update | nodes.Published):
            raise ConfigError(f"{node.name}: reference_after() does not know updaters")
    tables = []
    for count in range(1, len(batches) + 1):
        targets: dict[nodes.Node, set[str]] = {
            node: set() for node in flow.nodes if isinstance(node, nodes.Process)
        }
        run = Run(flow.nodes, False, targets)
        for batch in batches[:count]:
            run.batch(batch)
        run.show()
        tables.append(_answer(run))
    return tables


def _answer(run: Run) -> Answer:
    answer = Answer(
        {
            node.name: [one.row for one in sorted(run.arrived[node], key=place)]
            for node in run.graph
            if isinstance(node, nodes.Sink)
        }
    )
    answer.slates = run.slates()
    answer.counts = {node.name: dict(one.counts) for node, one in run.updaters.states.items()}
    return answer
