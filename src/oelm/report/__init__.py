"""The report: a study's records as a page, as Markdown and on paper. No torch."""
