"""Nexmark in Flink SQL: runs inside Flink's own environment, and imports nothing of ours.

`nexmark_flink.py JOBS DONE`: JOBS is a file of JSON with the tables and the queries; a line goes to
DONE for every query that has run. Results go to the black hole, as Nexmark has it.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from pathlib import Path


def main() -> None:
    """Run the queries one after the other in one JVM, after one to warm up."""
    from pyflink.table import EnvironmentSettings, TableDescriptor, TableEnvironment

    jobs = json.loads(Path(sys.argv[1]).read_text())
    env = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    config = env.get_config()
    config.set("parallelism.default", str(os.cpu_count()))
    config.set("table.local-time-zone", "UTC")
    config.set("table.exec.mini-batch.enabled", "true")
    config.set("table.exec.mini-batch.allow-latency", "1 s")
    config.set("table.exec.mini-batch.size", "10000")
    config.set("table.optimizer.distinct-agg.split.enabled", "true")

    def run(sql: str) -> float:
        started = time.perf_counter()
        sink = TableDescriptor.for_connector("blackhole").build()
        env.sql_query(sql).execute_insert(sink).wait()
        return time.perf_counter() - started

    def tables(folder: str) -> None:
        for name, columns in jobs["columns"].items():
            extra = (
                ", expires as to_timestamp_ltz(expires_ms, 3)" if "expires_ms" in columns else ""
            )
            plain = columns.replace(", ts {}", ", told STRING").replace("{0}", "STRING")
            plain = plain.replace(", ts STRING", ", told STRING")
            plain = plain.replace(", expires STRING", ", expires_told STRING")
            env.execute_sql(f"drop temporary table if exists {name}")
            env.execute_sql(
                f"""create temporary table {name} ({plain}, ts as to_timestamp_ltz(ms, 3){extra},
                watermark for ts as ts - interval '4' second) with ('connector' = 'filesystem',
                'path' = '{folder}/{name}.csv', 'format' = 'csv')"""
            )

    tables(jobs["warm"])
    run("SELECT auction, COUNT(*) AS n FROM bid GROUP BY auction")
    tables(jobs["data"])
    with Path(sys.argv[2]).open("a") as done:
        for name, sql in jobs["queries"].items():
            try:
                found = {"seconds": round(run(sql), 3)}
            except Exception as error:  # of Java, as Py4J tells it
                why = re.search(r"(?:TableException|ValidationException): (.*)", str(error))
                found = {"missing": f"refused: {why[1] if why else str(error)[:200]}"}
            done.write(json.dumps({"query": name, **found}) + "\n")
            done.flush()


if __name__ == "__main__":
    main()
