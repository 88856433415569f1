"""Tables of any kind as episodes: sources, columns, faults, rewards as expressions, and what is in a table."""
