"""`millstream agent`: the first steps of a flow where the records are, until it is stopped."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from millstream.api.flow import Flow
from millstream.showing import visible_lines


def run_agent(
    flow: Flow,
    to: str,
    name: str,
    directory: Path | None,
    token_file: Path | None,
    ca: Path | None,
    spool: str,
    overload: str,
) -> None:
    """Read, send and forget until all is committed, or Ctrl-C or SIGTERM."""
    from millstream.agent.agent import Agent, bytes_of
    from millstream.agent.sending import Collector
    from millstream.agent.working import collector_of
    from millstream.serve.tokens import find_token
    from millstream.state.segments import safe_name

    spec = collector_of(flow).spec
    collector = Collector(to, find_token(token_file, spec.token_env), ca)
    agent = Agent(
        flow,
        collector,
        name,
        directory or Path(".millstream") / "agents" / safe_name(name),
        spool=bytes_of(spool),
        overload=overload,
        say=lambda text: print(visible_lines(text), file=sys.stderr, flush=True),
    )
    before = {
        number: signal.signal(number, lambda *_: agent.stop())
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        agent.run()
        if agent.done:
            agent.say(f"all is read and committed: {agent.outbox.last + 1} messages")
    finally:
        agent.close()
        for number, handler in before.items():
            signal.signal(number, handler)
