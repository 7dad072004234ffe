"""The types of values in the files of a checkpoint: whoever wrote them, they are in their range.

A checkpoint is data (`checkpoint.py`). What is read from one is decoded into these types, so that
the code behind can rely on them, and what does not fit is refused with the name of the file.
"""

from __future__ import annotations

from typing import Annotated, Any, TypedDict

from msgspec import Meta

Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]  # times, and whatever else NumPy takes
Count = Annotated[int, Meta(ge=0, le=2**62)]  # numbers, sizes, offsets
Seconds = Annotated[float, Meta(ge=-1e11, le=1e11)]  # of the clock
Amount = Annotated[float, Meta(ge=0, le=1e18)]  # what was measured
Number = Annotated[str, Meta(pattern="^[0-9]{1,9}$")]  # a key of JSON that is a number
Identity = Annotated[int, Meta(ge=0)]  # of a file: some file systems use all 64 bits
FilePath = Annotated[str, Meta(pattern=r"\A[^\x00]+\Z")]
Print = Annotated[list[Count], Meta(max_length=3)]  # `io/prints.py`
Firing = Annotated[list[Int64], Meta(max_length=4)]  # `ops/emitting/firing.py`
Pair = Annotated[list[Int64], Meta(min_length=2, max_length=2)]
Spell = Annotated[list[Int64], Meta(min_length=5, max_length=5)]  # `ops/times/shares.py`


class Operator(TypedDict, total=False):
    """What is kept of a keyed operator, as far as it is used for more than to be compared."""

    family: str
    keys: list[str | list[str]]
    kind: str
    aggregates: dict[str, str]
    keeps: list[str]
    plain: bool
    cycle: list[str] | None


class Family(TypedDict, total=False):
    """What is kept of a family of windows."""

    unit: Annotated[int, Meta(ge=1, le=2**62)]
    states: list[str]
    holds: bool
    held: list[str]


class Reader(TypedDict):
    """What is kept of a step that works on changes: whose these are, and what is in between."""

    of: list[str]
    steps: list[str]


class Dropped(TypedDict):
    """What the program has given up, and the last batch that has it."""

    operators: dict[str, Int64]
    tables: dict[str, dict[str, Int64]]


class Step(TypedDict):
    """A node of the graph that is shown."""

    name: str
    kind: str
    level: Int64 | None


class Graph(TypedDict):
    """The graph that is shown."""

    nodes: list[Step]
    edges: list[Annotated[list[str], Meta(min_length=2, max_length=2)]]


class Program(TypedDict, total=False):
    """`flow.json`."""

    format: Annotated[int, Meta(ge=1, le=1)]
    id: Annotated[str, Meta(pattern="^[0-9A-Za-z]{1,64}$")]
    flow: str
    shards: Annotated[int, Meta(ge=1, le=2**20)]
    first_shards: Annotated[int, Meta(ge=1, le=2**20)]
    stored: dict[str, dict[str, list[Any]]]
    sources: dict[str, dict[str, Any]]
    operators: dict[str, Operator]
    families: dict[str, Family]
    changes: dict[str, Reader]
    sinks: dict[str, str]
    numbers: dict[str, Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]]
    graph: Graph
    born: dict[str, Int64]
    since: dict[str, dict[str, Int64]]
    dropped: Dropped
    epoch: Count
    lease: str


# Without these nothing can go on; other parts came with later versions.
WHOLE = ("id", "flow", "shards", "sources", "operators", "families", "born", "since")
OF_OPERATOR = ("family", "keys", "kind")
OF_FAMILY = ("unit", "states", "holds")
