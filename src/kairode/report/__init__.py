"""Tables, figures and pages from records. Nothing here trains or simulates."""
