"""Whole documents: sentences, markup and terms."""

from kformer.documents.format import Format
from kformer.documents.formats import FORMATS, format_of
from kformer.documents.glossary import Entry, Glossary
from kformer.documents.sentences import split_sentences
from kformer.documents.translating import DocumentTranslation, translate_document
from kformer.documents.work import Problem, Report, SentenceCoverage, TermUse

__all__ = [
    "FORMATS",
    "DocumentTranslation",
    "Entry",
    "Format",
    "Glossary",
    "Problem",
    "Report",
    "SentenceCoverage",
    "TermUse",
    "format_of",
    "split_sentences",
    "translate_document",
]
