"""What a keyed operator is to those who run it: a family of windows, a group of updaters, others.

An operator runs one or more keyed steps of the graph. Beside the readers its *inlet* takes chunks
and gives rows per shard. Where the shards live, `run` makes results of them. Between batches, in
the driver, `order` says what its tasks must know of the last manifest, `wakes` whether time alone
gives it something to do, and `settle` writes into the next manifest what its tasks reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, runtime_checkable

import pyarrow as pa

from millstream.graph.nodes import Keyed, Node
from millstream.operators.batch import Batch, Clocks, Control
from millstream.operators.filing import Tables
from millstream.ops.chunks import Chunk
from millstream.ops.times.progress import SourceProgress
from millstream.ops.updates.cells import Publication
from millstream.settings import Settings
from millstream.state.manifests import Manifest

Types = dict[str, pa.DataType]
Columns = tuple[str, ...] | None  # None: not known
Senders = Counter[tuple[str, str | int]]  # records by source and participant, or number of a file


class Host(Protocol):
    """The task an operator works in: where its records go and its accounts are kept."""

    batch: Batch
    control: Control

    def push(self, step: str, chunk: Chunk, to: Callable[[str], bool] | None = None) -> None:
        """Give records of a step to all steps after it, or to some of them."""

    def consumers(self, step: str) -> list[Node]:
        """The steps after a step."""

    def number(self, step: str) -> int:
        """The number of a step in the identity of its records."""

    def inlet(self, step: str) -> Inlet | None:
        """The inlet of a step in this task; None if it is not keyed."""

    def push_late(self, step: str, late: Chunk) -> None:
        """Give what came too late for a step to those who asked for it."""

    def ledger(self, step: str) -> Counter[str]:
        """The account of a step."""

    def count(self, step: str, offered: int, dead: int) -> None:
        """Note what a step got, and how much of it it could not process."""

    def senders(self, records: Chunk) -> Senders:
        """Whose some of the records are that are being read."""


class Inlet(Protocol):
    """The side of an operator that stands beside the readers, in one task."""

    def take(self, step: Node, before: Node, chunk: Chunk) -> None:
        """Records that the step before gave to a step of the operator."""

    def take_published(self, step: Node, stream: Node, events: list[Publication]) -> bool:
        """Published events as they are; False if the step wants them as records."""

    def rows(self) -> Iterator[tuple[str, pa.Table]]:
        """What goes to the shards: tables, each with its name and a column `shard`."""


@runtime_checkable
class Partial(Protocol):
    """An inlet that must know what of rows made elsewhere has come too late meanwhile."""

    def take_partial(self, rows: pa.Table) -> pa.Table:
        """Rows that were made elsewhere; gives those that still count."""

    def note_sent(
        self, counts: dict[str, dict[int, int]], late: dict[str, int], sender: tuple[str, str]
    ) -> None:
        """Records per step that somebody sent, by pane; and that were late where they were read."""


@dataclass(frozen=True)
class Shipped:
    """Records that went into rows, as their account must be put right where the rows arrive."""

    late: dict[str, int]  # per step
    panes: dict[str, dict[tuple[int, int], int]]  # those that were taken, per step, tree and pane


@dataclass
class Share:
    """One operator's share of a batch in one task, where its shards live."""

    host: Host
    clocks: Clocks
    counts: Counter[str]  # keyed step -> records it got in this batch
    rows: dict[str, list[bytes]] = field(default_factory=dict)  # table -> blocks of it


@dataclass(frozen=True)
class Times:
    """Where time stands between two batches, and who brought it there."""

    progress: dict[str, SourceProgress]  # per source
    heard: dict[str, dict[str, int]]  # per source and participant: the wall clock when it was last
    inputs: dict[str, int]  # per keyed step the watermark before it
    outputs: dict[str, int]  # and after it
    started: int  # the wall clock since when this run listens: nobody was silent before
    until: dict[str, int]  # per source the wall clock up to which all that had come is in these


