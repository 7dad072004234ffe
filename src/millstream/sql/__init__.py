"""SQL: the second way to build a flow. What it builds is the graph that Python's API builds.

In the order a text takes: `grammar` (tokens and sqlglot's trees), `statements` (what each statement
asks for), `session` (does it), `rules` (rewrites of queries), `lowering` (queries to streams).
"""
