"""Code from the collector: taken only if it is proven, kept on disk, and loaded as a file would be.

An agent does this only if it was started so. The connection is encrypted and the certificate of the
other side is trusted; then the code must come with a proof that the shared token gives.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import msgspec

from millstream.api.flow import Flow
from millstream.errors import ConfigError
from millstream.run.messages.code import Code, Gives, is_proven
from millstream.state.storage import Storage

Load = Callable[[Path, str], Flow]  # a file, and which of its flows
FOLDER, _KEPT = "code", "code.json"
_texts = msgspec.json.Decoder(Code)


class Accepting:
    """The program an agent has from its collector."""

    def __init__(self, token: str, load: Load, own: Code | None) -> None:
        self.token, self.load = token, load
        self.digest = "" if own is None else own.digest  # of the program that runs
        self.root: Storage | None = None

    def kept(self, root: Storage) -> Flow | None:
        """What was taken in an earlier run; from now on this is the place for it."""
        self.root = root
        if not root.exists(_KEPT):
            return None
        try:
            code = _texts.decode(root.read(_KEPT))
        except msgspec.DecodeError as error:
            raise ConfigError(f"{root.where(_KEPT)} is damaged ({error})") from None
        flow = self._loaded(code)
        self.digest = code.digest
        return flow

    def fetch(self, parent: Gives) -> tuple[Code, Flow]:
        """The collector's program as it is now; refused unless it is proven."""
        nonce = secrets.token_hex(32)
        given = parent.code(nonce)
        if not is_proven(self.token, nonce, given):
            raise ConfigError(
                "the collector gave code without the proof that it has the token; none of it was "
                "kept. Somebody stands between, or the tokens differ"
            )
        given.code.check()
        return given.code, self._loaded(given.code)

    def keep(self, code: Code) -> None:
        """This one runs from now on, also after a restart."""
        assert self.root is not None
        self.root.put(_KEPT, msgspec.json.encode(code))
        self.digest = code.digest
        folder = Path(self.root.within(FOLDER).where())
        for before in (one for one in folder.iterdir() if one.name != code.digest):
            shutil.rmtree(before, ignore_errors=True)  # nothing is loaded from there any more

    def _loaded(self, code: Code) -> Flow:
        """Write the files, and load the one with the flow."""
        assert self.root is not None
        here = self.root.within(FOLDER).within(code.digest)
        for name, text in code.files.items():
            *folders, file = PurePosixPath(name).parts
            place = here
            for folder in folders:
                place = place.within(folder)
            place.create()
            place.put(file, text.encode())
        return self.load(Path(here.where()) / code.entry, code.flow)
