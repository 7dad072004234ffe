"""A program of lines, over windows or over all of its input, in small batches and without Spark."""

import sys
from pathlib import Path

from millstream.adapters.flows import Reading, build_flow, parse_window
from millstream.adapters.streaming import streaming_stage
from millstream.testing import run_in_process

COUNT = 'sh -c \'awk "{ n[\\$2]++ } END { for (w in n) print w \\"\\t\\" n[w] }"; echo {} >&2\''
SUM = """awk -F '\\t' '{ n[$1] += $2 } END { for (w in n) print w "\\t" n[w] }'"""

place, window = Path(sys.argv[1]), sys.argv[2]
stage = streaming_stage(COUNT.replace("{}", "reporter:counter:pieces,lines,1"), SUM, reducers=3)
flow = build_flow(
    "lines",
    [stage],
    Reading([str(place / "in")], time=r"^(\S+)", lateness="10s"),
    place / "out",
    None if window == "whole" else parse_window(window),
)
run_in_process(flow, place / "checkpoint", parallelism=2, batch_rows=60)
