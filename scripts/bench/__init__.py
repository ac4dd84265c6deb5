"""Benchmarks, a folder each: cases, competitors, rounds, report. Their commands are `scripts/bench_*.py`."""
