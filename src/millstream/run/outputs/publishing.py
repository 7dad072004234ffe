"""Publishing a committed batch: files get their names, functions get their rows.

Everything to be published is named in the manifest and lies staged on disk, so a crash here is
followed by the same steps once more.
"""

from __future__ import annotations

import zlib
from typing import Any

import pyarrow as pa

from millstream.api.sinks import Call, Console, FileSink, Memory
from millstream.errors import RunError
from millstream.io.writers import check_staged, publish_file
from millstream.run import faults, notebook
from millstream.run.outputs.handing import Hands
from millstream.run.outputs.mirroring import RowMirror
from millstream.run.outputs.tables.taking import Tabled
from millstream.run.outputs.topics import TopicSink
from millstream.showing import visible
from millstream.state.manifests import Manifest, Output, Place, staged_at
from millstream.state.segments import safe_name
from millstream.state.storage import Storage, open_storage

_DONE = ".done"  # rows that were handed over, until the whole batch is marked as published


def stage_delivery(directory: Storage, batch: int, sink: str, table: pa.Table) -> Output:
    """Keep rows for a sink in the driver until they have been handed over."""
    out = pa.BufferOutputStream()
    with pa.ipc.new_file(out, table.schema) as writer:
        writer.write_table(table)
    data = out.getvalue()
    name = f"{batch:08d}-{safe_name(sink)}.arrow"
    directory.put(name, data)
    return Output(sink, name, None, len(table), len(data), zlib.crc32(data))


def recover(
    manifest: Manifest,
    sinks: dict[str, Any],
    deliveries: Storage,
    hands: Hands | None = None,
    *,
    known: bool,
) -> None:
    """Publish a batch after a crash: what was staged must still be what was written.

    `known`: the batch is certain not to be published; otherwise rows that are no longer staged
    were handed over before.
    """
    for output, place in located(manifest, sinks, deliveries):
        if output.sink not in sinks:
            raise RunError(
                f"sink {output.sink!r} is gone, and {output.rows} rows of committed batch "
                f"{manifest.batch} wait for it; start once more with the sink, then without it"
            )
        check_staged(place, output.size, output.checksum)
        staged = place.staged
        missing = not any(map(place.storage.exists, (staged, staged + _DONE)))
        if known and place.final is None and missing:
            raise RunError(
                f"the staged file {place.storage.where(staged)} of a committed batch is missing, "
                f"and it is not known whether sink {output.sink!r} got its {output.rows} rows; "
                "to go on without them remove the file 'published' in the checkpoint"
            )
    publish(manifest, sinks, deliveries, hands)


def publish(
    manifest: Manifest, sinks: dict[str, Any], deliveries: Storage, hands: Hands | None = None
) -> None:
    """Give files their final names, then hand rows to the sinks in this process."""
    outputs = located(manifest, sinks, deliveries)
    for number, (output, place) in enumerate(outputs):
        if place.final is not None:
            publish_file(place, output.size, output.checksum)
        if number == 0:
            faults.crash_point("half-published", manifest.batch)
    for output, place in outputs:
        if place.final is None and place.storage.exists(place.staged):
            table = pa.ipc.open_file(pa.py_buffer(place.storage.read(place.staged))).read_all()
            _deliver(output, sinks.get(output.sink), table, manifest.batch, hands or Hands())
            place.storage.rename(place.staged, place.staged + _DONE)


def located(
    manifest: Manifest, sinks: dict[str, Any], deliveries: Storage
) -> list[tuple[Output, Place]]:
    """The outputs of a batch with their places, which the plan decides and not the manifest."""
    found = []
    for output in manifest.outputs:
        spec = sinks.get(output.sink)
        directory = open_storage(spec.directory) if isinstance(spec, FileSink) else None
        found.append((output, staged_at(manifest.batch, output, directory, deliveries)))
    return found


def _deliver(output: Output, sink: Any, table: pa.Table, batch: int, hands: Hands) -> None:
    name = output.sink
    match sink:
        case Memory():
            sink.tables.append(table)
        case Console():
            if not notebook.refresh(name, sink, table, batch):
                _print(name, sink, table, batch)
        case RowMirror():
            sink.deliver(table, batch)
        case Tabled() | TopicSink():
            sink.deliver(table, batch, output.checksum)
        case Call():
            hands.hand(name, sink.fn, table.to_pylist())


def _print(name: str, sink: Console, table: pa.Table, batch: int) -> None:
    from rich.console import Console as Terminal
    from rich.table import Table

    shown = Table()
    for column in table.column_names:
        shown.add_column(_cell(column))
    for row in table.slice(0, sink.limit).to_pylist():
        shown.add_row(*(_cell(value) for value in row.values()))
    terminal = Terminal()
    terminal.print(f"{name}, batch {batch}: {len(table):,} rows", markup=False, highlight=False)
    terminal.print(shown)
    if len(table) > sink.limit:
        terminal.print(f"... and {len(table) - sink.limit:,} more")


def _cell(value: Any) -> str:
    from rich.markup import escape

    if isinstance(value, float):
        return f"{value:,.4f}"
    return "" if value is None else escape(visible(str(value)))
