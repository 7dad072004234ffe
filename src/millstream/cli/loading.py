"""Loading a user's file and finding the flow in it: Python, a configuration in TOML, or SQL.

A Python file is run under a name of its own that is gone from `sys.modules` afterwards: what it
defines then travels to Spark's workers as code, and they need not be able to import it. Its
directory is made importable here and in the workers, for the modules beside it.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import traceback
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from millstream.api import several
from millstream.api.config import Application, Query, read_application
from millstream.api.flow import Flow
from millstream.api.sinks import Console
from millstream.cli.code import carry_code
from millstream.errors import ConfigError, MillstreamError, SqlError
from millstream.showing import visible_lines

_PACKAGE = str(Path(__file__).parents[1])
QUERIES = (".py", ".sql")  # what files of queries end in
_HINT = 'flow = ms.Flow("name")'

_DATA = (".csv", ".tsv", ".json", ".jsonl", ".parquet", ".gz", ".txt", ".log")


def load_application(path: Path, name: str | None = None) -> Application:
    """The flow of a file with the queries that were added, and how the file wants it run."""
    before = _read(path)
    found = _application_of(path, name)
    queries = load_queries(path, found.flow)
    carry_code(found.flow, path, before, [one.file for one in queries])
    return replace(found, queries=queries)


def _application_of(path: Path, name: str | None) -> Application:
    """What a file of Python, TOML or SQL describes by itself."""
    if path.suffix in _DATA:
        raise ConfigError(
            f"{path} is data by its name; give the file of Python, TOML or SQL with the flow, "
            f'which reads it with ms.Files("{path}")'
        )
    if path.suffix == ".sql":
        application = Application(load_sql(path), sql=path)
    elif path.suffix == ".toml":
        application = read_application(path, load_module)
    else:
        return Application(_flow_of(path, name))
    if name not in (None, application.flow.name):
        raise ConfigError(f"{path} has no flow {name!r}; it has: {application.flow.name!r}")
    return application


def load_trusted(path: Path, name: str | None, trusted: bool) -> Application:
    """The same; refused if the file asks for what only a trusted one may, and it is not."""
    found = load_application(path, name)
    return found if trusted else found.check_trust()


def load_sql(path: Path) -> Flow:
    """The flow that a file of SQL describes; the rows of a query by itself go to the terminal."""
    flow = Flow(re.sub(r"[^\w.\- ]", "_", path.stem) or "sql")
    _take_sql(flow, path)
    return flow


def _take_sql(flow: Flow, path: Path) -> None:
    try:
        text = _read(path).decode()
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not a text in UTF-8") from None
    try:
        answers = flow.answers(text)
    except SqlError as error:
        raise SqlError(f"{path}, {error}", error.line, error.column) from error
    for answer in answers:
        if answer.text is not None:
            print(answer.text)
        if answer.query and answer.stream is not None:
            answer.stream.sink(Console())


# -- queries that were added ----------------------------------------------------------------------


def queries_beside(path: Path, flow: Flow) -> Path:
    """The folder with the queries that were added to the flow of a file."""
    return path.absolute().parent / f"{flow.name}.queries"


def load_queries(path: Path, flow: Flow) -> tuple[Query, ...]:
    """Add the queries that lie beside a file to its flow, in the order of their names."""
    folder = queries_beside(path, flow)
    if not folder.is_dir():
        return ()
    files = sorted(one for one in folder.iterdir() if one.suffix in QUERIES and one.is_file())
    return tuple(add_query(flow, one.stem, one) for one in files if not one.name.startswith("."))


def add_query(flow: Flow, name: str, path: Path) -> Query:
    """Add what a file of SQL or Python asks for to a flow that is there."""
    before = len(flow.nodes)
    with flow.query(name):
        if path.suffix == ".sql":
            _take_sql(flow, path)
        else:
            fn = getattr(load_module(path), "query", None)
            if not callable(fn):
                raise ConfigError(
                    f"{path} has no function `query`; write `def query(flow):`, with steps that go "
                    'on from flow.step("name of a source or step")'
                )
            with _users_code(path):
                fn(flow)
    return Query(name, path, flow.nodes[before:])


# -- the user's file ------------------------------------------------------------------------------


def _flow_of(path: Path, name: str | None) -> Flow:
    """The one named, the only one, or the one in the variable `flow`."""
    found = _flows(load_module(path))
    if name is not None:
        for variable, flow in found.items():
            if name in (variable, flow.name):
                return flow
        raise ConfigError(f"{path} has no flow {name!r}; it has: {_listed(found) or 'none'}")
    if len({id(flow) for flow in found.values()}) == 1:
        return next(iter(found.values()))
    if "flow" in found:
        return found["flow"]
    if found:
        raise ConfigError(
            f"{path} has several flows: {_listed(found)}; choose one with --flow NAME, or call "
            "the main one `flow`"
        )
    raise ConfigError(
        f"{path} has no flow at module level; write `{_HINT}` outside of functions and of "
        '`if __name__ == "__main__":`'
    )


def load_module(path: Path) -> ModuleType:
    """Run a user's file as a module."""
    source = _read(path)
    file = str(path.absolute())
    _make_importable(str(path.absolute().parent))
    module = ModuleType(f"millstream_app_{path.stem}")
    module.__file__ = file
    sys.modules[module.__name__] = module  # dataclasses look their module up while it is loaded
    try:
        with _users_code(path):
            exec(compile(source, file, "exec"), module.__dict__)  # noqa: S102 - the user's program
    finally:
        sys.modules.pop(module.__name__, None)
    return module


