"""Object stores as they are asked: S3, Google's and Azure's by obstore, HDFS by hdfs-native.

A bucket has objects under keys. It knows nothing of checkpoints; `objects.py` does. Credentials are
taken from the environment and from the files that the tools of each store use, and no message has
them in it.
"""

from __future__ import annotations

import configparser
import contextlib
import errno
import itertools
import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import pyarrow as pa

from millstream.errors import CheckpointError, ConfigError

T = TypeVar("T")
_VERSION = re.compile(r"\.@([0-9]{8,18})$", re.ASCII)
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound", "The specified container does not exist")
_PATIENCE = 60  # seconds for which a store that is away is asked again


class Listed(NamedTuple):
    """An object as a listing shows it."""

    key: str
    size: int
    modified: float  # seconds
    tag: str  # something else whenever the content is


class Bucket(Protocol):
    """Objects under keys. What is not there is a FileNotFoundError."""

    def read(self, key: str, start: int = 0, size: int | None = None) -> bytes: ...

    def look(self, key: str) -> Listed | None: ...

    def list(self, folder: str) -> list[Listed]: ...

    def put(self, key: str, data: pa.Buffer | bytes) -> None: ...

    def create(self, key: str, data: pa.Buffer | bytes) -> None:
        """Put it if the key is free, else FileExistsError; which may be said of one's own."""

    def copy(self, key: str, to: str) -> None: ...

    def delete(self, key: str) -> None: ...


@lru_cache(maxsize=64)
def open_bucket(scheme: str, name: str) -> Bucket:
    """The bucket of a URL, asked for once per process."""
    return OnHdfs(name) if scheme == "hdfs" else OnStore(scheme, name)


