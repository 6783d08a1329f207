"""Documents and terms for clients of a server: many texts, one request to the model at a time."""

import asyncio
import time

from kformer.documents.formats import format_named
from kformer.documents.job import Answer
from kformer.documents.model import one_line
from kformer.documents.sentences import two_letters
from kformer.documents.work import translated
from kformer.serving.ingress.ingress import check_count
from kformer.serving.interface import DeadlineExceeded, TooLarge


class _NoAbilities:
    """The server's requests have no terms: what must occur is masked, and checked."""

    def forces(self, terms):
        return False


class Documents:
    """Translates documents in step: what all of them need next is one request to the model.

    Args:
        ask: coroutine function of a list of bytes to a `Reply`.
        settings: `ServerSettings`, of which the limits of texts and the deadline count.
        start: float. `time.monotonic()` when the request began.
    """

    def __init__(self, ask, settings, start):
        self._ask, self._max_texts = ask, settings.max_texts
        self._max_text_bytes = settings.max_text_bytes
        self._deadline = start + settings.deadline_s

    async def translate(self, texts, format, languages, glossary=None):
        """Translates documents.

        Args:
            texts: list of str.
            format: str. Its name, such as "html".
            languages: pair of str. Codes of source and target.
            glossary: `kformer.documents.Glossary`, default `None`.

        Returns:
            List of pairs of a translation, str, and its `kformer.documents.Report`.

        Raises:
            TooLarge: there are too many documents, or one is too long.
            DeadlineExceeded: the deadline came before all of them were read.
        """
        check_count(len(texts), self._max_texts)
        for text in texts:
            size = len(text.encode("utf-8", "surrogatepass"))
            if size > self._max_text_bytes:
                raise TooLarge(
                    f"A text has {size} bytes, but at most {self._max_text_bytes} are allowed."
                )
        options = {
            "source_language": two_letters(languages[0]),
            "target_language": languages[1].replace("_", "-"),
            "glossary": glossary,
        }
        works = [
            translated(text, format_named(format), _NoAbilities(), **options) for text in texts
        ]
        found = [None] * len(texts)
        answers = dict.fromkeys(range(len(works)))
        while answers:
            wanted = {}
            for index, answer in answers.items():
                requests, found[index] = await self._in_thread(_step, works[index], answer)
                if requests is not None:
                    wanted[index] = requests
            answers = await self._answers(wanted) if wanted else {}
        return found

    async def _in_thread(self, *call):
        """Other requests are answered while a page is read. A thread cannot be stopped: it reads
        one page alone, so that little is done after the deadline or for a client that left.
        """
        try:
            async with asyncio.timeout(self._deadline - time.monotonic()):
                return await asyncio.to_thread(*call)
        except TimeoutError:
            raise DeadlineExceeded("The documents were not read by the deadline.") from None

    async def _answers(self, wanted):
        """For each document the list of `Answer` to what it wanted."""
        texts = {request.text: None for requests in wanted.values() for request in requests}
        reply = await self._ask([text.encode("utf-8", "replace") for text in texts])
        translations, cut = reply.outputs["translation"], reply.outputs["truncated"]
        found = (text.decode("utf-8", "replace") for text in translations)
        known = {
            text: Answer(one_line(translation), bool(was_cut))
            for text, translation, was_cut in zip(texts, found, cut, strict=True)
        }
        return {i: [known[r.text] for r in requests] for i, requests in wanted.items()}


def _step(work, answer):
    """Sends an answer; returns what is wanted next, and what the document is once it is done."""
    try:
        return work.send(answer), None
    except StopIteration as end:
        return None, end.value
