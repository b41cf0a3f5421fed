"""Measuring: workloads, a load generator, the roofline, and benchmark_inference(). Experiments are lab/."""

from octavo.bench.inference import BenchmarkResult, benchmark_inference

__all__ = ["BenchmarkResult", "benchmark_inference"]
