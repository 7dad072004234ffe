"""Keys that JSON has no word for: each is told as itself."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import millstream as ms
from millstream.ops.keys.names import key_text
from millstream.testing import Driver


def test_nan_and_infinity_are_keys_of_their_own(tmp_path: Path) -> None:
    def count(event: Any, slate: dict[str, Any], ctx: Any) -> None:
        slate["key"] = repr(event.key)

    flow = ms.Flow("odd")
    rows = flow.source(ms.Generator(tuple, schema="f double"), name="in")
    rows.key_by("f", nulls="keep").update(count, name="slates")
    with Driver(flow, checkpoint=tmp_path) as driver:
        driver.push("in", [{"f": f} for f in (math.nan, math.inf, -math.inf, None, 1.5)]).end()
        listed = {key: slate["key"] for key, slate in ms.slates(tmp_path, "slates")}
        assert ms.slates(tmp_path, "slates").get(math.inf) == {"key": "inf"}
    assert listed == {"nan": "nan", "inf": "inf", "-inf": "-inf", None: "None", 1.5: "1.5"}


def test_texts_of_keys_differ_as_the_keys_do() -> None:
    values = [math.nan, math.inf, -math.inf, None, "nan", "null", 0, (math.nan, 1), (None, 1)]
    assert len({key_text(value) for value in values}) == len(values)
