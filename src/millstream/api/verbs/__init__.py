"""What can be done with a stream, by subject; `api/stream.py` puts it together."""
