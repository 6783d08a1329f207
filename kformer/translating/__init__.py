"""Parts of a `Translator`'s work that are not a search of their own."""
