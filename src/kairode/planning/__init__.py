"""Planning with learned models: model environments, model-predictive control, optimised schedules."""
