"""Attention as an interactive page, in one HTML file that needs no server."""

from kformer.plots.page.content import attention_entry, line_entry, model_entry
from kformer.plots.page.document import standalone_page


def attention_html(maps, model="", languages=None):
    """Makes an interactive page of one sentence: its translations and all its attention.

    It is the page that `kformer serve` shows, with the sentence in it: the hypotheses and where
    they parted, the source of each word, and a map of each layer and head. It is one file, in
    English and Chinese, that loads nothing.

    Args:
        maps: `AttentionMaps`.
        model: str, default "". The model's name, which the page shows.
        languages: pair of str, default `None`. The codes of the languages of the source and the
            target; `None` for those that a name such as "en-de" tells.

    Returns:
        str. The HTML.

    Example:

    ```python
    translator = kformer.Translator.load("runs/en-de")
    maps = kformer.plots.attention_maps(translator, "A man rides a horse.")
    page = kformer.plots.attention_html(maps, model="en-de")
    ```
    """
    hypotheses = maps.hypotheses
    texts = [hypothesis.text for hypothesis in hypotheses] or [maps.text]
    scores = [hypothesis.score for hypothesis in hypotheses] or [None]
    lines = [line_entry(maps.source_text, texts, scores)]
    reply = {"model": model_entry(model, languages), "lines": lines}
    weights = {kind: maps.of(kind) for kind in ("cross", "encoder", "decoder")}
    attention = attention_entry(maps.source, maps.target, weights)
    return standalone_page(reply, attention, title=maps.text or maps.source_text)
