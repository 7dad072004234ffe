"""Flows from a TOML file: functions by name, the graph in the file.

`positions` knows the line of every key, `calls` reads texts like "mean(price)", `functions` finds
what "module:name" stands for, `options` says what may be written, and `building` makes the flow.
Nothing of a file is evaluated; only the modules it registers are loaded.
"""

from millstream.api.config.building import Application, Query, read_application

__all__ = ["Application", "Query", "read_application"]
