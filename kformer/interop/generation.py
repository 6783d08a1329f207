"""How a published model is searched: its `generation_config.json` as `SearchOptions`."""

from kformer.decoding import SearchOptions
from kformer.decoding.searcher import check_options
from kformer.utils.checks import check_whole

# What `generate` does where nothing is said.
_DEFAULT_NEW_TOKENS = 20
# Settings that change what is generated, that kformer's searches do not have, and their values that
# change nothing.
_UNSUPPORTED = {
    "repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1.0,
    "num_beam_groups": 1,
    "diversity_penalty": 0.0,
    "sequence_bias": None,
    "exponential_decay_length_penalty": None,
    "begin_suppress_tokens": None,
    "forced_decoder_ids": None,
    "constraints": None,
    "force_words_ids": None,
    "guidance_scale": 1.0,
    "typical_p": 1.0,
    "min_p": None,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "penalty_alpha": None,
    "stop_strings": None,
    "prefix_allowed_tokens_fn": None,
}
# Where there is no generation_config.json, older folders have these in config.json.
_IN_CONFIG = (
    "num_beams", "length_penalty", "early_stopping", "max_length", "min_length", "max_new_tokens", "min_new_tokens", "bad_words_ids",
    "suppress_tokens", "renormalize_logits",
    "forced_bos_token_id", "forced_eos_token_id", "do_sample", "temperature", "top_k", "top_p", "num_return_sequences",
    *_UNSUPPORTED,
)  # fmt: skip


def search_options(generation, config, model, where="generation_config.json"):
    """The search that `generate` runs by default with a published model.

    Args:
        generation: dict, the content of `generation_config.json`; `None` if there is none, then
            `config` tells.
        config: dict, the content of `config.json`.
        model: the `Transformer`.
        where: what to call the file in error messages.

    Returns:
        `SearchOptions` in the mode "huggingface", and a list of settings, as text, that were left
        out since kformer has no such thing.

    Raises:
        ValueError: a setting has a value that makes no sense, or names a token that the model does
            not have.
    """
    if generation is None:
        # What that library's configurations have where the file does not say otherwise.
        usual = (
            {} if config.get("model_type") == "m2m_100" else {"forced_eos_token_id": model.end_id}
        )
        generation = {**usual, **{name: config[name] for name in _IN_CONFIG if name in config}}
        where = "config.json"
    left_out = [
        f"{name}={generation[name]}"
        for name, nothing in _UNSUPPORTED.items()
        if generation.get(name) not in (None, nothing, [], {})
    ]
    # That library counts the start token too, and stops at so many tokens with or without an end
    # token.
    total = _number(generation, "max_length", where)
    if total is not None and total < 2:
        raise ValueError(
            f"{where} gives {total} for max_length, which leaves no token behind the start token."
        )
    if _number(generation, "max_new_tokens", where) is not None:
        total = generation["max_new_tokens"] + 1
    elif total is None:
        total = min(
            _DEFAULT_NEW_TOKENS + 1, config.get("max_position_embeddings", model.max_length)
        )
    if model.get_config()["position_encoding"] == "learned":
        total = min(total, model.max_length + 1)  # The last token is never read.
    min_length = (_number(generation, "min_length", where) or 0) - 1
    if _number(generation, "min_new_tokens", where) is not None:
        min_length = generation["min_new_tokens"]
    forced_end = _single(generation, "forced_eos_token_id", where)
    if forced_end not in (None, model.end_id):
        left_out.append(f"forced_eos_token_id={forced_end}")
    forbidden = _forbidden(generation, left_out, where)
    end_ids = _ids(generation, "eos_token_id", where)
    if end_ids and set(end_ids) != {model.end_id}:
        left_out.append(f"eos_token_id={generation['eos_token_id']}")
    beams, sampling = (
        _number(generation, "num_beams", where) or 1,
        bool(generation.get("do_sample", False)),
    )
    n_best = _number(generation, "num_return_sequences", where) or 1
    if sampling and beams > 1:
        left_out.append(f"do_sample=True beside num_beams={beams}")
        sampling = False
    draws = {}
    if sampling:
        given = {"temperature": 1.0, "top_k": 50, "top_p": 1.0}
        draws = {
            name: default if generation.get(name) is None else generation[name]
            for name, default in given.items()
        }
    first = _ids(generation, "forced_bos_token_id", where)
    early_stopping, length_penalty = (
        generation.get("early_stopping"),
        generation.get("length_penalty"),
    )
    try:
        options = SearchOptions(
            mode="huggingface",
            beam_size=beams,
            n_best=n_best if sampling else min(n_best, beams),
            length_penalty=1.0 if length_penalty is None else length_penalty,
            early_stopping=False if early_stopping is None else early_stopping,
            max_length=max(total - 2, 1),
            min_length=max(min(min_length, total - 2), 0),
            # No limit by the source's length: the other one is always smaller.
            length_ratio=float(max(total - 2, 1)),
            length_offset=0,
            forced_end=forced_end == model.end_id,
            forbidden_ids=tuple(sorted(forbidden - {model.end_id})),
            renormalize=bool(generation.get("renormalize_logits", False)),
            prefix_ids=tuple(first[:1]),
            sampling=sampling,
            **draws,
        )
        check_options(model, options)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    return options, left_out


def _forbidden(generation, left_out, where):
    """Ids that are never generated. Longer sequences that may not come are told in `left_out`."""
    forbidden = set(_ids(generation, "suppress_tokens", where))
    words = generation.get("bad_words_ids") or []
    if not isinstance(words, list) or not all(isinstance(word, list) for word in words):
        raise ValueError(
            f"{where} gives {words!r} for bad_words_ids, but a list of lists of token ids is needed."
        )
    longer = 0
    for word in words:
        ids = _ids({"bad_words_ids": word}, "bad_words_ids", where)
        if len(ids) == 1:
            forbidden.add(ids[0])
        else:
            longer += 1
    if longer:
        left_out.append(f"bad_words_ids with {longer} sequences of several tokens")
    return forbidden


def _number(generation, name, where):
    value = generation.get(name)
    return None if value is None else check_whole(f"{name} of {where}", value, least=0)


def _ids(generation, name, where):
    """A setting that is a token id or a list of them, as a list."""
    value = generation.get(name)
    ids = [] if value is None else value if isinstance(value, list) else [value]
    for token in ids:
        _number({name: token}, name, where)
    return ids


def _single(generation, name, where):
    value = generation.get(name)
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    return _number({name: value}, name, where)
