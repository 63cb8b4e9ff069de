"""The experiment: what is shared, which arms, which seeds. No torch."""
