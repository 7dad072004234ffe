"""Tables of other systems as sinks: each takes a batch once, and says which it has."""
