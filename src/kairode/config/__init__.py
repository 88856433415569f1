"""Settings of everything, as frozen dataclasses; nothing here imports JAX."""
