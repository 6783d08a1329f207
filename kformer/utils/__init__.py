"""The ground floor: what every other package may use and what knows nothing of Transformers."""
