"""The insides of SQL expressions; `millstream.ops.expressions` is the door to them.

A line imports only from itself and from the lines below it, and never in a circle:

    parsing, lowering, vocabulary           from SQL, by sqlglot, to a tree: on the driver
    expression, branches, nodes, frames     the tree, and what it is evaluated on
    functions                               the table of all functions, which are in
    comparison, arithmetic, text, patterns, times, nested
    applying, coercion                      what a function is, and its type rules
    casts, conversions, types               what values are, and how they change type
"""
