"""What "module:name" stands for: something a registered Python file defines, and nothing else."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from pathlib import Path, PurePath
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

from millstream.api.config.calls import Call, parse_call
from millstream.errors import ConfigError, MillstreamError

LoadModule = Callable[[Path], ModuleType]
_CODE = (type, FunctionType, BuiltinFunctionType, MethodType)


class Unbuilt(Exception):
    """Something could not be built, and why has been told."""


class Functions:
    """The Python files a configuration file registers."""

    def __init__(self, directory: Path, load: LoadModule) -> None:
        self._directory = directory
        self._load = load
        self._files: dict[str, str] = {}
        self._modules: dict[str, ModuleType | None] = {}  # None: it could not be loaded

    def register(self, file: str, name: str | None = None) -> None:
        """Take up one file, under its own name or another."""
        path = PurePath(file)
        if path.is_absolute() or ".." in path.parts:
            raise ConfigError(
                f"{file!r} is outside of the directory of this file; functions come from Python "
                "files beside it or below"
            )
        name = path.stem if name is None else name
        if path.suffix != ".py":
            raise ConfigError(f'{file!r} is not a Python file; write its name, like "topics.py"')
        if not name.isidentifier():
            raise ConfigError(
                f"{name!r} cannot stand before a colon; give it another name, like "
                f'functions = {{ topics = "{file}" }}'
            )
        if name in self._files:
            raise ConfigError(
                f"{name!r} is already {self._files[name]}; give one of them another name, like "
                f'functions = {{ {name}_2 = "{file}" }}'
            )
        if not (self._directory / file).is_file():
            beside = [str(p.relative_to(self._directory)) for p in self._directory.rglob("*.py")]
            raise ConfigError(f"there is no file {file} beside this one{suggest(file, beside)}")
        self._files[name] = file
        self._modules[name] = None
        self._modules[name] = self._load(self._directory / file)

    def find(self, text: str, *, instance: bool = False) -> Any:
        """What a text like "topics:mentions" or "topics:Hot(threshold=3)" stands for.

        With parentheses it is called with these arguments. With `instance`, a class is called.
        """
        call = parse_call(text)
        found = self.lookup(call)
        if not call.called and not (instance and isinstance(found, type)):
            return found
        try:
            return call.apply(found)
        except MillstreamError:
            raise
        except Exception as error:  # a user's class may raise anything
            raise ConfigError(f"{text} raised {type(error).__name__}: {error}") from error

    def lookup(self, call: Call) -> Any:
        """The function or object a call names."""
        if call.module is None:
            raise self._bare(call.name)
        if call.module not in self._files:
            known = ", ".join(self._files) or 'none; add functions = ["topics.py"]'
            raise ConfigError(
                f"no module {call.module!r} is registered{suggest(call.module, self._files)}; "
                f"registered: {known}"
            )
        module = self._modules[call.module]
        if module is None:
            raise Unbuilt
        offered = _offered(module)
        if call.name not in offered:
            raise ConfigError(
                f"{self._files[call.module]} defines no {call.name!r}"
                f"{suggest(call.name, offered) or _listed(offered)}"
            )
        return offered[call.name]

    def _bare(self, name: str) -> ConfigError:
        modules = self._modules.items()
        owners = [known for known, module in modules if module and name in _offered(module)]
        hint = f"; did you mean '{owners[0]}:{name}'?" if owners else ', like "topics:mentions"'
        return ConfigError(f"{name!r} is not module:name{hint}")


def _offered(module: ModuleType) -> dict[str, Any]:
    """What a file defines itself, or lists in `__all__`: not what it imports."""
    if hasattr(module, "__all__"):
        return {name: getattr(module, name) for name in module.__all__ if hasattr(module, name)}
    return {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_")
        and not isinstance(value, ModuleType)
        and not (isinstance(value, _CODE) and value.__module__ != module.__name__)
    }


def _listed(names: Iterable[str]) -> str:
    return f"; it has: {', '.join(names) or 'nothing'}"


def suggest(name: str, known: Iterable[str]) -> str:
    """The nearest known name, as the end of a message."""
    near = difflib.get_close_matches(name, list(known), 1, 0.65)
    return f"; did you mean {near[0]!r}?" if near else ""
