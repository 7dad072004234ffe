"""Object stores as they are asked: S3, Google's and Azure's through obstore, HDFS through Arrow.

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
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import pyarrow as pa

from millstream.errors import CheckpointError, ConfigError

T = TypeVar("T")
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
        options: Any = {"timeout": timedelta(seconds=_PATIENCE)}
        try:
            if scheme == "s3":
                options["allow_http"] = _endpoint().startswith("http://")
                self._store: Any = obstore.store.S3Store(
                    name, config=_aws(), client_options=options, retry_config=retry
                )
            elif scheme == "gs":
                self._store = obstore.store.GCSStore(
                    name, client_options=options, retry_config=retry
                )
            else:
                options["allow_http"] = bool(os.environ.get("AZURE_STORAGE_USE_EMULATOR"))
                self._store = obstore.store.AzureStore(
                    name, client_options=options, retry_config=retry
                )
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
        except FileNotFoundError as error:
            if "NoSuchBucket" in str(error):
                raise ConfigError(f"{self.where} does not exist; create the bucket first") from None
            raise FileNotFoundError(errno.ENOENT, "there is no such object", where) from None
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


def _endpoint() -> str:
    return os.environ.get("AWS_ENDPOINT_URL") or os.environ.get("AWS_ENDPOINT") or ""


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
    """A name node of HDFS, or with no name the one that Hadoop's own settings name."""

    def __init__(self, name: str) -> None:
        from pyarrow import fs

        host, _, port = name.partition(":")
        try:
            self._files: Any = fs.HadoopFileSystem(host or "default", int(port or 0))
        except (OSError, ValueError, ImportError) as error:
            raise ConfigError(
                f"hdfs://{name} cannot be reached: {_line(error)}; Arrow needs Hadoop's libraries: "
                "set HADOOP_HOME, JAVA_HOME and CLASSPATH (`hadoop classpath --glob`)"
            ) from None

    def read(self, key: str, start: int = 0, size: int | None = None) -> bytes:
        with self._files.open_input_file(f"/{key}") as file:
            file.seek(start)
            return bytes(file.read(size) if size is not None else file.read())

    def look(self, key: str) -> Listed | None:
        from pyarrow import fs

        found = self._files.get_file_info(f"/{key}")
        return _on_hdfs(found) if found.type == fs.FileType.File else None

    def list(self, folder: str) -> list[Listed]:
        from pyarrow import fs

        wanted = fs.FileSelector(f"/{folder}", recursive=True, allow_not_found=True)
        found = self._files.get_file_info(wanted)
        files = (one for one in found if one.type == fs.FileType.File)
        return sorted(_on_hdfs(one) for one in files if "/.making-" not in one.path)

    def put(self, key: str, data: pa.Buffer | bytes) -> None:
        made = self._make(key, data)
        with contextlib.suppress(FileNotFoundError):
            self._files.delete_file(f"/{key}")
        self._files.move(made, f"/{key}")

    def create(self, key: str, data: pa.Buffer | bytes) -> None:
        """A rename there gives nobody's name away: it fails if the name is taken."""
        made = self._make(key, data)
        try:
            if self.look(key) is not None:
                raise FileExistsError(errno.EEXIST, "is there already", key)
            self._files.move(made, f"/{key}")
        except OSError as error:
            if self.look(key) is None:
                raise
            raise FileExistsError(errno.EEXIST, "is there already", key) from error
        finally:
            with contextlib.suppress(FileNotFoundError):
                self._files.delete_file(made)

    def _make(self, key: str, data: pa.Buffer | bytes) -> str:
        folder, _, name = f"/{key}".rpartition("/")
        self._files.create_dir(folder or "/", recursive=True)
        made = f"{folder}/.making-{os.urandom(6).hex()}-{name}"
        with self._files.open_output_stream(made) as out:
            out.write(data)
        return made

    def copy(self, key: str, to: str) -> None:
        self.put(to, self.read(key))

    def delete(self, key: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._files.delete_file(f"/{key}")


def _on_hdfs(found: Any) -> Listed:
    stamp = found.mtime_ns or 0
    return Listed(found.path.lstrip("/"), found.size, stamp / 1e9, f"{stamp}-{found.size}")


def bucket_of(url: str) -> tuple[Bucket, str]:
    """The bucket of a URL and the key in it."""
    scheme, _, rest = url.partition("://")
    name, _, key = rest.partition("/")
    key = key.strip("/")
    if ".." in key.split("/") or "\0" in key:
        raise CheckpointError(f"{url!r} is no place in an object store")
    return open_bucket(scheme, name), key
