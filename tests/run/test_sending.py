"""Functions from a user's own files travel as code: workers cannot import them."""

from __future__ import annotations

import base64
import importlib
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark import cloudpickle

import millstream as ms
from millstream.plan.planner import sketch
from millstream.run.spark.onspark import _send_by_value

MODULE = """
class Steps:
    def __init__(self, step):
        self.step = step

    def update(self, event, slate, ctx):
        slate["n"] = slate.get("n", 0) + self.step

    def on_timer(self, event, slate, ctx):
        return helper(slate)

def helper(slate):
    return dict(slate)

class Own:
    def new(self):
        return {}

    def encode(self, slate):
        return repr(slate).encode()

    def decode(self, data):
        return {}
"""

WORKER = """
import base64, sys
from pyspark import cloudpickle
plan = cloudpickle.loads(base64.b64decode(sys.stdin.read()))
(node,) = plan.updaters()
slate = {}
node.job.fn(None, slate, None)
assert slate == {"n": 7}, slate
assert node.job.on_timer(None, slate, None) == {"n": 7}
assert node.job.codec.encode({}) == b"{}"
print("fine")
"""


def test_updaters_of_a_users_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "steps_of_mine.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    mine = importlib.import_module("steps_of_mine")
    flow = ms.Flow("sent")
    source = flow.source(ms.Rate(1.0, limit=1))
    source.key_by("value").update(mine.Steps(7), name="u", codec=mine.Own())
    plan = sketch(flow.name, flow.nodes)
    _send_by_value(plan)
    packed = base64.b64encode(cloudpickle.dumps(plan)).decode()
    done = subprocess.run(
        [sys.executable, "-c", WORKER], input=packed, capture_output=True, text=True, cwd="/"
    )
    assert done.stdout == "fine\n", done.stderr[-2000:]
