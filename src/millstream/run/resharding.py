"""Another number of shards for a stopped flow: `millstream reshard`.

Every stored row is dealt to the shard where the next batch will look for it. How the rows of a
table lie its operator has said (`operators/filing.py`); nothing here knows what operators do. It is
a commit like any other: new segments, and one manifest that names them and the new number. Until
that has its name nothing has changed, and afterwards everything has.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa

from millstream.errors import CheckpointError, ConfigError, RunError
from millstream.operators.filing import AGAIN, FUNCTION, Filed, Tables, filed
from millstream.ops.chunks import flat
from millstream.plan.stages import Plan
from millstream.run import faults
from millstream.run.program.adopting import without_dropped
from millstream.run.program.program import check_program, renew_lease
from millstream.state.bases import Segments
from millstream.state.checkpoint import Checkpoint
from millstream.state.manifests import Manifest, shards_of
from millstream.state.segments import Segment, SegmentFile, read_segments, safe_name, write_segment
from millstream.state.storage import NO_ROOM
from millstream.state.unflushed import is_ahead_of_flush

_MOST = 2**20
_ROWS = 500_000  # about so many in memory, or one shard of a table if it has more


@dataclass
class Resharded:
    """What was done."""

    before: int
    now: int
    batch: int = -1  # the batch that it is; -1: nothing was stored
    rows: dict[str, int] = field(default_factory=dict)  # operator -> rows that were dealt anew
    again: list[str] = field(default_factory=list)  # tables that are computed again


def reshard(path: str | Path, shards: int, plan: Plan | None = None) -> Resharded:
    """Part the state of a stopped flow into another number of shards.

    plan: of its program; needed only if keys lie where a function of it says.
    """
    if not 1 <= shards <= _MOST:
        raise ConfigError(f"shards={shards}: expected a number from 1 to {_MOST:,}")
    checkpoint = Checkpoint(path, create=False)
    checkpoint.lock(otherwise=": shards are changed while a flow is stopped")
    try:
        return _reshard(checkpoint, shards, plan)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        raise RunError(
            f"the disk is full ({error}); the shards are what they were and nothing is lost: free "
            "some space and run the same command again"
        ) from error
    finally:
        checkpoint.close()


def _reshard(checkpoint: Checkpoint, shards: int, plan: Plan | None) -> Resharded:
    program = checkpoint.read_whole_program()
    if program is None:
        raise CheckpointError(
            f"no flow was ever started on {checkpoint.path}; start it with shards={shards}"
        )
    if plan is not None:
        check_program(plan, checkpoint, None, 1)
    latest = checkpoint.take_over()
    done = Resharded(shards_of(latest, program), shards)
    if shards == done.before == program["shards"]:
        return done
    _check_published(checkpoint, latest)
    _check_flushed(checkpoint, latest)
    renew_lease(checkpoint, program)
    if latest is not None and done.before != shards:
        checkpoint.discard_uncommitted(latest.batch)
        tables = filed(program.get("stored")) if plan is None else _tables(plan)
        try:
            manifest = _dealt(checkpoint, without_dropped(latest, program), tables, done)
        except BaseException:
            checkpoint.discard_uncommitted(latest.batch)
            raise
        faults.crash_point("before-manifest", manifest.batch)
        checkpoint.commit(manifest)
        faults.crash_point("after-manifest", manifest.batch)
        checkpoint.mark_published(manifest.batch)
        done.batch = manifest.batch
    program.setdefault("first_shards", program["shards"])
    program["shards"] = shards
    checkpoint.write_program(program)
    return done


def _check_published(checkpoint: Checkpoint, latest: Manifest | None) -> None:
    """What a batch has given must have left before another batch follows it."""
    published = checkpoint.published()
    if latest is None or not latest.outputs:
        return
    if published is None or published.batch != latest.batch:
        raise CheckpointError(
            f"batch {latest.batch} of {checkpoint.path} is committed, and not all of its results "
            "are where they belong; start the flow once, stop it, and run the same command again"
        )


def _check_flushed(checkpoint: Checkpoint, latest: Manifest | None) -> None:
    """Slates in memory alone cannot be dealt; a run that was killed has left some."""
    for owner, tables in (latest.segments if latest is not None else {}).items():
        if is_ahead_of_flush(tables):
            raise CheckpointError(
                f"slates of {owner!r} are not flushed, since the last run of {checkpoint.path} was "
                "killed; start the flow once, stop it, and run the same command again"
            )


def _tables(plan: Plan) -> Tables:
    return {
        owner: tables
        for operator in plan.operators.values()
        for owner, tables in operator.stored().items()
    }


def _dealt(
    checkpoint: Checkpoint, latest: Manifest, tables: Tables | None, done: Resharded
) -> Manifest:
    """The manifest that follows, with all its segments written."""
    segments: Segments = {}
    files: dict[str, SegmentFile] = {}
    for owner, several in latest.segments.items():
        for table, shards in several.items():
            if not any(shards.values()):
                continue
            how = _how(checkpoint, tables, owner, table)
            if how.dealt == AGAIN:
                done.again.append(f"{owner}: {table}")
                continue
            dealing = _Dealing(checkpoint, latest, owner, table, how, done)
            segments.setdefault(owner, {})[table] = dealing.run(shards)
            files.update(dealing.files)
    return msgspec.structs.replace(
        latest, batch=latest.batch + 1, shards=done.now, segments=segments, files=files, outputs=[]
    )


def _how(checkpoint: Checkpoint, tables: Tables | None, owner: str, table: str) -> Filed:
    how = (tables or {}).get(owner, {}).get(table)
    if how is None:
        raise CheckpointError(
            f"{checkpoint.path} does not say how the rows of {owner!r} ({table}) lie: it was last "
            "run by an older version; start the flow once with this one, stop it, and run the same "
            "command again"
        )
    if how.dealt == FUNCTION and how.function is None:
        raise CheckpointError(
            f"keys of {owner!r} lie where a function of the program says (key_by(partition=)); "
            "name the file of the flow with --app APP.PY"
        )
    return how


class _Dealing:
    """One table on its way into other shards."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        latest: Manifest,
        owner: str,
        table: str,
        how: Filed,
        done: Resharded,
    ) -> None:
        self.root, self.latest, self.how, self.done = checkpoint.state, latest, how, done
        self.owner, self.table = owner, table
        self.files: dict[str, SegmentFile] = {}
        self.attempt = uuid.uuid4().hex[:12]

    def run(self, stored: dict[str, list[Segment]]) -> dict[str, list[Segment]]:
        """Deal all rows, some shards at a time; gives the segments of the new ones."""
        found: dict[str, list[Segment]] = {}
        for number, rows in enumerate(self._pieces(stored)):
            name = (
                f"{safe_name(self.owner)}/{safe_name(self.table)}/"
                f"{self.latest.batch + 1:08d}-{number:04d}-{self.attempt}.arrow"
            )
            file, written = write_segment(self.root, name, rows, self.how.by)
            self.files[name] = file
            for shard, segment in written.items():
                found.setdefault(str(shard), []).append(segment)
            self.done.rows[self.owner] = self.done.rows.get(self.owner, 0) + len(rows)
            faults.crash_point("shards-dealt", self.latest.batch + 1)
        return found

    def _pieces(self, stored: dict[str, list[Segment]]) -> Iterator[pa.Table]:
        """Rows with their new shards; every piece is made of whole old ones."""
        held: list[pa.Table] = []
        for shard in sorted(stored, key=int):
            segments = stored[shard]
            if held and sum(map(len, held)) + sum(one.rows for one in segments) > _ROWS:
                yield from self._piece(held)
                held = []
            held += [self._rows(shard, one) for one in segments]
        yield from self._piece(held)

    def _rows(self, shard: str, segment: Segment) -> pa.Table:
        """The rows of a segment; if they do not belong where they lie, all is left as it is."""
        (rows,) = read_segments(self.root, [segment], self.latest.files, self.how.by)
        found = self.how.shards(rows, self.done.before)
        if found is None or (found != int(shard)).any():
            said = "partition= gives" if self.how.dealt == FUNCTION else "their keys give"
            raise CheckpointError(
                f"rows of {self.owner!r} ({self.table}) are stored in shard {shard} of "
                f"{self.done.before}, and {said} others; the state is left as it was"
            )
        return rows

    def _piece(self, held: list[pa.Table]) -> Iterator[pa.Table]:
        rows = self.how.together(held) if held else None
        if rows is None or not len(rows):
            return
        found = self.how.shards(rows, self.done.now)
        at = rows.schema.get_field_index("shard")
        yield rows.set_column(at, "shard", pa.array(np.asarray(found), flat(rows.column(at)).type))
