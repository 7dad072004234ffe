"""What a committed batch gives to readers: files, tables, topics, mirrors and functions."""
