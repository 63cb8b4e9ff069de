"""The sections of a report, each built from results as blocks."""
