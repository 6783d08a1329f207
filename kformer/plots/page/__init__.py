"""The page that shows translations, hypotheses and attention, with a server or in one file.

`words` and `content` make what it shows, `document` the file; `kformer.serving.page` serves it.
"""
