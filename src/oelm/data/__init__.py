"""Tasks, sources, tokens and batches."""
