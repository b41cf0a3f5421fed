"""Executes StepPlans: rows, batches, memory, the runner."""