@dataclass(frozen=True)
class Known:
    """What the driver knows between two batches."""

    manifest: Manifest
    settings: Settings
    now: int  # the wall clock
    born: dict[str, int]  # keyed step that came later -> from when on it works
    since: dict[str, dict[str, int]]  # operator, state that came later -> from when on it is there
    cores: int = 1  # tasks at once
    ending: bool = False  # perhaps no batch follows: nothing may stay in memory alone
    times: Times | None = None  # None: a batch is being committed, and time is in it
    name_of: Callable[[str, str | int], str] = lambda source, who: str(who) or source
    # Calls what asks functions of the user's, under the name it has; given up if it hangs.
    ask: Callable[[str, Callable[[], Any]], Any] = lambda what, fn: fn()

    def reached(self, step: str) -> int | None:
        """How far a step has come, in microseconds."""
        return self.manifest.closed.get(step, self.born.get(step))

    def has_state(self, operator: str) -> bool:
        """Whether anything is stored of an operator."""
        tables = self.manifest.segments.get(operator, {}).values()
        return any(segments for table in tables for segments in table.values())


@dataclass(frozen=True)
class Backlog:
    """Where the rows lie that an operator has stored and not yet worked on.

    Segments are known by a column: by a time, or by panes. `worked`: rows before it were worked on.
    `closes`: up to which value of it a watermark lets the operator work. `lets`: how far its clock
    has to go so that it works on what comes before a value, and at least on what is there first.
    """

    owner: str
    tables: tuple[str, ...]
    worked: int
    closes: Callable[[int], int]
    moment: Callable[[int], int]  # the time of a value
    lets: Callable[[int], int]
    holdable: bool = True  # it works on less if its clock is held back
    timed: bool = True  # else its rows lie in no order of time: they are of the whole input


@dataclass(frozen=True)
class Done:
    """A batch all tasks of which have reported."""

    batch: Batch
    controls: list[Control]
    watermarks: dict[str, int]  # at the input of every keyed step, after it
    ended: bool  # the input has ended

    def reports(self, operator: str) -> list[Any]:
        """What an operator reported from its tasks."""
        return [one.reports[operator] for one in self.controls if operator in one.reports]


@runtime_checkable
class Evicting(Protocol):
    """An operator whose results may leave before its input has come so far."""

    def leaves(self, order: Any) -> dict[str, int]:
        """How far its steps come in a batch with this order whatever its input does."""


@runtime_checkable
class Throttling(Protocol):
    """An operator that may have enough to do, so that its sources are not read on."""

    def throttles(self, known: Known) -> bool:
        """Whether the sources above it are to wait in the next batch."""


@runtime_checkable
class Relieving(Protocol):
    """An operator that may have too much to do, so that some records are kept from its steps."""

    def relieved(self) -> tuple[str, ...]:
        """The steps of which this may be so: what became of their records is remembered."""


@runtime_checkable
class Concluding(Protocol):
    """An operator that gives results of all its input when that ends."""

    def has_concluded(self, manifest: Manifest) -> bool:
        """Whether it has given such results, so that more input changes what was said."""

    def cannot_resume(self, manifest: Manifest) -> str | None:
        """Why more input cannot be added to what these were made of; None: it can."""


@runtime_checkable
class Shipping(Protocol):
    """An operator whose rows may be made elsewhere, by agents."""

    def shipped(self, report: Any) -> Shipped:
        """What of a report made beside the records travels with the rows."""

    def merged(self, table: str, rows: pa.Table) -> pa.Table:
        """Rows of several tasks as those of one would be."""


class Operator(Protocol):
    """One or more keyed steps that share an exchange and state."""

    @property
    def name(self) -> str:
        """The name its rows and its state go by."""

    @property
    def steps(self) -> tuple[str, ...]:
        """The steps of the graph that it runs."""

    @property
    def counted(self) -> tuple[str, ...]:
        """Those whose records in a batch all tasks must be able to count."""

    def inlet(self, host: Host) -> Inlet:
        """A new inlet for a task that may have records for it."""

    def run(self, share: Share) -> None:
        """Take what came for the shards of a task, bring state up to date, push results."""

    def order(self, known: Known) -> Any:
        """What its tasks must know in the next batch."""

    def holds(self, known: Known) -> dict[str, int]:
        """How far its steps go at most in the next batch, if not as far as their input."""

    def backlog(self, known: Known) -> Backlog | None:
        """Where its rows wait; None: it works on all that comes at once."""

    def wakes(self, known: Known, watermarks: dict[str, int]) -> bool:
        """Whether it has something to do although no record has come."""

    def settle(self, known: Known, done: Done, manifest: Manifest) -> None:
        """Write into the manifest of a batch how far its steps came, and what else they need."""

    def stored(self) -> Tables:
        """The tables it may store, and how their rows lie, for when shards become more or fewer."""


