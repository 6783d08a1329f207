"""Several corpora as they lie: described, read, cleaned, and written as lines to train on."""
