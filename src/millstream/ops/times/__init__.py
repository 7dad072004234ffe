"""Where time stands: who is late, how far each came, and how windows lie on it."""
