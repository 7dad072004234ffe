"""Which keeper an aggregate has, by what it can do."""

from __future__ import annotations

from millstream.operators.grouped.bags import Listed, Outermost
from millstream.operators.grouped.different import Different
from millstream.operators.grouped.keeping import BagOf, Keeper
from millstream.operators.grouped.partials import Counted, Inverted, Merged, Totalled
from millstream.ops.aggregates.kernels import Count, Edge, Extremum, Sum, Variance
from millstream.ops.windows.jobs import Measure


def keeper_of(measure: Measure, changes: bool) -> Keeper:
    """How an aggregate is kept; `changes`: rows are taken away as well."""
    kernel, objects, column = measure.kernel, measure.objects, measure.column
    if isinstance(kernel, Count):
        return Counted(column)
    if isinstance(kernel, Sum | Variance) and column is not None:
        return Totalled(column, isinstance(kernel, Variance))
    if objects is not None and column is not None and objects.name == f"distinct({column})":
        return Different(column)
    if not changes and not measure.held:
        return Merged(measure)
    if objects is not None and objects.inverse is not None:
        return Inverted(measure)
    if isinstance(kernel, Extremum) and column is not None:
        return Outermost(BagOf((column,), placed=False), kernel.largest, column)
    if isinstance(kernel, Edge) and column is not None:
        return Outermost(BagOf((column,), placed=True), kernel.latest, column)
    unordered = measure.lists is not None or (objects is not None and objects.bulk is not None)
    return Listed(measure, BagOf(measure.columns or None, placed=not unordered))
