"""Pages, figures, tables and intervals: what every report is made of."""
