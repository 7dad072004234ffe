"""A slow, obvious interpreter of a flow in plain Python: what the engine is compared with.

It reads the same graph and shares nothing else with the engine: no panes, no partial states, no
batches, no Arrow kernels. Every window is looked up for every record, and every aggregate is
computed from the list of its values.
"""

from __future__ import annotations

from collections.abc import Mapping

from millstream.api.flow import Flow
from millstream.errors import ConfigError
from millstream.graph import nodes
from millstream.testing.reference.aggregates import aggregate
from millstream.testing.reference.graph import Run, check
from millstream.testing.reference.records import Row, place

__all__ = ["aggregate", "reference"]

Batches = list[dict[str, list[Row]]]


def reference(
    flow: Flow,
    inputs: Mapping[str, list[Row]] | None = None,
    *,
    batches: Batches | None = None,
) -> dict[str, list[Row]]:
    """The complete answer of a flow: per sink its rows, once all input was read.

    `inputs` gives the records of every source, in order; nothing is late. With `batches` instead (a
    list of such dicts) the watermark moves after every batch, so that records can be late: each
    source has come to its latest time less its lateness.

    Of windows with emit="early" or "delta" there is the final answer only: one row per result with
    final=True and without `revision`, or without `op`. That is what the last revision of each key
    and window must come to. Steps that name these columns, and windows over early results, are
    refused; functions further down simply do not see them.

    Not modelled: idle sources, participants, times of arrival, and times far ahead of the clock.
    Results at the same time of different keys of one job have no order of their own; here they are
    in the order of keys. The same holds for results of one key over rows or bytes that end at the
    same time; here they are in the order of their windows.
    """
    if (inputs is None) == (batches is None):
        raise ConfigError("reference(): give either inputs or batches")
    for node in flow.nodes:
        check(node)
    run = Run(flow.nodes, can_be_late=batches is not None)
    for batch in batches if batches is not None else [dict(inputs or {})]:
        run.batch(batch)
    run.finish()
    return {
        node.name: [one.row for one in sorted(run.arrived[node], key=place)]
        for node in flow.nodes
        if isinstance(node, nodes.Sink)
    }
