"""The figures of a report, drawn as SVG that carries both languages."""
