"""Estimates of a whole input from blocks of it in random order: pure NumPy, for early answers.

In reading order: `values` and the states of aggregates are what tasks report of a block, `answers`
puts it together in the driver. `moments` is what is kept of the blocks read, `estimates` makes
values and bounds of that, with `intervals` (how wide, and what that promises), `sparse` (groups in
few blocks) and `unseen` (groups in none); `ranks` and `incidence` do the same for quantiles and
different values.
"""
