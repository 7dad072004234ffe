"""Compression of segments, where a sample of their rows says that it pays.

A segment that is not compressed is mapped: a search looks at the pages it needs. One that is must
be unpacked as a whole, shard by shard. So only what is hardly read again may be compressed, and is
if that saves enough bytes for the time it takes. Arrow unpacks by itself what it reads.
"""

from __future__ import annotations

import time

import pyarrow as pa

PLAIN = pa.ipc.IpcWriteOptions()
ZSTD = pa.ipc.IpcWriteOptions(compression="zstd", use_threads=False)
_LEAST = 16_384  # bytes: less is not worth looking at
_SAMPLE = 1 << 20  # bytes that are tried
_SAVED = 0.3  # the least share of bytes to be saved
_SPEED = 20e6  # and so many of them a second of this thread's processor time


def pays(rows: pa.Table) -> bool:
    """Whether rows are worth compressing, by what a sample of them comes to."""
    size = rows.nbytes
    if size < _LEAST:
        return False
    sample = rows.slice(0, max(1, len(rows) * _SAMPLE // size)).combine_chunks()
    begun = time.thread_time()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, sample.schema, options=ZSTD) as writer:
        writer.write_table(sample)
    spent = time.thread_time() - begun
    saved: int = sample.nbytes - len(sink.getvalue())
    return bool(saved >= max(_SAVED * sample.nbytes, _SPEED * spent))
