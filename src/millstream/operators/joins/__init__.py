"""`Stream.join`: rows of two streams that have the same key, kept up to date as either changes."""
