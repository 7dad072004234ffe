"""Messages of agents as a source: taken in once each, and handed to batches."""
