"""What agents and their collector say to each other: both sides read and write it alike."""
