"""Several flows on one Spark."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millstream.api.flow import USUAL, Flow
from millstream.api.frames import plainly
from millstream.errors import ConfigError
from millstream.settings import Settings
from millstream.state.locations import located

if TYPE_CHECKING:
    from millstream.run.handles import Handles
    from millstream.run.reporting import Progress

Checkpoints = str | Path | Mapping[str, str | Path] | None


@plainly
def run_all(*flows: Flow, checkpoint: Checkpoints = USUAL, **options: Any) -> dict[str, Progress]:
    """Run flows on one Spark, each to the end of its input or until interrupted.

    Gives the final progress of each, by name. A flow that fails ends by itself; the others go on,
    and the error is raised when they have ended.
    checkpoint: the directory in which each flow has one under its name; by default .millstream.
        None remembers nothing; {"flow": path} says where for each.
    Options are the fields of `millstream.Settings`, for all of them; memory="2GB" is the budget of
        all together.
    """
    from millstream.run.console import follow_all

    quiet = Settings.from_options(options).quiet
    return follow_all(start_all(*flows, checkpoint=checkpoint, **options), quiet=quiet)


@plainly
def start_all(*flows: Flow, checkpoint: Checkpoints = USUAL, **options: Any) -> Handles:
    """The same without blocking: `progress`, `stop()` and `wait()` of all, and a handle for each.

    `handles["trades"]` is the handle of one, as `flow.start()` gives it.
    """
    settings = Settings.from_options(options)
    for flow in flows:
        if not isinstance(flow, Flow):
            hint = "; write run_all(a, b), not run_all([a, b])"
            listed = isinstance(flow, list | tuple)
            raise ConfigError(
                f"run_all(): expected flows, got {type(flow).__name__}{hint if listed else ''}"
            )
    return begin([(flow, _place(flow, checkpoint)) for flow in flows], settings)


def begin(flows: list[tuple[Flow, Path | None]], settings: Settings) -> Handles:
    """Start flows at their places; the command line lets no file do so while it loads it."""
    from millstream.run.several import Start, start_all

    return start_all([Start(flow, place, settings) for flow, place in flows])


def _place(flow: Flow, checkpoint: Checkpoints) -> Path | None:
    match checkpoint:
        case None:
            return None
        case "":
            return Path(".millstream") / flow.name
        case str() | Path():
            return located(checkpoint) / flow.name
        case Mapping() if flow.name in checkpoint:
            return located(checkpoint[flow.name])
        case Mapping():
            raise ConfigError(
                f"checkpoint= says nothing of flow {flow.name!r}; it has: "
                f"{', '.join(map(repr, checkpoint)) or 'none'}"
            )
    raise ConfigError(
        f"checkpoint={checkpoint!r}: expected a directory, None, or a path for each flow by its "
        f"name, got {type(checkpoint).__name__}"
    )
