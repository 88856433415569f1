"""The main job: run folders, stages, records."""
