"""What is wanted: value learners whose discount is gamma to the power of the interval."""
