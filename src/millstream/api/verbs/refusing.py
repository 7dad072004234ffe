"""What people try on a stream because it works on a table of pandas, and what to write instead."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millstream.errors import ConfigError


class NoTable(ConfigError, TypeError):
    """What only something that holds its rows can do."""


class Refusing:
    """Brackets, loops and lengths, each answered with the step that is meant."""

    if not TYPE_CHECKING:  # a checker of types shall go on to see what is missing

        def __getitem__(self, key: Any) -> Any:
            raise NoTable(
                f"stream[{_shown(key)}]: a stream is no table; write "
                '.select("price") for columns, .where("price > 0") for rows, and .head(5) or '
                ".collect() to look at them"
            )

        def __setitem__(self, key: Any, value: Any) -> None:
            raise NoTable(
                f"stream[{_shown(key)}] = ...: a stream does not change; "
                'write .with_column("twice", "price * 2"), which gives another one'
            )

        def __iter__(self) -> Any:
            raise NoTable(
                "a stream has no rows while it is built; for row in stream.collect().to_pylist() "
                "runs it to the end of its input, and .map(fn) calls a function for each"
            )

        def __len__(self) -> int:
            raise NoTable(
                "a stream has no length while it is built; len(stream.collect()) runs it to the "
                "end of its input, and .key_by().agg(n=ms.count()) counts"
            )

        def __bool__(self) -> bool:  # which else would ask for the length
            return True


def _shown(key: Any) -> str:
    return repr(key) if isinstance(key, str | int | list) else "..."
