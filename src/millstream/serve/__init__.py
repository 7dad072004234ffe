"""Looking at a flow: slates, status and changes, read from what is committed."""
