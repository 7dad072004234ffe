"""What an agent sends: one sealed piece of what the first level made of its records.

A message is the output of one task of level 0 that ran where the records are: rows per shard for
operators, records for sinks, and the control part: accounts, dead letters, how far its time came.
It is a header in JSON and Arrow blocks, each with its length; several may follow each other in one
file of a spool. It is known by agent, life and number, so that it counts once however often it
comes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from millstream.errors import RunError
from millstream.ops.chunks import OFFSET_BITS, Chunk, Int64, decode_block, encode_block, numbers
from millstream.ops.records import DeadLetter
from millstream.state.manifests import SourceState
from millstream.state.values import Count
from millstream.state.values import Int64 as Whole

# A position says which agent, which of its files, and where in that: 2,047 agents of 65,536 files.
AGENT_BITS, FILE_BITS, PLACE_BITS = 11, 16, 36
MOST_AGENTS = 2**AGENT_BITS - 1
FORM = 2  # of what travels; another number for what an older release would not understand
MOST_BYTES = 64 * 1024 * 1024  # of one message
FULL = MOST_BYTES // 2  # no more is put into one; what relays add to it has room then
MESSAGES = "messages"  # what files of a spool with them end in
COMPRESSION = "zstd"  # of rows: keys and times of panes repeat
MOST_ROWS = 1 << 29  # bytes of the rows of one block, as they lie in memory
_LENGTH = 8  # bytes that say how long what follows is


def sender_of(agent: str, tree: int) -> str:
    """Whose messages are numbered together: an agent's in one tree; the first has its name alone.

    Names of agents are printable, so nobody is called like somebody's second tree.
    """
    return agent if tree == 0 else f"{agent}\x1f{tree}"


def agent_of(sender: str) -> str:
    """The agent of a sender."""
    return sender.partition("\x1f")[0]


class Block(msgspec.Struct, frozen=True, omit_defaults=True):
    """Some rows: for a table of an operator, or records for a sink."""

    to: str
    table: str  # of the operator; "" for a sink
    rows: Count
    src: Whole = 0  # of records: which origin they have
    shards: Count = 0  # into which the rows are parted


class Part(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one agent has in a message."""

    agent: str
    number: Count  # of the last of its messages that is in it
    first: Count | None = None  # of the first; None: it was made by a release that did not say
    tree: Count = 0  # which part of the key space its rows have; numbers go on within each
    reached: Whole | None = None  # how far all it reads has come; None: that holds nothing back
    ended: bool = False  # nothing more comes from this agent
    ahead: Whole = 0  # how far its clock is before the collector's, in microseconds
    late: dict[str, Count] = {}  # window -> records that were late for it where they were read
    panes: dict[str, list[tuple[Whole, Count]]] = {}  # window -> records per pane

    @property
    def sender(self) -> str:
        """Whose numbers it goes on with."""
        return sender_of(self.agent, self.tree)


class Head(Part, frozen=True, kw_only=True, omit_defaults=True):
    """The control part of a message: what its sender has in it, and what came of all of it."""

    life: Count  # of the sender's spool: numbers go on within it
    source: str
    rows: Count = 0  # records that were read for it
    seconds: float = 0.0
    top: Whole | None = None  # the latest time of all
    ledger: dict[str, dict[str, Whole]] = {}
    dead: list[tuple[str, Whole, Whole, str, str]] = []
    blocks: list[Block] = []
    of: list[Part] = []  # what a relay has put together of several; an agent's is its own
    senders: dict[str, Count] = {}  # of a relay's: whose messages are in it, and the last of each
    after: dict[str, SourceState] = {}  # where the agent goes on; stays with it

    @property
    def weight(self) -> int:
        """How many rows a task has to do with."""
        return max(1, sum(block.rows for block in self.blocks))

    @property
    def parts(self) -> list[Part]:
        """What each agent has in it."""
        own = {name: getattr(self, name) for name in Part.__struct_fields__}
        return self.of or [Part(**own | {"first": self.number})]

    @property
    def numbers(self) -> dict[str, int]:
        """How far everybody is whose numbers go on with it: its sender, and who is in it."""
        return {part.sender: part.number for part in self.of} | {self.sender: self.number}

    def letters(self) -> Iterator[DeadLetter]:
        """Its dead letters."""
        return (DeadLetter(*letter) for letter in self.dead)


