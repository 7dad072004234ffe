"""Tokens: from a file or the environment, never printed."""

from __future__ import annotations

import os
from pathlib import Path

from millstream.errors import ConfigError

TOKEN_VARIABLE = "MILLSTREAM_TOKEN"
_LEAST_TOKEN = 16


def find_token(file: Path | None, variable: str = TOKEN_VARIABLE) -> str | None:
    """The token from a file or the environment; a weak one is refused, none is ever shown."""
    if file is not None:
        try:
            token, where = file.read_text().strip(), str(file)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"token file {file} cannot be read ({error})") from None
    else:
        token, where = os.environ.get(variable, "").strip(), variable
        if not token:
            return None
    if len(token) < _LEAST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(
            f"the token in {where} must have at least {_LEAST_TOKEN} printable ASCII characters "
            "without spaces; `python -c 'import secrets; print(secrets.token_urlsafe())'` makes one"
        )
    return token
