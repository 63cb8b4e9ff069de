"""What a cell leaves behind. No torch."""
