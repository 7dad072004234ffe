"""`millstream reload`: a flow started with `millstream run` loads its file again while it runs.

The command leaves a request in the folder `reload` of the checkpoint and waits for an answer beside
it. So nobody can ask who may not write into the checkpoint, and no port or signal is needed. The
folder is there while a run listens.
"""

from __future__ import annotations

import contextlib
import shutil
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import msgspec

from millstream.api.config import Application
from millstream.api.flow import Flow
from millstream.cli.modules import imported_again
from millstream.errors import CheckpointError, ConfigError, MillstreamError, RunError
from millstream.run.handle import Handle
from millstream.run.spark.onspark import send_by_value
from millstream.state.locations import beside, is_url, located
from millstream.state.storage import Storage, open_storage

_FOLDER = "reload"
_LOOK = 0.1  # seconds between looks at an answer
_GOES_ON = "the flow goes on"
_TAKEN_WITHIN = 30.0  # seconds until a run that lives has taken a request


class Request(msgspec.Struct, frozen=True):
    """What the command asks."""

    file: str
    dry_run: bool = False


_request = msgspec.json.Decoder(Request)


class Answer(msgspec.Struct, frozen=True):
    """What the run says; `code` is the exit code of the command."""

    text: str
    code: int = 0


_answer = msgspec.json.Decoder(Answer)


class Withdrawn(RunError):
    """Nobody took a request, and nobody will."""


class Listening:
    """The side of the run: requests are answered one by one, between looks at its progress."""

    def __init__(
        self, handle: Handle, checkpoint: Path, file: Path, load: Callable[[], Application]
    ) -> None:
        self.flow: Flow | None = None  # the one that took the place of the first, if any did
        self._handle, self._file, self._load = handle, file.absolute(), load
        self._folder = beside(located(checkpoint).absolute()) / _FOLDER

    def __enter__(self) -> Listening:
        shutil.rmtree(self._folder, ignore_errors=True)  # what a run that was killed left
        self._folder.mkdir(mode=0o700, parents=True)
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def look(self) -> None:
        """Answer what was asked since the last look."""
        folder = open_storage(self._folder)
        for path in sorted(self._folder.glob("*.request")):
            taken = path.with_suffix(".taken")
            try:
                path.rename(taken)
                request = _request.decode(folder.read(taken.name))
            except (FileNotFoundError, CheckpointError, msgspec.DecodeError):
                continue  # withdrawn, or not written by this command
            answer = msgspec.json.encode(self._answer(request))
            with contextlib.suppress(FileNotFoundError):  # nobody waits any more
                folder.put(path.with_suffix(".answer").name, answer)

    def _answer(self, request: Request) -> Answer:
        if Path(request.file).resolve() != self._file.resolve():
            return Answer(
                f"the flow was started from {self._file}, not from {request.file}; it goes on", 2
            )
        try:
            with imported_again(self._file.parent, keep=not request.dry_run) as modules:
                found = self._load()
                send_by_value(modules())
                with found.locating():
                    change = self._handle.replace(found.flow, dry_run=request.dry_run)
        except ConfigError as error:  # raised before anything was changed
            return Answer(unchanged(error), error.exit_code)
        except MillstreamError as error:
            return Answer(str(error), error.exit_code)
        except Exception as error:
            return Answer(f"unexpected {type(error).__name__}: {error}; the flow goes on", 1)
        if request.dry_run:
            return Answer(f"{change}\nnothing was changed: this was a dry run")
        self.flow = found.flow
        return Answer(f"{change}\nin effect after batch {change.batch}")


def unchanged(error: ConfigError) -> str:
    """Why a program was refused, and that the flow goes on without it."""
    text = str(error)
    if _GOES_ON in text:
        return text
    return f"{text.rstrip('.')}. Nothing was changed, and {_GOES_ON} as it was"


def ask_to_reload(checkpoint: Path, file: Path, *, dry_run: bool) -> str:
    """Ask the run of a checkpoint to load its file again; gives what it says, or raises it."""
    if is_url(checkpoint):
        raise ConfigError(
            f"checkpoint {checkpoint} is in an object store, through which a run cannot be asked; "
            "start the changed program with `millstream run`: it takes over"
        )
    if not checkpoint.is_dir():
        raise ConfigError(f"there is no checkpoint at {checkpoint}; give one with --checkpoint")
    place = open_storage(checkpoint)
    place.check("checkpoint", given=True)
    if not place.held("lock"):
        raise ConfigError(
            f"no flow is running on checkpoint {checkpoint}; start the changed program with "
            "`millstream run`"
        )
    folder = place.within(_FOLDER)
    if not folder.exists():
        raise ConfigError(
            f"the flow on checkpoint {checkpoint} was not started with `millstream run`, so it "
            "has no file to load again; its program can call handle.replace(flow)"
        )
    folder.check("folder")
    stem = uuid.uuid4().hex
    asked = msgspec.json.encode(Request(str(file.absolute()), dry_run))
    folder.put(f"{stem}.request", asked)
    try:
        answer = _wait(place, folder, stem)
    finally:
        for suffix in ("request", "taken", "answer"):
            folder.delete(f"{stem}.{suffix}")
    if answer.code:
        raise (ConfigError if answer.code == ConfigError.exit_code else RunError)(answer.text)
    return answer.text


def _wait(place: Storage, folder: Storage, stem: str) -> Answer:
    checkpoint, asked = place.where(), time.monotonic()
    while not folder.exists(f"{stem}.answer"):
        if not place.held("lock"):
            raise RunError(
                f"the run of checkpoint {checkpoint} ended before it answered; the next start "
                "takes the program as it is then"
            )
        if folder.exists(f"{stem}.request") and time.monotonic() - asked > _TAKEN_WITHIN:
            raise Withdrawn(
                f"the run of checkpoint {checkpoint} did not take the request within "
                f"{_TAKEN_WITHIN:.0f} s, and it was withdrawn; nothing was changed"
            )
        time.sleep(_LOOK)
    return _answer.decode(folder.read(f"{stem}.answer"))
