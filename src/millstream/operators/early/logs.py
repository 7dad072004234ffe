"""What blocks gave, in the checkpoint: one object per batch, which counts once that is committed.

Names begin with the number of the batch, so what a batch left that was never committed goes with
everything else it left.
"""

from __future__ import annotations

import zlib

import pyarrow as pa

from millstream.errors import CheckpointError
from millstream.ops.chunks import decode_block, encode_block
from millstream.state.segments import safe_name
from millstream.state.storage import Storage


class Log:
    """The reports of one operator."""

    def __init__(self, checkpoint: Storage, operator: str) -> None:
        # No operator can have a name like this one.
        self._place = checkpoint.within("state").within("+early").within(safe_name(operator))

    def write(self, batch: int, kind: str, reported: pa.Table | None) -> None:
        """Keep what the tasks of a batch reported, also if that is nothing."""
        self._place.create()
        body = encode_block(reported) if reported is not None else b""
        check = zlib.crc32(body).to_bytes(4, "big")
        self._place.put(f"{batch:08d}.{kind}", check + body)

    def read(self, batch: int, kind: str) -> pa.Table | None:
        """What was reported in a batch, None if nothing was."""
        name = f"{batch:08d}.{kind}"
        data = self._place.read(name)
        if zlib.crc32(data[4:]).to_bytes(4, "big") != data[:4]:
            raise CheckpointError(
                f"{self._place.where(name)} is damaged; the answer itself does not need it: go on "
                "with flow.run() on this checkpoint, or begin again with a new one"
            )
        return decode_block(data[4:]) if len(data) > 4 else None

    def has(self, batch: int, kind: str) -> bool:
        """Whether a batch was kept."""
        return self._place.exists(f"{batch:08d}.{kind}")
