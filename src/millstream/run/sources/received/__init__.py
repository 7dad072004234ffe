"""What cannot be asked for twice (sockets, HTTP, generators): spooled, then read as pieces."""
