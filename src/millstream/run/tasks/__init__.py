"""What runs beside the records: a split is read, pushed through the steps, and sent on."""
