"""Reports on tables of data."""
