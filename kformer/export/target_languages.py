"""The target languages of which each text may choose one in an exported model."""

import dataclasses


def target_choices(translator, search, changes):
    """Returns the target languages of which each text may choose one.

    Args:
        translator: `kformer.Translator`.
        search: `SearchOptions`. Those of its own language.
        changes: dict. The options of a search that the export changes.

    Returns:
        Dict of code to a pair of `kformer.Tokenizer` and `SearchOptions`. The first is "", for the
        translator's own language. Empty where there is no choice.
    """
    tokenizer, model = translator.tokenizer, translator.model
    choices = {"": (tokenizer, search)}
    for code in tokenizer.languages:
        try:
            other = translator.for_languages(target=code)
        except ValueError:  # The model has it as its start token, or does not read it.
            return {}
        if other.token_lists is not translator.token_lists:  # They are of one language.
            return {}
        options = dataclasses.replace(other.search_options(changes), n_best=search.n_best)
        choices[code] = other.tokenizer, options
    forced = {options.prefix_ids for _, options in choices.values()}
    # A search can force tokens by text unless it forbids them or has no columns for them.
    forbidden = {*search.forbidden_ids, model.start_id, model.pad_id}
    is_forbidden = any(forbidden.intersection(tokens) for tokens in forced)
    if len(forced) > 1 and (search.shortlist or is_forbidden):
        return {}
    suffixes = {each.source_suffix for each, _ in choices.values()}
    rows = {(each.source_prefix, options) for each, options in choices.values()}
    return choices if len(suffixes) == 1 < len(rows) else {}
