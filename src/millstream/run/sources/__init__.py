"""What there is to read, in the driver: a tracker per source, and who reads what of it."""