class OnStore:
    """A bucket of S3, Google Cloud Storage or Azure."""

    def __init__(self, scheme: str, name: str) -> None:
        try:
            import obstore.store
        except ImportError as error:
            raise ConfigError(
                f"{scheme}://{name}: object stores need a package more: "
                "pip install 'millstream[s3]'"
            ) from error
        self.where = f"{scheme}://{name}"
        retry: Any = {"max_retries": 12, "retry_timeout": timedelta(seconds=_PATIENCE)}
        options: Any = {"timeout": timedelta(seconds=_PATIENCE), "allow_http": without_tls(scheme)}
        kinds = {"gs": obstore.store.GCSStore, "az": obstore.store.AzureStore}
        kind: Any = kinds.get(scheme, obstore.store.S3Store)
        config = _aws() if scheme == "s3" else {}
        try:
            self._store: Any = kind(name, config=config, client_options=options, retry_config=retry)
        except Exception as error:  # whatever obstore makes of settings that do not fit
            raise ConfigError(f"{self.where} cannot be used: {_line(error)}") from None

    def read(self, key: str, start: int = 0, size: int | None = None) -> bytes:
        if size is None:
            return self._ask(key, lambda: bytes(self._store.get(key).bytes()))[start:]
        some = partial(self._store.get_range, key, start=start, length=size)
        return self._ask(key, lambda: bytes(some())) if size else b""

    def look(self, key: str) -> Listed | None:
        try:
            return self._ask(key, lambda: _listed(self._store.head(key)))
        except FileNotFoundError:
            return None

    def list(self, folder: str) -> list[Listed]:
        def found() -> list[Listed]:
            some = self._store.list(prefix=folder or None, chunk_size=1000)
            return [_listed(one) for several in some for one in several]

        return self._ask(folder, found)

    def put(self, key: str, data: pa.Buffer | bytes) -> None:
        self._ask(key, lambda: self._store.put(key, bytes(data)))

    def create(self, key: str, data: pa.Buffer | bytes) -> None:
        put = partial(self._store.put, key, mode="create", use_multipart=False)
        self._ask(key, lambda: put(bytes(data)))

    def copy(self, key: str, to: str) -> None:
        self._ask(key, lambda: self._store.copy(key, to))

    def delete(self, key: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._ask(key, lambda: self._store.delete(key))

    def _ask(self, key: str, work: Callable[[], T]) -> T:
        """Ask a store; again if an answer is lost, which its client takes for an error."""
        begun = time.monotonic()
        for again in itertools.count():
            try:
                with self._asked(key):
                    return work()
            except OSError as error:
                if error.errno != errno.EIO or time.monotonic() - begun > _PATIENCE:
                    raise
                time.sleep(min(1.0, 0.05 * 2**again))
        raise AssertionError

    @contextlib.contextmanager
    def _asked(self, key: str) -> Iterator[None]:
        """Errors of a store as those of files, in one line and without what was sent."""
        from obstore import exceptions

        where = f"{self.where}/{key}"
        try:
            yield
        except (FileNotFoundError, exceptions.GenericError) as error:
            if any(code in str(error) for code in _NO_BUCKET):
                raise ConfigError(f"{self.where} does not exist; create it first") from None
            if isinstance(error, FileNotFoundError):
                raise FileNotFoundError(errno.ENOENT, "there is no such object", where) from None
            raise OSError(errno.EIO, f"the store did not answer: {_line(error)}", where) from None
        except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
            raise FileExistsError(errno.EEXIST, "is there already", where) from None
        except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
            raise PermissionError(errno.EACCES, _line(error), where) from None
        except exceptions.BaseError as error:
            raise OSError(errno.EIO, f"the store did not answer: {_line(error)}", where) from None


def _listed(found: Any) -> Listed:
    tag = found["e_tag"] or found["version"] or ""
    return Listed(found["path"], found["size"], found["last_modified"].timestamp(), tag)


def _line(error: Exception) -> str:
    """The first line of what a store says: the rest repeats it with what was sent."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


_ENDPOINTS = {
    "s3": ("AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "gs": ("GOOGLE_BASE_URL",),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}


def without_tls(scheme: str) -> bool:
    """Whether the environment names a server of its own for a kind of store, without TLS."""
    given = (os.environ.get(name) for name in _ENDPOINTS.get(scheme, ()))
    return next((one.startswith("http://") for one in given if one), False)


def _aws() -> Any:
    """What the files of AWS's tools say, where the environment says nothing."""
    profile = os.environ.get("AWS_PROFILE", "default")
    home = Path.home() / ".aws"
    files = (
        Path(os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or home / "credentials"),
        Path(os.environ.get("AWS_CONFIG_FILE") or home / "config"),
    )
    said: dict[str, str] = {}
    for path in files:
        found = configparser.ConfigParser(interpolation=None)
        with contextlib.suppress(OSError, configparser.Error, UnicodeDecodeError):
            found.read_string(path.read_text())
        for section in (profile, f"profile {profile}"):
            said = {**(dict(found[section]) if found.has_section(section) else {}), **said}
    keys = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
    given: dict[str, str] = {}
    if "AWS_ACCESS_KEY_ID" not in os.environ and keys[0] in said:
        given = {name.removeprefix("aws_"): said[name] for name in keys if name in said}
    if "region" in said and not {"AWS_REGION", "AWS_DEFAULT_REGION"} & os.environ.keys():
        given["region"] = said["region"]
    return given


class OnHdfs:
    """A name node of HDFS, or with no name the one that Hadoop's own settings name.

    A rename there is one step, and says of a name that is taken that it is, if it is told to. A
    file is no folder: what an epoch wrote of `x`, `x/@00000001`, lies beside it as `x.@00000001`.
    """

    def __init__(self, name: str) -> None:
        try:
            import hdfs_native
        except ImportError as error:
            raise ConfigError(
                f"hdfs://{name}: HDFS needs a package more: pip install 'millstream[hdfs]'"
            ) from error
        host, _, port = name.partition(":")
        try:
            if port:  # its client would wait for minutes
                socket.create_connection((host, int(port)), 10).close()
            self._files: Any = hdfs_native.Client(f"hdfs://{name}" if name else None)
        except (OSError, ValueError, RuntimeError) as error:
            raise ConfigError(
                f"hdfs://{name} cannot be reached: {_line(error)}; it is hdfs://namenode:8020, or "
                "a name of Hadoop's settings in HADOOP_CONF_DIR"
            ) from None

    def read(self, key: str, start: int = 0, size: int | None = None) -> bytes:
        with self._asked(key), self._files.read(_path(key)) as file:
            if size is not None:
                return bytes(file.read_range(start, min(size, file.size - start)))
            file.seek(start)
            return bytes(file.read())

    def look(self, key: str) -> Listed | None:
        try:
            with self._asked(key):
                found = self._files.get_file_info(_path(key))
        except FileNotFoundError:
            return None
        return None if found.isdir else _on_hdfs(found)

    def list(self, folder: str) -> list[Listed]:
        above, _, name = f"/{folder}".rpartition("/")
        beside = (one for one in self._in(above or "/", False) if _named(one).startswith(name))
        inside = {one.path: one for one in self._in(f"/{folder}", True)}
        found = {one.path: one for one in beside if _VERSION.fullmatch(_named(one), len(name))}
        files = (one for one in {**found, **inside}.values() if not one.isdir)
        return sorted(_on_hdfs(one) for one in files if "/.making-" not in one.path)

    def _in(self, path: str, deep: bool) -> tuple[Any, ...]:
        try:
            with self._asked(path):
                return tuple(self._files.list_status(path, deep))
        except FileNotFoundError:
            return ()

    def put(self, key: str, data: pa.Buffer | bytes) -> None:
        with self._asked(key):
            self._files.rename(self._make(key, data), _path(key), True)

    def create(self, key: str, data: pa.Buffer | bytes) -> None:
        with self._asked(key):
            made = self._make(key, data)
            try:
                self._files.rename(made, _path(key), False)
            except FileExistsError:
                self._files.delete(made, False)
                raise

    def _make(self, key: str, data: pa.Buffer | bytes) -> str:
        folder, _, name = _path(key).rpartition("/")
        made = f"{folder}/.making-{os.urandom(6).hex()}-{name}"
        with self._files.create(made) as out:
            out.write(bytes(data))
        return made

    def copy(self, key: str, to: str) -> None:
        self.put(to, self.read(key))

    def delete(self, key: str) -> None:
        with self._asked(key):
            self._files.delete(_path(key), False)

    @contextlib.contextmanager
    def _asked(self, key: str) -> Iterator[None]:
        """Errors in one line, all of the kinds that files have."""
        try:
            yield
        except (FileNotFoundError, FileExistsError) as error:
            raise type(error)(error.errno, _line(error), f"hdfs:/{key}") from None
        except (OSError, RuntimeError) as error:
            raise OSError(errno.EIO, f"HDFS did not answer: {_line(error)}", key) from None


def _on_hdfs(found: Any) -> Listed:
    stamp, size = found.modification_time, found.length
    key = _VERSION.sub(r"/@\1", found.path.lstrip("/"))
    return Listed(key, size, stamp / 1e3, f"{stamp}-{size}")


def _path(key: str) -> str:
    return "/" + re.sub(r"/@([0-9]{8,18})$", r".@\1", key)


def _named(found: Any) -> str:
    return str(found.path.rpartition("/")[2])


def bucket_of(url: str) -> tuple[Bucket, str]:
    """The bucket of a URL and the key in it."""
    scheme, _, rest = url.partition("://")
    name, _, key = rest.partition("/")
    key = key.strip("/")
    if ".." in key.split("/") or "\0" in key:
        raise CheckpointError(f"{url!r} is no place in an object store")
    return open_bucket(scheme, name), key
