"""Files as a source: listed, recognised under any name, written down, read to their end."""
