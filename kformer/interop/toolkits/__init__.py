"""Models that other toolkits wrote, read from the toolkits' own files as data: without the toolkit,
without TensorFlow, and without running anything that a file holds."""
