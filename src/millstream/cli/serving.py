"""`millstream serve`: a checkpoint over HTTP, in the foreground until it is stopped."""

from __future__ import annotations

import re
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from typer.core import TyperCommand

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8321
_ADDRESS = re.compile(r"(.+:)?[0-9]+|[0-9]+(\.[0-9]+){3}|\[[0-9a-fA-F:]+\]|localhost")


class OptionalPort(TyperCommand):
    """A command whose `--serve` may stand without a port."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Give a bare `--serve` its port."""
        following = [*args[1:], ""]
        filled = [
            f"--serve={DEFAULT_PORT}" if arg == "--serve" and not _ADDRESS.fullmatch(after) else arg
            for arg, after in zip(args, following, strict=True)
        ]
        return super().parse_args(ctx, filled)


def serve_checkpoint(checkpoint: Path, host: str, port: int, token_file: Path | None) -> None:
    """Serve until Ctrl-C or SIGTERM."""
    from millstream.serve.following import Follower
    from millstream.serve.server import open_server
    from millstream.serve.status import Served
    from millstream.serve.tokens import find_token

    token = find_token(token_file)
    server = open_server(Served(Follower(checkpoint, eager=True)), host, port, token)
    stopped = threading.Event()
    before = {
        number: signal.signal(number, lambda *_: stopped.set())
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        server.start()
        hint = "" if token is None else " (open the page once with /?token=...)"
        print(f"serving {checkpoint} at {server.url}{hint}; Ctrl-C stops", file=sys.stderr)
        while not stopped.wait(0.5) and not server.wait(0):
            pass
    finally:
        server.stop()
        for number, handler in before.items():
            signal.signal(number, handler)
