"""Evaluation: metrics, threshold rules, figures, and the job that runs a classifier over a target."""
