"""In situ: programs that run where the records are, and send on what their first steps made."""
