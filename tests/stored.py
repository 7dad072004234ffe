"""Looking into checkpoints as plain files, as somebody would who damages them."""

from __future__ import annotations

from pathlib import Path

from millstream.state.manifests import Manifest, read_manifest
from millstream.state.storage import open_storage


def manifests_in(directory: Path) -> list[Path]:
    """The files of all manifests, the oldest first."""
    return sorted(directory.glob("[0-9]*.json"))


def content_of(manifest: Path) -> Manifest:
    """What a manifest says."""
    return read_manifest(open_storage(manifest.parent), int(manifest.stem))
