"""`ms.query`: a query over the views of a checkpoint, as the last committed batch left them.

The views that the query names become sources of a flow of its own, which runs to its end in this
process: the same SQL, operators and state as everywhere, without Spark. The flow that keeps the
views may be running; nothing of it is locked or written.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from millstream.api.flow import Flow
from millstream.api.sources import Files
from millstream.errors import RunError
from millstream.ops.mixed import holds_mixed
from millstream.run.batches.letters import letters_in
from millstream.run.exploring import run_here
from millstream.run.planning import plan_flow
from millstream.serve.following import Follower
from millstream.serve.slates import Snapshot, Unknown
from millstream.serve.telling import to_json
from millstream.serve.views import read_all
from millstream.settings import Settings
from millstream.sql.asking import Asked, read_query
from millstream.sql.catalog import relation_of
from millstream.sql.relations import Relation

_ANSWER = "answer"


def query_views(follower: Follower, sql: str) -> pa.Table:
    """The answer of a query over the views of a flow, all of one batch; ORDER BY is kept."""
    with tempfile.TemporaryDirectory(prefix="millstream-") as scratch:
        place = Path(scratch)
        return follower.read(lambda snapshot: _answer(snapshot, sql, place))


def _answer(snapshot: Snapshot, sql: str, place: Path) -> pa.Table:
    flow = Flow("query")
    tables: dict[str, Relation] = {}

    def find(name: str) -> Relation | None:
        try:
            view = snapshot.view(name)
        except Unknown:
            if snapshot.is_step(name):
                raise
            return None
        if view.view not in tables:
            path = place / f"{len(tables)}-{snapshot.batch}.parquet"
            pq.write_table(_plain(read_all(snapshot, view)), path)
            tables[view.view] = relation_of(
                flow.source(Files(str(path), format="parquet"), name=view.view)
            )
        return tables[view.view]

    asked = read_query(sql, find, lambda: list(snapshot.views))
    asked.stream.view(_ANSWER)
    return _run(flow, asked, place / f"ck-{snapshot.batch}")


def _run(flow: Flow, asked: Asked, place: Path) -> pa.Table:
    """Run a flow to its end, and read its answer."""
    settings = Settings(parallelism=1, dead_letter_limit=1.0)
    engine = run_here(plan_flow(flow), place, settings)
    for letter in letters_in(engine.checkpoint.dead):
        raise RunError(f"{letter['error']}, for the row {str(letter['raw'])[:200]}")
    answer = Follower(place).read(lambda now: read_all(now, now.view(_ANSWER)))
    return asked.arranged(answer)


def _plain(table: pa.Table) -> pa.Table:
    """Columns of values of many types as JSON, which a file of columns can hold."""
    for at, field in enumerate(table.schema):
        if holds_mixed(field.type):
            values = table.column(at).to_pylist()
            texts = [None if one is None else to_json(one).decode() for one in values]
            table = table.set_column(at, field.name, pa.array(texts, pa.string()))
    return table
