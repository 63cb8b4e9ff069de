"""The reading: what records, studies and published claims support. Needs no torch."""
