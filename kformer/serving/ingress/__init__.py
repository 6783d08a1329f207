"""The protocols: what stands between a socket and an engine."""
