"""What a csv file is, from its first lines: its delimiter, and the texts in its columns.

Used by `sampling.py` in the driver. What cannot be read as it is asked for is refused here, with
what to ask for instead; in a running flow the same lines would be dead letters one by one.
"""

from __future__ import annotations

import re
from collections import Counter

from millstream.errors import ConfigError
from millstream.io.csvlines import header_names, split_csv
from millstream.io.formats import DELIMITERS, NULLS, Format
from millstream.io.multiline import Records
from millstream.io.records import raw_text

_LOOKED_AT = 1_000  # lines
_SHOWN = 200  # characters of a line in a message
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")


def delimiter(lines: list[bytes]) -> str:
    """What parts most lines into as many fields as the first; a comma if nothing does."""
    texts = [line.decode("utf-8", "replace") for line in lines[:_LOOKED_AT]]
    best, most = ",", (0.0, 0)
    for candidate in DELIMITERS:
        width, same = _fitting(texts, candidate)
        if width > 1 and (same, width) > most:
            best, most = candidate, (same, width)
    return best


def _fitting(texts: list[str], candidate: str) -> tuple[int, float]:
    """How many fields the first line has, and the share of the others that have as many."""
    rows = [split_csv(text, candidate) for text in texts]
    width = len(rows[0] or ())
    if len(rows) == 1:
        return width, 1.0
    return width, sum(row is not None and len(row) == width for row in rows[1:]) / (len(rows) - 1)


def columns(path: str, lines: list[bytes], fmt: Format) -> dict[str, list[str]]:
    """The texts of every column in the sample; none if there is no record."""
    rows = [split_csv(line.decode("utf-8", "replace"), fmt.delimiter) for line in lines]
    first, shown = rows[0], raw_text(lines[0])[:_SHOWN]
    if first is None:
        raise ConfigError(f"{path}: the first csv line has an unclosed quote: {shown!r}")
    names = header_names(first) if fmt.header else [f"_c{i}" for i in range(len(first))]
    if not fmt.multiline and None in rows and _goes_on(lines, fmt, len(names)):
        raise ConfigError(
            f"{path}: quoted fields run over line ends, see "
            f"{raw_text(lines[rows.index(None)])[:_SHOWN]!r}; give multiline=True"
        )
    body = [row for row in rows[fmt.header :] if row is not None]
    fitting = [row for row in body if len(row) == len(names)]
    if fmt.header:
        _check_header(path, shown, names, first)
    if body and not fitting:
        raise ConfigError(_unlike(path, shown, len(names), body, fmt))
    return {name: [row[i] for row in fitting] for i, name in enumerate(names)} if fitting else {}


def _goes_on(lines: list[bytes], fmt: Format, width: int) -> bool:
    """Whether lines with a quote that is not closed make records together with the next ones."""
    data = b"\n".join(lines) + b"\n"
    records = Records(fmt.delimiter, fmt.comment)
    start = records.open_at(data)
    starts, ends = records.edges(data if start < 0 else data[:start])
    found = [data[a:b] for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]
    longer = [one for one in found if b"\n" in one]
    rows = [split_csv(one.decode("utf-8", "replace"), fmt.delimiter) for one in longer]
    return bool(rows) and all(row is not None and len(row) == width for row in rows)


def _check_header(path: str, shown: str, names: list[str], fields: list[str]) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ConfigError(
            f"{path}: the csv header names {', '.join(map(repr, twice))} more than once: "
            f"{shown!r}; correct it, or give schema= with the other columns"
        )
    values = [part for field in fields for part in (field.split() or [""])]
    if all(_NUMBER.fullmatch(value) or value in ("", *NULLS) for value in values):
        raise ConfigError(
            f"{path}: the first csv line has no names but values: {shown!r}; give header=False "
            "if it is the first record, or schema= if these are the names"
        )


def _unlike(path: str, shown: str, width: int, body: list[list[str]], fmt: Format) -> str:
    """No line has as many fields as the first: what the first may be, and what to do."""
    found, _ = Counter(map(len, body)).most_common(1)[0]
    said = (
        f"{path}: no csv line has {width} fields as the first has, {shown!r}; most have {found} "
        f"(parted by {fmt.delimiter!r}). "
    )
    mark = shown.lstrip()[:1]
    if mark in ("#", "%"):
        return said + f"Give comment={mark!r} if the first is no header"
    return said + (
        "Correct the header; or give delimiter= if that is another one, or header=False and "
        "schema= with a name for every field"
    )
