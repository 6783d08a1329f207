"""The parts of `benchmarks/reliability.py`, one module each, and what they share."""
