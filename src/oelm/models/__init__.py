"""Models trained by the library."""
