"""What came out: records to tables, figures and pages. Nothing here trains."""
