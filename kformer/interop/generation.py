"""The search of a published model: its `generation_config.json` as `SearchOptions`."""

from kformer.decoding import SearchOptions
from kformer.decoding.searcher import check_options
from kformer.utils.checks import check_whole, shown
from kformer_options.names import command_line_names

# More settings than `generate` has.
_MOST_LISTED = 200
# The default of `generate`.
_DEFAULT_NEW_TOKENS = 20
# Settings that the search follows; `search_options` reads them.
_FOLLOWED = (
    *("num_beams", "length_penalty", "early_stopping", "num_return_sequences"),
    *("max_length", "min_length", "max_new_tokens", "min_new_tokens"),
    *("bad_words_ids", "suppress_tokens", "renormalize_logits"),
    *("forced_bos_token_id", "forced_eos_token_id", "eos_token_id"),
    *("do_sample", "temperature", "top_k", "top_p"),
    *("repetition_penalty", "no_repeat_ngram_size"),
)
# Settings that the search does not follow. Any other setting that is in no table here is not
# followed either, unless it has a value that changes nothing: `None`, 0, `False` or empty.
_NOT_FOLLOWED = (
    *("encoder_no_repeat_ngram_size", "encoder_repetition_penalty", "num_beam_groups"),
    *("diversity_penalty", "sequence_bias", "exponential_decay_length_penalty"),
    *("begin_suppress_tokens", "forced_decoder_ids", "constraints", "force_words_ids"),
    *("guidance_scale", "penalty_alpha", "stop_strings", "prefix_allowed_tokens_fn"),
)
# As in `_NOT_FOLLOWED`, but `generate` reads these only to sample.
_OF_SAMPLING = ("typical_p", "min_p", "top_h", "epsilon_cutoff", "eta_cutoff")
# Those of them that change nothing if they are 1.
_FACTORS = ("encoder_repetition_penalty", "num_beam_groups", "guidance_scale", "typical_p")
# Settings that change no id: other tokens' ids, which the model and the tokenizer have; how the
# library computes; and what it returns besides.
_NEUTRAL = (
    *("pad_token_id", "bos_token_id", "decoder_start_token_id"),
    *("transformers_version", "use_cache", "use_mtp", "low_memory", "remove_invalid_values"),
    *("return_dict_in_generate", "trust_remote_code", "max_matching_ngram_size"),
)
_NEUTRAL_PREFIXES = (
    *("_", "output_", "cache_", "max_cache_", "compile_", "disable_compile", "continuous_"),
    *("assistant_", "num_assistant_", "is_assistant", "target_lookbehind", "prompt_lookup_"),
    *("speculation_", "prefill_"),
)
# Older folders have these in config.json, where there is no generation_config.json. Its
# eos_token_id is the model's own.
_IN_CONFIG = {*_FOLLOWED, *_NOT_FOLLOWED, *_OF_SAMPLING} - {"eos_token_id"}


def search_options(generation, config, model, where="generation_config.json"):
    """The default search of a published model, as its own library's `generate` runs it.

    Args:
        generation: dict, the content of `generation_config.json`, or `None` if there is no such
            file; then `config` is read.
        config: dict, the content of `config.json`.
        model: `kformer.Transformer`.
        where: str, default "generation_config.json". The file's name in error messages.

    Returns:
        `SearchOptions` in the mode "huggingface", and a dict of the settings that the search does
        not follow: from a setting's name to a str with its value.

    Raises:
        ValueError: a setting has a value that makes no sense, or names a token that the model does
            not have.
    """
    if generation is None:
        # The defaults of that library's configurations.
        forces_no_end = config.get("model_type") in ("m2m_100", "t5", "mt5")
        usual = {} if forces_no_end else {"forced_eos_token_id": model.end_id}
        generation = {**usual, **{name: config[name] for name in config if name in _IN_CONFIG}}
    settings = _Settings(generation, where)
    left_out = _not_followed(settings)
    ends = settings.ids("forced_eos_token_id")
    for name in ("forced_eos_token_id", "eos_token_id"):
        if set(settings.ids(name)) - {model.end_id}:
            left_out[name] = f"{name}={settings[name]}"
    first = settings.ids("forced_bos_token_id")
    if len(first) > 1:
        left_out["forced_bos_token_id"] = f"forced_bos_token_id={first}"
    hypotheses = _hypotheses(settings, left_out)
    lengths = _lengths(settings, model, ends == [model.end_id])
    forbidden = _forbidden(settings, model, left_out)
    try:
        with command_line_names(False):
            options = SearchOptions(
                mode="huggingface",
                **hypotheses,
                **lengths,
                length_penalty=settings.get("length_penalty", 1.0),
                early_stopping=settings.get("early_stopping", False),
                forced_end=ends == [model.end_id],
                forbidden_ids=tuple(sorted(forbidden)),
                renormalize=bool(settings.get("renormalize_logits", False)),
                prefix_ids=tuple(first[:1]),
                repetition_penalty=settings.get("repetition_penalty", 1.0),
                no_repeat_ngram_size=settings.number("no_repeat_ngram_size") or 0,
            )
        check_options(model, options)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    return options, left_out


