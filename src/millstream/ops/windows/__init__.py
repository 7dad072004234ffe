"""Windows: from records to panes, from panes to results."""