def _read(path: Path) -> bytes:
    if path.is_dir():
        raise ConfigError(
            f"{path} is a directory; give the file of Python, TOML or SQL with the flow"
        )
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(
            f"there is no file {path}; give the file of Python, TOML or SQL with the flow"
        ) from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror})") from error


def _make_importable(directory: str) -> None:
    if directory not in sys.path:
        sys.path.insert(0, directory)
    paths = [directory, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(p for p in paths if p))


@contextlib.contextmanager
def _users_code(path: Path) -> Iterator[None]:
    """While code of a file runs: errors say where in the file they come from."""
    try:
        with _not_running(path):
            yield
    except MillstreamError as error:
        raise ConfigError(f"{_place(path, error)}: {error}") from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever a user's program raises, SystemExit too
        _blame(path, error)


@contextlib.contextmanager
def _not_running(path: Path) -> Iterator[None]:
    """While a file is loaded, its flows only get built: this command is what runs them."""
    start, begin = Flow.start, several.begin

    def refuse(self: Flow, *args: Any, **options: Any) -> NoReturn:
        raise ConfigError(
            f"the file runs flow {self.name!r} while it is loaded; move that call under "
            f'`if __name__ == "__main__":`, or run it with `python {path}` instead'
        )

    def refuse_all(flows: Any, settings: Any) -> NoReturn:
        refuse(flows[0][0])

    Flow.start = refuse  # type: ignore[method-assign]
    several.begin = refuse_all
    try:
        yield
    finally:
        Flow.start, several.begin = start, begin  # type: ignore[method-assign]


def _flows(module: ModuleType) -> dict[str, Flow]:
    return {name: value for name, value in vars(module).items() if isinstance(value, Flow)}


def _listed(found: dict[str, Flow]) -> str:
    return ", ".join(f"{variable} (flow {flow.name!r})" for variable, flow in found.items())


# -- errors in the user's file ------------------------------------------------------------------


def _place(path: Path, error: BaseException) -> str:
    """The line of the user's file an error of the interface comes from."""
    line = _line(path, error)
    return str(path) if line is None else f"{path}, line {line}"


def _line(path: Path, error: BaseException) -> int | None:
    file = str(path.absolute())
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == file]
    if isinstance(error, SyntaxError) and error.filename == file:
        lines.append(error.lineno)
    return lines[-1] if lines else None


def _blame(path: Path, error: BaseException) -> NoReturn:
    """Show the part of the traceback that is the user's, and end with its last line.

    The last line says it all by itself: whoever asks for a reload does not see the traceback.
    """
    told = traceback.TracebackException.from_exception(error)
    _keep_own(told, str(path.absolute().parent))
    print("".join(told.format()), end="", file=sys.stderr)
    line = _line(path, error)
    where = "" if line is None else f" (line {line})"
    what = error.msg if isinstance(error, SyntaxError) else error
    why = visible_lines(f"{type(error).__name__}: {what}").partition("\n")[0]
    raise ConfigError(f"{path} could not be loaded{where}: {why}") from error


def _keep_own(told: traceback.TracebackException, directory: str) -> None:
    own = [frame for frame in told.stack if _is_own(frame.filename, directory)]
    told.stack = traceback.StackSummary.from_list(own)
    for other in (told.__cause__, told.__context__):
        if other is not None:
            _keep_own(other, directory)


def _is_own(file: str, directory: str) -> bool:
    inside = file.startswith(directory + os.sep)
    return inside and "site-packages" not in file and not file.startswith(_PACKAGE)