Message = tuple[Head, list[bytes]]  # and its blocks
_heads = msgspec.json.Decoder(Head)


def pack(head: Head, blocks: Iterable[bytes]) -> bytes:
    """A message as bytes."""
    parts = [msgspec.json.encode(head), *blocks]
    framed = (part for one in parts for part in (len(one).to_bytes(_LENGTH, "big"), one))
    return b"".join(framed)


def unpack(data: bytes) -> Iterator[Message]:
    """The messages that follow each other in some bytes."""
    view, at = memoryview(data), 0

    def take() -> memoryview:
        nonlocal at
        size = int.from_bytes(view[at : at + _LENGTH], "big")
        start, at = at + _LENGTH, at + _LENGTH + size
        if at > len(view):
            raise RunError(f"a message of an agent is cut off at byte {len(view)} of {at}")
        return view[start:at]

    while at < len(view):
        head = read_head(bytes(take()))
        yield head, [bytes(take()) for _ in head.blocks]


def read_head(data: bytes) -> Head:
    """The control part, refused if it is anything else."""
    try:
        return _heads.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise RunError(f"a message of an agent cannot be read: {error}") from error


def check_blocks(head: Head, blocks: list[bytes]) -> None:
    """Refuse rows that are none: taken in, they would end every batch that reads them."""
    if len(blocks) != len(head.blocks):
        raise RunError(f"{len(head.blocks)} blocks were announced, {len(blocks)} came")
    for told, data in zip(head.blocks, blocks, strict=True):
        try:
            table = decode_block(data)
            table.validate(full=True)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise RunError(
                f"rows for {told.to!r} in message {head.number} of {head.agent!r} are damaged: "
                f"{error}"
            ) from None
        if table.nbytes > MOST_ROWS:
            raise RunError(f"rows for {told.to!r} take more than {MOST_ROWS >> 20} MiB")
        if len(table) != told.rows:
            raise RunError(f"{told.rows} rows for {told.to!r} were announced, {len(table)} came")


def only_counted(head: Head) -> Head:
    """A message of which nothing is left but that its records were dropped, and how far it came."""
    account = {"offered": head.rows, "dropped": head.rows}
    parts = [msgspec.structs.replace(part, late={}, panes={}) for part in head.of]
    return msgspec.structs.replace(
        head,
        ledger={head.source: account},
        dead=[],
        late={},
        panes={},
        blocks=[],
        of=parts,
        after={},
    )


def encode_records(chunk: Chunk) -> bytes:
    """Records that go to a sink as they are, with their time and place."""
    table = chunk.table.append_column("__ts", pa.array(chunk.ts))
    return encode_block(table.append_column("__pos", pa.array(chunk.pos)), COMPRESSION)


def decode_records(block: bytes, src: int) -> Chunk:
    """The inverse."""
    table = decode_block(block)
    ts, pos = (numbers(table, name) for name in ("__ts", "__pos"))
    return Chunk(table.drop_columns(["__ts", "__pos"]), ts, pos, src)


def placed_for(agent: int, positions: Int64, files: bool = True) -> Int64:
    """Positions in files of an agent as those of one source of many agents.

    files: else they go on from one to the next, as what is received does.
    """
    if not files:
        if len(positions) and int(positions.max()) >> (FILE_BITS + PLACE_BITS):
            raise RunError("an agent has received too much; start it under a new name")
        numbered: Int64 = (np.int64(agent) << (FILE_BITS + PLACE_BITS)) | positions
        return numbered
    file, place = positions >> OFFSET_BITS, positions & ((1 << OFFSET_BITS) - 1)
    if len(positions) and (int(file.max()) >> FILE_BITS or int(place.max()) >> PLACE_BITS):
        raise RunError(
            f"an agent can read {2**FILE_BITS:,} files of {2**PLACE_BITS >> 30} GiB each, and this "
            "is more; start it under a new name and with a new directory"
        )
    packed: Int64 = (np.int64(agent) << (FILE_BITS + PLACE_BITS)) | (file << PLACE_BITS) | place
    return packed


def place_of(position: int) -> dict[str, Any]:
    """Which agent (by its number), file and place a position stands for."""
    file = position >> PLACE_BITS & ((1 << FILE_BITS) - 1)
    return {
        "agent": position >> (FILE_BITS + PLACE_BITS),
        "file": file,
        "offset": position & ((1 << PLACE_BITS) - 1),
    }
