"""Keys: hashes for shards, codes for grouping, and what they are called."""
