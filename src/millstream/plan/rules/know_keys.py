"""Tell who reads a log of changes by which columns its rows are known.

An update in Debezium's words has the row before and after it. Where these differ in the key that a
flow goes by, which need not be that of the table, one row goes and another comes.
"""

from __future__ import annotations

from dataclasses import replace

from millstream.io.formats import DEBEZIUM
from millstream.operators.tagger import Changes
from millstream.plan.stages import Plan


def know_keys(plan: Plan) -> Plan:
    """The keys of all steps that take the envelopes of a source as changes."""
    formats = dict(plan.formats)
    for source in plan.sources():
        takers = [one for one in plan.consumers(source) if isinstance(one, Changes)]
        if takers and formats[source.name].kind == DEBEZIUM:
            keys = dict.fromkeys(key for one in takers for key in one.keys)
            formats[source.name] = replace(formats[source.name], keys=tuple(keys))
    return replace(plan, formats=formats)
