"""A hook of mkdocs: fences say more than a language to the tests, which the site does not read."""

from __future__ import annotations

import re
from typing import Any

_FENCE = re.compile(r"^( *```)(\w+)? +\S.*$|^( *```)output$", re.MULTILINE)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The same page with plain fences: "python file=app.py" and "python no-run" are python."""
    return _FENCE.sub(lambda found: f"{found[1] or found[3]}{found[2] or ''}", markdown)
