"""Training: one loop for all arms and tasks."""
