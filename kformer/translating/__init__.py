"""Parts of a `Translator`'s work that are no search of their own."""
