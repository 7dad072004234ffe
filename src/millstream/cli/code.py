"""The files of a program as text: what a collector may give to agents that accept it."""

from __future__ import annotations

from pathlib import Path

from millstream.api.flow import Flow
from millstream.api.sources import Collector
from millstream.errors import ConfigError
from millstream.graph.nodes import Source
from millstream.run.messages.code import Code


def carry_code(flow: Flow, file: Path, before: bytes, queries: list[Path]) -> None:
    """Let a source of agents know the program it is in: its file, queries and declared modules."""
    for node in flow.nodes:
        if isinstance(node, Source) and isinstance(node.spec, Collector):
            found = _code_of(flow, file.absolute(), queries, list(node.spec.modules))
            if found is not None and found.files[file.name].encode() != before:
                raise ConfigError(f"{file} has changed while it was loaded; load it again")
            object.__setattr__(node.spec, "code", found)


def _code_of(flow: Flow, file: Path, queries: list[Path], modules: list[str]) -> Code | None:
    here, texts = file.parent, dict[str, str]()
    for path in (file, *queries, *(here / one for one in modules)):
        try:
            texts[path.relative_to(here).as_posix()] = path.read_bytes().decode()
        except UnicodeDecodeError:
            return None  # it cannot travel; whoever has the file can still run it
        except OSError as error:
            raise ConfigError(
                f"Collector(modules=): {path} cannot be read ({error.strerror}); name files as "
                f"they lie beside {file.name}"
            ) from error
    code = Code(file.name, flow.name, texts)
    code.check()
    return code
