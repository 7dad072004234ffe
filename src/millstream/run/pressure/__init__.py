"""More than a flow can digest: what waits where, who is served first, how much memory is left."""
