"""Running flows: started, followed, replaced and asked here; its folders do the rest.

They know only those further down: `early`, `batches` beside `spark`, `sources`, `tasks`, `outputs`,
and at last `pressure`, `messages` and `program`.
"""

import sys
from types import ModuleType
from typing import Any, NoReturn

from millstream.errors import ConfigError


class _Package(ModuleType):
    """This package, which others take for a function: `ms.run(flow)`."""

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        raise ConfigError("ms.run is no function; a flow runs itself: flow.run(), or flow.start()")


sys.modules[__name__].__class__ = _Package