@dataclass(frozen=True)
class Input:
    """What is known of one input of a step when the flow is planned."""

    name: str
    columns: Columns = None  # None: not known
    types: Types = field(default_factory=dict)
    changes: bool = False  # it takes back what it gave


Inputs = tuple[Input, ...]
Row = dict[str, Any]
# The columns that name a row: of each set one must be there. None: not by its columns.
Names = tuple[frozenset[str], ...] | None


@dataclass(frozen=True, eq=False, kw_only=True)
class KeyedStep(Keyed):
    """A keyed step with an operator of its own, and what the planner must know of it.

    A step with one input says it with `operator`, `columns`, `uses` and `answers`. One with several
    says it with the methods that are told of each: `operator_over`, `resolve`, `uses_of`,
    `answers_over`.
    """

    at_once: ClassVar[bool] = False  # what comes counts at once, not when the watermark passes it
    keys: tuple[str, ...]

    def mentions(self) -> Collection[str]:
        """Its key."""
        return self.keys

    def keys_of(self, number: int) -> tuple[str, ...]:
        """The columns of one input that must be there."""
        return self.keys

    def needs(self, number: int) -> Iterable[tuple[str, str, bool]]:
        """What it looks at in one input: what for, which column, whether of numbers only."""
        return (("key", name, False) for name in self.keys_of(number))

    def operator(self, number: int, changes: bool) -> Operator:
        """What runs it; `number` stands in the identity of its records.

        `changes`: its input takes back what it gave.
        """
        raise NotImplementedError

    def operator_over(self, number: int, inputs: Inputs) -> Operator:
        """The same, told of every input."""
        return self.operator(number, any(one.changes for one in inputs))

    def resolve(self, inputs: Inputs) -> tuple[Columns, Types]:
        """The columns it gives and their types, as far as they are known; refuses what cannot be.

        With one input: those of `columns`.
        """
        names = self.columns(inputs[0].columns)
        return names, {
            name: inputs[0].types[name] for name in names or () if name in inputs[0].types
        }

    def columns(self, have: Columns) -> Columns:
        """The columns it gives, from those it gets; None: not known."""
        return have

    def uses(self, wanted: set[str] | None) -> set[str] | None:
        """The columns it looks at if these of what it gives are wanted; None: all."""
        return None

    def uses_of(self, number: int, wanted: set[str] | None, inputs: Inputs) -> set[str] | None:
        """The same of one of its inputs."""
        return self.uses(wanted)

    def words(self) -> str:
        """What it does, for the plan."""
        return self.kind

    def details(self, inputs: Inputs) -> list[str]:
        """How it does that, for the plan, line by line."""
        return []

    def answers(self, rows: list[Row]) -> list[tuple[int, Row]]:
        """What it gives, in plain Python, for the reference: rows, and of which record each is.

        `rows` are all that came so far, in the order of time and place.
        """
        raise NotImplementedError

    def answers_in_time(self, rows: list[tuple[int, Row]]) -> list[tuple[int, Row]]:
        """The same, told the time of every record."""
        return self.answers([row for _, row in rows])

    def answers_over(self, inputs: list[list[tuple[int, Row]]]) -> list[tuple[int, Row]]:
        """The same over several inputs, of which all rows are given with their time."""
        raise NotImplementedError

    def row_names(self, before: tuple[Names, ...], inputs: Inputs) -> Names:
        """By which columns a reader finds a row it gave; `before`: the same of its inputs.

        None: rows have no name, so that none takes the place of another. No columns name the only
        row there is.
        """
        return None

    def remembered(self) -> dict[str, Any]:
        """What must not change from one start to the next on the same checkpoint."""
        return {}

    def described(self, inputs: Inputs) -> dict[str, Any]:
        """What a checkpoint has of it: also what those who read it want to know."""
        return self.remembered()
