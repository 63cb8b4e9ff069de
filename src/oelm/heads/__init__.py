"""The method: find the heads of a model, treat them, freeze them, audit them. Knows nothing of experiments."""
