"""What to do and when: a learned model as an environment, model-predictive control, schedules."""
