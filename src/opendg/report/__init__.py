"""The report: one HTML page of evaluated runs, with everything inside and no network."""
