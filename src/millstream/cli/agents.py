"""`millstream agent`: the first steps of a flow where the records are, until it is stopped."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from millstream.api.flow import Flow
from millstream.cli.loading import load_trusted
from millstream.cli.modules import imported_again, leave_path
from millstream.errors import ConfigError
from millstream.showing import visible_lines

_GRACE = 5.0  # seconds in which an agent that shall end does so by itself


def load_accepted(file: Path, trusted: bool, folder: Path, given: Path, name: str) -> Flow:
    """The flow in a file that the collector gave, and not what was imported for others before.

    file: the one the agent was started with. folder: where all lie that were given.
    """
    with imported_again(file.parent, keep=True), imported_again(folder, keep=True):
        leave_path(folder)
        return load_trusted(given, name, trusted).flow


@contextlib.contextmanager
def _ending_soon() -> Iterator[None]:
    """Have a signal end the process, also while it waits for an answer and hears none.

    Python tells of a signal when the call returns; that may take a minute. What is not committed
    is on disk, so it can end anywhere.
    """
    told, tell = socket.socketpair()
    tell.setblocking(False)
    ended = threading.Event()

    def wait() -> None:
        asked = b"0"
        while asked and asked[0] not in (signal.SIGINT, signal.SIGTERM):
            asked = told.recv(1)
        if asked and not ended.wait(_GRACE):
            os._exit(0)

    threading.Thread(target=wait, daemon=True).start()
    before = signal.set_wakeup_fd(tell.fileno())
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        ended.set()
        tell.close()


def run_agent(
    flow: Flow,
    to: list[str],
    name: str,
    directory: Path | None,
    token_file: Path | None,
    ca: Path | None,
    spool: str,
    overload: str,
    listen: str | None,
    children: int,
    tree: int | None,
    *,
    function_timeout: str | None = None,
    reload: Callable[[], Flow] | None = None,
    accept: Callable[[Path, Path, str], Flow] | None = None,
) -> None:
    """Read, send and forget until all is committed, or Ctrl-C or SIGTERM.

    listen: where a relay does, for so many children, in all trees or one; None: it is none.
    accept: loads a file that the collector gave, from a folder with all it gave; None: take none.
    """
    from millstream.agent.accepting import FOLDER, Accepting
    from millstream.agent.agent import Agent
    from millstream.agent.relay import Relay
    from millstream.agent.sending import Connection
    from millstream.agent.working import collector_of
    from millstream.serve.tokens import find_token
    from millstream.settings import Settings
    from millstream.sizes import bytes_of
    from millstream.state.segments import safe_name

    spec = collector_of(flow).spec
    token = find_token(token_file, spec.token_env)
    settings = Settings()
    if function_timeout is not None:
        settings = Settings.from_options({"function_timeout": function_timeout})
    place = directory or Path(".millstream") / "agents" / safe_name(name)
    options: dict[str, Any] = {
        "spool": bytes_of(spool),
        "overload": overload,
        "settings": settings,
        "reload": reload,
        "say": lambda text: print(visible_lines(text), file=sys.stderr, flush=True),
    }
    if accept is not None:
        if token is None or ca is None:
            raise ConfigError(
                "--accept-code runs what the collector sends, so it must be certain who that is: "
                "give --ca, its certificate, and a token (--token-file or "
                f"{spec.token_env})"
            )
        folder = place / FOLDER
        options["accept"] = Accepting(token, lambda *one: accept(folder, *one), spec.code)
    if listen is None:
        each = to * spec.trees if len(to) == 1 else to
        first, *others = (Connection(one, token, ca) for one in each)
        agent = Agent(flow, first, name, place, others=tuple(others), **options)
    else:
        if len(to) != 1:
            raise ConfigError("a relay has one parent: give --to once")
        here = replace(spec, address=listen, token_file=token_file or spec.token_file)
        parent, asking = (Connection(to[0], token, ca) for _ in range(2))
        options["tree"] = tree
        agent = Relay(flow, parent, asking, name, place, here, children, **options)
    before = {
        number: signal.signal(number, lambda *_: agent.stop())
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    agent.say(f"{name} sends to {', '.join(to)}; what is not committed yet is kept in {place}")
    try:
        with _ending_soon():
            agent.run()
        if agent.done:
            many = agent.outbox.last + 1
            agent.say(f"all is read and committed: {many} message{'s' * (many != 1)}")
    finally:
        agent.close()
        for number, handler in before.items():
            signal.signal(number, handler)