def check_followed(left_out, ignore, where="generation_config.json"):
    """Refuses settings that the search does not follow, except those to ignore.

    Args:
        left_out: dict, as `search_options` returns it.
        ignore: sequence of str. Names of settings.
        where: str, default "generation_config.json". The file's name in error messages.

    Raises:
        ValueError: a setting is neither followed nor to be ignored, or `ignore` holds no names.
    """
    if isinstance(ignore, str) or not all(isinstance(name, str) for name in ignore):
        raise ValueError(f"ignore must be a list of names of settings, but {ignore!r} was given.")
    refused = [name for name in left_out if name not in ignore]
    if len(refused) > _MOST_LISTED:
        raise ValueError(
            f"{where} has {len(refused):,} settings that kformer's search does not follow, the "
            f"first of them {shown(refused[0])}: this is not a file of a published model."
        )
    if refused:
        *most, last = (left_out[name] for name in refused)
        listed = f"{', '.join(most)} and {last}" if most else last
        names = tuple(dict.fromkeys([*ignore, *refused]))
        flags = " ".join(f"--ignore {name}" for name in names)
        raise ValueError(
            f"{where} has {listed}, which kformer's search does not follow, so that the outputs "
            f"would differ from the model's own: to import it without, pass ignore={names!r} "
            f"({flags})."
        )


def _not_followed(settings):
    """Dict of the settings in no table of what is followed, as `search_options` returns it."""
    neutral = {*_FOLLOWED, *_NEUTRAL, *(() if settings.get("do_sample") else _OF_SAMPLING)}
    return {
        name: f"{name}={shown(value)}"
        for name, value in settings.items()
        if name not in neutral
        and not name.startswith(_NEUTRAL_PREFIXES)
        and value not in (False, [], {})
        and not (name in _FACTORS and value == 1)
    }


class _Settings(dict):
    """The content of a configuration, read with checks; `None` counts as absent.

    Args:
        content: dict.
        where: str. The file's name in error messages.
    """

    def __init__(self, content, where):
        super().__init__((name, value) for name, value in content.items() if value is not None)
        self.where = where

    def number(self, name):
        """A setting that is a whole number, or `None`."""
        return self.check_ids(name, [self[name]])[0] if name in self else None

    def ids(self, name):
        """A setting that is a token id or a list of them, as a list."""
        value = self.get(name, [])
        return self.check_ids(name, value if isinstance(value, list) else [value])

    def check_ids(self, name, ids):
        """The whole numbers of a list that may have `None`."""
        message = f"{name} of {self.where}"
        return [check_whole(message, number, least=0) for number in ids if number is not None]


def _lengths(settings, model, ends_by_force):
    """The `SearchOptions` of length."""
    # That library counts the start token too, and stops at this number of tokens with or without an
    # end token.
    total = min(_DEFAULT_NEW_TOKENS + 1, model.max_length)
    for name, start in (("max_length", 0), ("max_new_tokens", 1)):
        if name in settings:
            total = settings.number(name) + start
            if total < 2:
                raise ValueError(
                    f"{settings.where} gives {settings[name]} for {name}, which leaves no token "
                    "after the start token."
                )
    if model.get_config()["position_encoding"] == "learned":
        total = min(total, model.max_length + 1)  # The last token is never read.
    shortest = settings.number("min_new_tokens")
    if shortest is None:
        shortest = (settings.number("min_length") or 0) - 1
    max_length = total - 2
    return {
        "max_length": max_length,
        # Without a forced end even the last token may have to be another than the end token.
        "min_length": max(min(shortest, max_length + (not ends_by_force)), 0),
        # No limit by the source's length: this one is never the smaller.
        "length_ratio": float(max_length),
        "length_offset": 0,
    }


def _hypotheses(settings, left_out):
    """The `SearchOptions` for the number of hypotheses, by a beam or by sampling."""
    beam_size = settings.number("num_beams") or 1
    n_best = settings.number("num_return_sequences") or 1
    if settings.get("do_sample") and beam_size == 1:
        usual = {"temperature": 1.0, "top_k": 50, "top_p": 1.0}
        options = {name: settings.get(name, default) for name, default in usual.items()}
        return {"beam_size": 1, "n_best": n_best, "sampling": True, **options}
    if settings.get("do_sample"):
        left_out["do_sample"] = f"do_sample=True beside num_beams={beam_size}"
    return {"beam_size": beam_size, "n_best": min(n_best, beam_size), "sampling": False}


def _forbidden(settings, model, left_out):
    """The set of forbidden tokens; a forbidden end token and longer sequences go to `left_out`."""
    forbidden = set(settings.ids("suppress_tokens"))
    if model.end_id in forbidden:
        left_out["suppress_tokens"] = f"the end token {model.end_id} in suppress_tokens"
    words = settings.get("bad_words_ids") or []
    if not isinstance(words, list) or not all(isinstance(word, list) for word in words):
        raise ValueError(
            f"{settings.where} gives {words!r} for bad_words_ids, but a list of lists of token ids "
            "is needed."
        )
    words = [settings.check_ids("bad_words_ids", word) for word in words]
    forbidden |= {word[0] for word in words if len(word) == 1}
    if longer := sum(len(word) != 1 for word in words):
        sequences = "1 sequence" if longer == 1 else f"{longer} sequences"
        left_out["bad_words_ids"] = f"bad_words_ids with {sequences} of several tokens"
    return forbidden - {model.end_id}
