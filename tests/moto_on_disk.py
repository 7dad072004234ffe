"""Moto, a server of S3's protocol, with two things a real store has: moto_on_disk.py PORT [FOLDER].

Of several that create an object at once, one does: moto looks first and writes then, so that now
and then two could; here one request writes at a time. And with a folder its objects outlive it:
they are on disk before anybody can read them or is answered, and there when it is started again.
Parts of uploads under way do not outlive it, nor do attributes of objects.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import sys
import threading
from pathlib import Path
from typing import Any

from moto.core import DEFAULT_ACCOUNT_ID
from moto.core.utils import utcnow
from moto.s3.models import S3Backend, s3_backends
from moto.s3.responses import S3Response
from moto.server import main


def one_at_a_time() -> None:
    """Requests to write wait for each other."""
    put, turn = S3Response.put_object, threading.Lock()

    def put_in_turn(self: S3Response) -> Any:
        with turn:
            return put(self)

    S3Response.put_object = put_in_turn  # type: ignore[method-assign]


def keep(folder: Path) -> None:
    """Take up what is in a folder, and keep there what is done from now on."""
    create, put, delete = S3Backend.create_bucket, S3Backend.put_object, S3Backend.delete_object
    turn = threading.Lock()  # disk and memory see changes in the same order

    def place(bucket: str, key: str) -> Path:
        return folder / bucket / hashlib.sha256(key.encode()).hexdigest()

    def take_up(bucket: Path) -> None:
        backend = s3_backends[DEFAULT_ACCOUNT_ID]["aws"]
        create(backend, bucket.name, "us-east-1")
        for file in bucket.glob("[0-9a-f]*"):
            key, value, etag, modified = pickle.loads(file.read_bytes())
            put(backend, bucket.name, key, value, etag=etag).last_modified = modified

    def create_and_keep(self: S3Backend, bucket_name: str, *given: Any, **more: Any) -> Any:
        made = create(self, bucket_name, *given, **more)
        (folder / bucket_name).mkdir(exist_ok=True)
        return made

    def keep_and_put(
        self: S3Backend, bucket_name: str, key_name: str, value: bytes, *given: Any, **more: Any
    ) -> Any:
        modified, file = utcnow(), place(bucket_name, key_name)
        with turn:
            partial = file.with_name(".partial")
            partial.write_bytes(pickle.dumps((key_name, value, more.get("etag"), modified)))
            os.replace(partial, file)
            made = put(self, bucket_name, key_name, value, *given, **more)
            made.last_modified = modified
        return made

    def forget_and_delete(
        self: S3Backend, bucket_name: str, key_name: str, *given: Any, **more: Any
    ) -> Any:
        with turn:
            place(bucket_name, key_name).unlink(missing_ok=True)
            return delete(self, bucket_name, key_name, *given, **more)

    folder.mkdir(parents=True, exist_ok=True)
    for bucket in folder.iterdir():
        take_up(bucket)
    S3Backend.create_bucket = create_and_keep  # type: ignore[method-assign]
    S3Backend.put_object = keep_and_put  # type: ignore[method-assign,assignment]
    S3Backend.delete_object = forget_and_delete  # type: ignore[method-assign,assignment]


if __name__ == "__main__":
    port, *kept = sys.argv[1:]
    one_at_a_time()
    if kept:
        keep(Path(kept[0]))
    main(["-H", "127.0.0.1", "-p", port])
