"""Run folders, records, and the stages of `kairode run`."""
