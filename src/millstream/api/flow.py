"""Flows: a graph under construction, and the two ways to run it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from millstream.api.arguments import check_path
from millstream.api.early import Bounds, Snapshot, looks
from millstream.api.elsewhere import FLOWS, absent, one_of
from millstream.api.frames import plainly
from millstream.api.samples import Explained, Preview, Sample
from millstream.api.sources import SourceSpec
from millstream.api.sources.kafka import Kafka
from millstream.api.stream import Stream
from millstream.durations import Duration
from millstream.errors import ConfigError
from millstream.graph import nodes as graph
from millstream.settings import Settings
from millstream.state.locations import located

if TYPE_CHECKING:
    from millstream.run.handle import Handle
    from millstream.run.reporting import Progress
    from millstream.sql.catalog import Catalog
    from millstream.sql.session import Answer, Session

USUAL = ""  # the checkpoint of a run that names none: .millstream/<flow>
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\- ]{0,99}")


@plainly
class Flow:
    """A directed graph of sources, operators and sinks. Building it runs nothing."""

    def __init__(self, name: str) -> None:
        self.name = _checked_name("Flow", name)
        self._nodes: list[graph.Node] = []
        self._stems: dict[str, int] = {}
        self._stem_of: dict[graph.Node, str] = {}  # steps whose name nobody gave
        self._sql: Session | None = None
        self._query: tuple[str, int] | None = None  # what is built now, and after how many steps

    if not TYPE_CHECKING:  # a checker of types shall go on to see what is missing

        def __getattr__(self, name: str) -> Any:
            raise absent("flow", name, FLOWS, Flow)

    @property
    def nodes(self) -> tuple[graph.Node, ...]:
        """All nodes, inputs before those that use them."""
        return tuple(self._nodes)

    def source(self, source: SourceSpec, *, name: str | None = None) -> Stream:
        """Records from a source."""
        if not isinstance(source, SourceSpec):
            raise ConfigError(
                f"source(): expected {one_of(SourceSpec)}, got {type(source).__name__}"
                + (f"; write ms.Files({str(source)!r})" if isinstance(source, str | Path) else "")
            )
        if isinstance(source, Kafka):
            source.check_source()
        stem = type(source).__name__.lower()
        return Stream(self, self.add(graph.Source, stem, (), name=name, spec=source))

    def stream(self, name: str) -> Stream:
        """A stream that updaters publish to with `ctx.publish(name, key, value)`.

        Its records have the columns `key` and `value`. It may lead to an updater that publishes to
        it: a cycle.
        """
        return Stream(self, self.add(graph.Published, "stream", (), name=name))

    def step(self, name: str) -> Stream:
        """The stream of a source or step that is there by its name, to go on from it."""
        found = [one for one in self._nodes if one.name == name and not isinstance(one, graph.Sink)]
        if not found:
            there = ", ".join(one.name for one in self._nodes if not isinstance(one, graph.Sink))
            raise ConfigError(
                f"step({name!r}): flow {self.name!r} has no such stream; it has: {there or 'none'}"
            )
        return Stream(self, found[0])

    def sql(self, text: str) -> Any:
        """Do what statements of SQL ask for; all of them, or none if one is wrong.

        Gives what the last one gave: a query, view or stream a `Stream`, `SHOW`, `DESCRIBE` and
        `EXPLAIN` a text, `DROP` None. Streams of this flow are tables by their names.
        """
        last = self.answers(text)[-1]
        return last.stream if last.text is None else last.text

    def answers(self, text: str) -> list[Answer]:
        """The same, with what every statement gave."""
        return self._session().run(text)

    def function(self, name: str, fn: Callable[..., Any], returns: Any = None) -> None:
        """Make a Python function callable in SQL; it is called once per row.

        returns: the type of what it gives, like "double"; without it, what its annotation says. It
            must give the same for the same arguments.
        """
        from millstream.sql.functions import register

        register(self._session().functions, name, fn, returns)

    @property
    def catalog(self) -> Catalog:
        """What SQL finds by name."""
        return self._session().catalog

    def _session(self) -> Session:
        if self._sql is None:
            from millstream.sql.session import Session

            self._sql = Session(self)
        return self._sql

    def explain(self, checkpoint: str | Path | None = None, *, look: bool = False) -> str:
        """The plan as text: stages, operators, and which strategy each window got and why.

        With a checkpoint it also says what happened up to the last committed batch. With `look` it
        looks at the first records of the sources, and names the columns and types of every step.
        """
        from millstream.plan.explain import explain

        check_path("explain(checkpoint)", checkpoint)
        found: dict[str, pa.Schema] = {}
        if look:
            steps = [node.name for node in self._nodes if not isinstance(node, graph.Sink)]
            found = {name: one.schema for name, one in self.sampled(steps, 1, 10_000).items()}
        text = explain(self.name, self.nodes, checkpoint, found)
        return Explained(text, lambda: self._drawn(self.nodes, checkpoint))

    def __repr__(self) -> str:
        from millstream.plan.explain import outline

        return outline(self.name, self._nodes)

    def _repr_svg_(self) -> str | None:
        """A picture of the plan, for notebooks."""
        return self._drawn(self.nodes) if self._nodes else None

    def _drawn(
        self, several: tuple[graph.Node, ...], checkpoint: str | Path | None = None
    ) -> str | None:
        """A picture of some steps, no wider than a notebook."""
        from millstream.plan.picture import draw

        return draw(self.name, several, checkpoint).replace(
            "<svg ", '<svg style="max-width: 100%; height: auto" ', 1
        )

    def picture(self, path: str | Path, checkpoint: str | Path | None = None) -> Path:
        """Draw the plan as an SVG file; with a checkpoint, with the figures of the last batch."""
        from millstream.plan.picture import picture

        check_path("picture(path)", path)
        check_path("picture(checkpoint)", checkpoint)
        return picture(self.name, self.nodes, path, checkpoint)

    def preview(self, n: int = 5, *, records: int = 10_000) -> Preview:
        """The first `n` rows of every stream that is sent somewhere, by the name of its step.

        It works in this process on the first records of every source, without Spark and without a
        checkpoint, and sends nothing anywhere.
        records: how many of each source; windows over them leave as at the end of the input.
        """
        ends = [one for node in self._nodes if isinstance(node, graph.Sink) for one in node.inputs]
        if not ends:
            used = {one for node in self._nodes for one in node.inputs}
            ends = [node for node in self._nodes if node not in used]
        return Preview(self.sampled([node.name for node in ends], n, records))

    def run(self, checkpoint: str | Path | None = USUAL, **options: Any) -> Progress:
        """Run to the end of the input, or until interrupted; gives the final progress.

        checkpoint: where it remembers how far it is; by default .millstream/<name>. None remembers
            nothing: every run begins anew, and `Memory` holds the rows of the last one.
        Options are the fields of `millstream.Settings`, such as master="local[4]". It shows a bar
        where somebody looks, and gives warnings to the logger `millstream`, unless quiet=True.
        """
        from millstream.run.console import follow

        quiet = Settings.from_options(options).quiet
        return follow(self.start(checkpoint, **options), self.name, quiet=quiet)

    def start(self, checkpoint: str | Path | None = USUAL, **options: Any) -> Handle:
        """The same without blocking: the handle has `progress`, `stop()` and `wait()`."""
        from millstream.run.runner import start

        return start(self, self._place(checkpoint), Settings.from_options(options))

    def _place(self, checkpoint: str | Path | None) -> Path | None:
        if checkpoint == USUAL:
            return Path(".millstream") / self.name
        if checkpoint is not None and not isinstance(checkpoint, str | Path):
            raise ConfigError(
                f"checkpoint={checkpoint!r}: expected a path, or None for a run that remembers "
                f"nothing, got {type(checkpoint).__name__}"
            )
        return None if checkpoint is None else located(checkpoint)

    def snapshots(
        self,
        at: Iterable[float] | None = None,
        *,
        every: Duration | None = None,
        until: Bounds | None = None,
        confidence: float = 0.95,
        interval: str = "anytime",
        step: str | None = None,
        seed: int = 0,
        metric: Callable[[dict[str, Any]], float | None] | None = None,
        ratios: Mapping[str, tuple[str, str]] | None = None,
        publish: str | Path | None = None,
        checkpoint: str | Path | None = USUAL,
        **options: Any,
    ) -> Iterator[Snapshot]:
        """Run over stored files in a random order of blocks, and give answers on the way.

        at: shares of the input at which to look; every: or how often. until: `ms.rel_error(0.01)`,
            `ms.time_limit("30s")`, or both with `|`: whichever is reached first ends the run.
        confidence: how sure bounds are to be. interval: "anytime" for bounds that hold at all
            snapshots together, "pointwise" for narrower ones that hold at each by itself.
        step: the aggregate that is looked at, if there are several. seed: of the random order.
        metric: gets a row of what was seen of a group (its key, counts and sums) and gives the
            share of the group that this is, if you know it better than by the share that was read.
        ratios: of two counts or sums, by name, as {"rate": ("clicks", "views")}.
        publish: a directory where each snapshot appears as a file, for `ms.newest_snapshot`.
        The last snapshot is exact unless a bound came before; then the same call goes on.
        """
        from millstream.run.runner import plan_snapshots, snapshots

        asked = looks(
            at,
            every,
            until,
            confidence=confidence,
            interval=interval,
            step=step,
            seed=seed,
            metric=metric,
            ratios=ratios,
            publish=None if publish is None else Path(publish),
        )
        where = self._place(checkpoint)
        settings = Settings.from_options(options)
        plan = plan_snapshots(self, where, asked)
        return snapshots(self, where, settings, asked, plan)

    # -- looking, used by streams ---------------------------------------------------------------

    def told(self, node: graph.Node) -> str:
        """One step in one line."""
        from millstream.plan.explain import told_step

        return told_step(node)

    def sampled(self, steps: Iterable[str], rows: int, records: int) -> dict[str, Sample]:
        """The first rows of some steps."""
        from millstream.run.exploring import sample

        for what, given in (("rows", rows), ("records", records)):
            if isinstance(given, bool) or not isinstance(given, int) or given < 1:
                raise ConfigError(f"how many {what} to look at: expected from 1 on, got {given!r}")
        return sample(self, dict.fromkeys(steps), rows, records)

    def collected(self, step: str, options: dict[str, Any]) -> pa.Table:
        """All rows of a step."""
        from millstream.run.exploring import collect

        return collect(self, step, options)

    # -- building, used by streams --------------------------------------------------------------

    @classmethod
    def of_nodes(cls, name: str, nodes: Iterable[graph.Node]) -> Flow:
        """A flow of nodes that are there already, inputs first."""
        flow = cls(name)
        flow._nodes = list(nodes)
        return flow

    def add(
        self,
        cls: type[graph.Node],
        stem: str,
        inputs: tuple[graph.Node, ...] = (),
        *,
        name: str | None = None,
        **fields: Any,
    ) -> graph.Node:
        """Append a node under a name of its own; one that was found here gives way to a user's."""
        found = name is None
        if name is None:
            stem = stem if self._query is None else f"{self._query[0]} {stem}"
            name = self._free(stem)
        else:
            self._claim(_checked_name("name", name))
        node = cls(name=name, inputs=inputs, **fields)
        self._nodes.append(node)
        if found:
            self._stem_of[node] = stem
        return node

    def rename(self, node: graph.Node, name: str) -> graph.Node:
        """Give a node that nothing uses yet another name."""
        if node.name == name:
            self._stem_of.pop(node, None)
            return node
        _checked_name("named", name)
        if any(node in other.inputs for other in self._nodes):
            raise ConfigError(
                f"named({name!r}): step {node.name!r} is already used; name it right where it is "
                "made"
            )
        self._claim(name)
        renamed = replace(node, name=name)
        self._nodes[self._nodes.index(node)] = renamed
        return renamed

    def is_named(self, node: graph.Node) -> bool:
        """Whether somebody gave a step its name."""
        return node not in self._stem_of

    def remove(self, nodes: Iterable[graph.Node]) -> None:
        """Take away steps that nothing else uses."""
        gone = set(nodes)
        self._nodes = [node for node in self._nodes if node not in gone]

    @contextmanager
    def attempt(self, keep: bool = True) -> Iterator[None]:
        """What is built within is taken back if it fails, or if it is not to be kept."""
        nodes, names = list(self._nodes), [node.name for node in self._nodes]
        stems, stem_of = dict(self._stems), dict(self._stem_of)
        done = False
        try:
            yield
            done = keep
        finally:
            if not done:
                self._nodes, self._stems, self._stem_of = nodes, stems, stem_of
                for node, name in zip(nodes, names, strict=True):
                    object.__setattr__(node, "name", name)

    @contextmanager
    def query(self, name: str) -> Iterator[None]:
        """What is built within is a query of its own: it may be taken away again by itself.

        Steps nobody named have its name before theirs, so they are called the same whichever other
        queries there are, and the steps that were there before stay as they are.
        """
        before, names = list(self._nodes), [node.name for node in self._nodes]
        self._query = (_checked_name("query", name), len(before))
        try:
            yield
        finally:
            self._query = None
        stayed = self._nodes[: len(before)]
        if stayed != before or [node.name for node in stayed] != names:
            raise ConfigError(
                f"query {name!r} changes steps that were there before it; a query only adds some"
            )

    def _free(self, stem: str) -> str:
        """A name nobody has, and that no step of this kind had before."""
        number = self._stems.get(stem, 0) + 1
        name = stem if number == 1 else f"{stem}_{number}"
        while any(node.name == name for node in self._nodes):
            number += 1
            name = f"{stem}_{number}"
        self._stems[stem] = number
        return name

    def _claim(self, name: str) -> None:
        """Make a name free for a step that was given it."""
        holder = next((node for node in self._nodes if node.name == name), None)
        if holder is None:
            return
        own = self._query is None or self._nodes.index(holder) >= self._query[1]
        if holder not in self._stem_of or not own:
            raise ConfigError(
                f"flow {self.name!r} already has a step named {name!r}; give one another name="
            )
        # Nodes know each other by identity, so that one can get another name where it stands.
        object.__setattr__(holder, "name", self._free(self._stem_of[holder]))


def _checked_name(what: str, name: Any) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(
            f"{what}: {name!r} is not a name; use letters, digits, '_', '-', '.', or spaces"
        )
    return name
