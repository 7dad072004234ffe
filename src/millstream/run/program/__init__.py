"""The program a checkpoint belongs to: what is kept of it, what may change, what a change does."""
