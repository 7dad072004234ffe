"""What is said of a stop that took too long: what may have held it up, as far as that is known."""

from __future__ import annotations

from millstream.api.sinks import Call
from millstream.api.sources import Generator
from millstream.graph import nodes
from millstream.plan.stages import Plan
from millstream.run.spark.onspark import with_functions


def too_late(flow: str, plan: Plan, begun: bool, patience: float) -> str:
    """The message. `begun`: Spark was there."""
    return (
        f"flow {flow!r} was asked to stop and {'its batch' if begun else 'its start'} was not done "
        f"in time (stop_timeout={patience:g} s): {_why(plan, begun)}. It was given up, and nothing "
        "is lost: run the same command again to go on after the last commit"
    )


def _why(plan: Plan, begun: bool) -> str:
    if not begun:
        return "Spark was still starting"
    more = "stop_timeout= gives it more time, batch_rows= makes batches smaller"
    steps = [*with_functions(plan), *_in_the_driver(plan)]
    if not steps:
        return f"it is large, or this machine is busy; {more}"
    several = "functions of" if len(steps) > 1 else "the function of"
    named = ", ".join(map(repr, dict.fromkeys(steps)))
    return f"{several} {named} may take long or hang, or the batch is large; {more}"


def _in_the_driver(plan: Plan) -> list[str]:
    """Steps whose functions run in this process."""
    return [
        node.name
        for node in plan.nodes
        if isinstance(node, nodes.Sink | nodes.Source) and isinstance(node.spec, Call | Generator)
    ]
