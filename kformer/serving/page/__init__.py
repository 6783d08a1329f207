"""The page that shows translations, hypotheses and attention, with a server or in one file.

Its parts: `words` and `content` make what it shows, `document` the file, `routes` its server side.
"""
