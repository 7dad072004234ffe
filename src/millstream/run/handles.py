"""Several running flows behind one handle."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from millstream.api.frames import plainly
from millstream.errors import MillstreamError, RunError
from millstream.run.handle import Handle
from millstream.run.reporting import Progress


@plainly
class Handles(Mapping[str, Handle]):
    """Running flows by their names: each has its own handle, and these are for all of them."""

    def __init__(self, handles: Mapping[str, Handle]) -> None:
        self._handles = dict(handles)
        self._asked = False

    def __getitem__(self, flow: str) -> Handle:
        return self._handles[flow]

    def __iter__(self) -> Iterator[str]:
        return iter(self._handles)

    def __len__(self) -> int:
        return len(self._handles)

    def __repr__(self) -> str:
        return "\n".join(map(repr, self._handles.values()))

    @property
    def running(self) -> bool:
        """Whether any of them still works."""
        return any(handle.running for handle in self._handles.values())

    @property
    def overdue(self) -> bool:
        """Whether all that still work should have ended, and cannot."""
        left = [handle for handle in self._handles.values() if handle.running]
        return bool(left) and all(handle.overdue for handle in left)

    @property
    def progress(self) -> dict[str, Progress]:
        """How far each is."""
        return {flow: handle.progress for flow, handle in self._handles.items()}

    @property
    def failed(self) -> dict[str, BaseException]:
        """What went wrong, of the flows that ended by it."""
        found = {flow: handle.error for flow, handle in self._handles.items()}
        return {flow: error for flow, error in found.items() if error is not None}

    @property
    def patience(self) -> float:
        """Seconds within which all end after a stop."""
        return max(handle.patience for handle in self._handles.values())

    def stop(self, timeout: float | None = None) -> dict[str, Progress]:
        """Let each commit its batch and stop; raises what went wrong, if something did."""
        patience = self.patience if timeout is None else timeout
        self.request_stop()
        return self.wait(patience)

    def request_stop(self) -> None:
        """Ask all of them for a stop without waiting for it."""
        self._asked = True
        for handle in self._handles.values():
            handle.request_stop()

    def ended_within(self, seconds: float) -> bool:
        """Wait so long for the end of all; Ctrl-C asks for a clean stop, a second one is raised."""
        until = time.monotonic() + seconds
        try:
            for handle in self._handles.values():
                handle.rest(max(0.0, until - time.monotonic()))
        except KeyboardInterrupt:
            if self._asked:
                raise
            self.request_stop()
        return not self.running or self.overdue

    def wait(self, timeout: float | None = None) -> dict[str, Progress]:
        """Wait for the end of all; Ctrl-C asks for a clean stop, and a second one is raised.

        If some failed, that is raised when the others have ended.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while not self.ended_within(_LOOK):
            if until is not None and time.monotonic() > until:
                break
        if self.running and not self.overdue:
            left = ", ".join(repr(flow) for flow, one in self._handles.items() if one.running)
            raise RunError(f"still running after {timeout} s: {left}")
        self._raise_failures()
        return self.progress

    def _raise_failures(self) -> None:
        failed = self.failed
        for flow, handle in self._handles.items():
            if handle.running and flow not in failed:
                try:
                    handle.wait(0)
                except RunError as error:  # it does not end
                    failed[flow] = error
        if not failed:
            return
        first, count = next(iter(failed.values())), len(self._handles)
        if len(failed) == count and all(one is first for one in failed.values()):
            raise first  # Spark did not start: that is no fault of one of them
        told = "; ".join(f"{flow!r}: {_short(one)}" for flow, one in failed.items())
        others = ", the others did not" if len(failed) < count else ""
        raise RunError(f"{len(failed)} of {count} flows failed{others}. {told}") from first


_LOOK = 0.2  # seconds


def _short(error: BaseException) -> str:
    """An error as its flow would tell it."""
    return str(error) if isinstance(error, MillstreamError) else f"{type(error).__name__}: {error}"
