"""Translation of documents and terms for clients of a server, by one request at a time."""

import asyncio
import json
import time

from kformer.documents.formats import format_named
from kformer.documents.job import Answer
from kformer.documents.words import one_line
from kformer.documents.work import translated
from kformer.serving.interface import COVERAGE, DEFAULT_SIGNATURE, DeadlineExceeded, Request
from kformer.translating.coverage import without_model


class _NoAbilities:
    """A server's model takes no terms: terms of a glossary are masked, and checked."""

    def forces(self, terms):
        return False


class Documents:
    """Translates documents together: the next texts of all of them are one request to the model.

    Args:
        ingress: `Ingress`, whose limits of texts and deadline hold.
        protocol: str. Its name in the metrics, which count one request of the client.
        version: `ModelVersion`. The model, by its name.
        pair: pair of str, or of `None` where it is not known. Source and target language.
        start: float. `time.monotonic()` when the request began.
        coverage: bool, default `False`. Whether `coverage_of` will be asked.
    """

    def __init__(self, ingress, protocol, version, pair, start, coverage=False):
        self._ingress, self._protocol, self._start = ingress, protocol, start
        self._model, self._pair = version.name, pair
        self._languages = {"target_languages": version.languages_into(pair[1])}
        self._version, self._count = version.version, 0
        is_judged = coverage and COVERAGE in version.signatures
        self._signature = COVERAGE if is_judged else DEFAULT_SIGNATURE
        self._coverages = {}
        self._max_texts = ingress.settings.max_texts
        self._deadline = start + ingress.settings.deadline_s

    async def translate(self, texts, format, glossary=None):
        """Translates documents.

        Args:
            texts: list of str.
            format: str. Its name, such as "html".
            glossary: `kformer.documents.Glossary`, default `None`.

        Returns:
            List of pairs of a translation, str, and its `kformer.documents.Report`.

        Raises:
            TooLarge: there are too many documents, or one is too long.
            DeadlineExceeded: the deadline came before all of them were read.
            Draining: the server is ending.
        """
        self._ingress.check_sizes([text.encode("utf-8", "surrogatepass") for text in texts])
        source, target = self._pair
        options = {"source_language": source, "target_language": target, "glossary": glossary}
        kind, abilities = format_named(format), _NoAbilities()
        works = [translated(text, kind, abilities, **options) for text in texts]
        translations, answers = [None] * len(works), dict.fromkeys(range(len(works)))
        with self._ingress.document():
            while answers:
                requests = {}
                for index, answer in answers.items():
                    listed, translations[index] = await self._next(works[index], answer)
                    if listed is not None:
                        requests[index] = listed
                answers = await self._answers(requests)
            labels = self._protocol, self._model, self._version
            self._ingress.metrics.answered(*labels, self._count, self._start)
        return translations

    def coverage_of(self, report):
        """What the sentences of a translated document left out or added, as a list of JSON values.

        Args:
            report: `kformer.documents.Report`.
        """
        rows = []
        for one in report.translations:
            texts = one.source, one.translation
            found = self._coverages.get(texts) or without_model(*texts).as_dict()
            rows.append({**one.as_dict(), **found})
        return rows

    async def _next(self, work, answer):
        """Sends an answer: returns the next requests and `None`, or `None` and the translation.

        It runs in a thread, so that other requests are answered meanwhile. A thread cannot be
        stopped, so it handles one document: little is computed after the deadline.
        """

        def send():
            try:
                return work.send(answer), None
            except StopIteration as end:
                return None, end.value

        try:
            async with asyncio.timeout(self._deadline - time.monotonic()):
                return await asyncio.to_thread(send)
        except TimeoutError:
            raise DeadlineExceeded("The documents were not read by the deadline.") from None

    async def _answers(self, requests):
        """The list of `Answer` to the requests of each document."""
        texts = dict.fromkeys(request.text for listed in requests.values() for request in listed)
        texts, answers = list(texts), {}
        # The client does not know how many sentences its texts have: their number is no error.
        for first in range(0, len(texts), self._max_texts):
            part = texts[first : first + self._max_texts]
            encoded = [text.encode("utf-8", "replace") for text in part]
            query = Request(self._model, encoded, self._signature, **self._languages)
            options = {"start": self._start, "is_part": True}
            reply = await self._ingress.answer(self._protocol, query, **options)
            self._version, self._count = reply.version, self._count + len(part)
            columns = (reply.outputs[name] for name in ("translation", "truncated"))
            for text, translation, was_cut in zip(part, *columns, strict=True):
                translation = one_line(translation.decode("utf-8", "replace"))
                answers[text] = Answer(translation, bool(was_cut))
            for text, found in zip(part, reply.outputs.get(COVERAGE, ()), strict=False):
                self._coverages[text, answers[text].text] = json.loads(found)
        return {index: [answers[one.text] for one in listed] for index, listed in requests.items()}
