"""Fitting dynamics models: losses, compiled steps, the training loop, checkpoints, evaluation."""
