"""Functions that see one event at a time: updaters with their slates, and maps that publish."""
