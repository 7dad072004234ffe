"""Programs written for other systems, run as they are: mrjob scripts and Hadoop Streaming.

Both are programs of lines. A step of one is a `Stage` (`lines.py`): filters from lines to lines for
its map, combine and reduce side. `flows.py` builds a flow of stages with the public interface, so
that windows, state, commits and early answers are the engine's own.
"""
