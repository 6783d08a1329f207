"""Translation of documents and terms for clients of a server, by one request at a time."""

import asyncio
import time

from kformer.documents.formats import format_named
from kformer.documents.job import Answer
from kformer.documents.words import one_line
from kformer.documents.work import translated
from kformer.serving.ingress.ingress import check_count
from kformer.serving.interface import DeadlineExceeded, TooLarge


class _NoAbilities:
    """A server's model takes no terms: terms of a glossary are masked, and checked."""

    def forces(self, terms):
        return False


class Documents:
    """Translates documents together: the next texts of all of them are one request to the model.

    Args:
        ingress: `Ingress`, whose limits of texts and deadline hold.
        protocol: str. Its name in the metrics, which count one request of the client.
        version: `ModelVersion`. The model, by its name, and its languages.
        start: float. `time.monotonic()` when the request began.
    """

    def __init__(self, ingress, protocol, version, start):
        self._ingress, self._protocol, self._start = ingress, protocol, start
        self._model, self._languages = version.name, version.languages or (None, None)
        self._version, self._count = version.version, 0
        self._max_texts = ingress.settings.max_texts
        self._max_text_bytes = ingress.settings.max_text_bytes
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
        check_count(len(texts), self._max_texts)
        for text in texts:
            size = len(text.encode("utf-8", "surrogatepass"))
            if size > self._max_text_bytes:
                raise TooLarge(
                    f"A text has {size} bytes, but at most {self._max_text_bytes} are allowed."
                )
        with self._ingress.document():
            return await self._translated(texts, format, glossary)

    async def _translated(self, texts, format, glossary):
        options = {
            "source_language": self._languages[0],
            "target_language": self._languages[1],
            "glossary": glossary,
        }
        kind, abilities = format_named(format), _NoAbilities()
        works = [translated(text, kind, abilities, **options) for text in texts]
        translations = [None] * len(texts)
        answers = dict.fromkeys(range(len(works)))
        while answers:
            requests = {}
            for index, answer in answers.items():
                listed, translations[index] = await self._in_thread(_step, works[index], answer)
                if listed is not None:
                    requests[index] = listed
            answers = await self._answers(requests)
        self._ingress.metrics.answered(
            self._protocol, self._model, self._version, self._count, self._start
        )
        return translations

    async def _in_thread(self, *call):
        """Calls a function in a thread, so that other requests are answered meanwhile. A thread
        cannot be stopped, so a call handles one document: little is computed after the deadline.
        """
        try:
            async with asyncio.timeout(self._deadline - time.monotonic()):
                return await asyncio.to_thread(*call)
        except TimeoutError:
            raise DeadlineExceeded("The documents were not read by the deadline.") from None

    async def _answers(self, requests):
        """The list of `Answer` to the requests of each document."""
        texts = dict.fromkeys(request.text for listed in requests.values() for request in listed)
        texts, answers = list(texts), {}
        # The client does not know how many sentences its texts have: their number is no error.
        for first in range(0, len(texts), self._max_texts):
            answers |= await self._answers_to(texts[first : first + self._max_texts])
        return {
            index: [answers[request.text] for request in listed]
            for index, listed in requests.items()
        }

    async def _answers_to(self, texts):
        """Dict of each text to its `Answer`."""
        reply = await self._ingress.answer(
            self._protocol,
            self._model,
            [text.encode("utf-8", "replace") for text in texts],
            start=self._start,
            is_part=True,
        )
        self._version, self._count = reply.version, self._count + len(texts)
        outputs = zip(reply.outputs["translation"], reply.outputs["truncated"], strict=True)
        return {
            text: Answer(one_line(translation.decode("utf-8", "replace")), bool(was_cut))
            for text, (translation, was_cut) in zip(texts, outputs, strict=True)
        }


def _step(work, answer):
    """Sends an answer: returns the next requests and `None`, or `None` and the translation."""
    try:
        return work.send(answer), None
    except StopIteration as end:
        return None, end.value
