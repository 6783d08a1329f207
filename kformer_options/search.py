"""The options of a search, declared once: for Python, the command line and saved models.

This module imports only the standard library, so that help is quick.
"""

import dataclasses
import numbers
from collections.abc import Sequence

from kformer_options.field import check_values, documented, option, options_of
from kformer_options.names import add_flags, command_line_names, named

MODES = ("kformer", "huggingface")
TOKEN_LISTS = ("forbidden_ids", "prefix_ids", "shortlist")


def _token_ids(name, ids):
    """Returns token ids as a tuple of ints, so that options can be compared and be keys."""
    if type(ids) is tuple and set(map(type, ids)) <= {int} and min(ids, default=0) >= 0:
        return ids  # Long shortlists are usually of this form, and are checked at each call.
    if not isinstance(ids, tuple | list) or any(
        not isinstance(i, numbers.Integral) or isinstance(i, bool) or i < 0 for i in ids
    ):
        raise ValueError(f"{name} must be a list of token ids, but {ids!r} was given.")
    return tuple(int(i) for i in ids)


@documented
@dataclasses.dataclass(frozen=True)
class SearchOptions:
    """How to search. Lengths are numbers of tokens, the end token not counted.

    Args:
        {options}

    Raises:
        ValueError: a value is of the wrong type or out of range, or two do not fit together.

    Example:
        ```python
        options = kformer.decoding.SearchOptions(beam_size=5, n_best=3, length_penalty=1.0)
        options.rows_per_sentence  # 5
        options.limits(np.array([10, 200]))  # [52, 255]
        ```

    References:
        Wu et al. 2016, "Google's neural machine translation system", equation 14 (the length
        penalty). Holtzman et al. 2020, "The curious case of neural text degeneration" (nucleus
        sampling).
    """

    beam_size: int = option(
        "Live hypotheses per sentence; 1 is greedy search (the most probable token at each step).",
        4,
        at_least=1,
        group="Search",
        help="Live hypotheses per sentence; 1 is greedy search, the fastest. Default: the "
        "model's, which is 4 after training.",
    )
    n_best: int = option(
        "Hypotheses returned per sentence, best first; at most `beam_size` with a beam.",
        1,
        at_least=1,
        help="Translations per line, best first, in columns with tabs between them. Default: 1.",
    )
    length_penalty: float = option(
        "Exponent alpha of GNMT's length penalty `((5 + length) / 6)^alpha`, by which the sum of "
        "log-probabilities is divided. 0 compares plain sums; larger values favour longer "
        "hypotheses.",
        0.6,
        help="Exponent of the length penalty; more favours longer translations, 0 is none. "
        "Default: the run's, which its training chose; 1 where it was too short to choose one.",
    )
    min_length: int = option("The fewest tokens of a hypothesis.", 0, at_least=0)
    max_length: int = option(
        "The most tokens of a hypothesis; the search stops there. In the mode "
        '"huggingface" it may be 0: one token is generated, the end token or another.',
        255,
        at_least=0,
        help="Maximum number of tokens of a translation. Default: one below the model's limit.",
    )
    length_ratio: float = option(
        "The same limit relative to the source: `length_ratio * source tokens + length_offset`. "
        "The smaller of the two limits holds. Each sentence has its own limit, so no sentence "
        "changes another's.",
        2.0,
        at_least=0,
        help="With --length-offset: most tokens of a translation as RATIO * source tokens + "
        "OFFSET. A high length penalty needs a low limit, or it favours sentences that repeat "
        "themselves. Default: the run's, which its training chose, or else 2.",
    )
    length_offset: int = option(
        "See `length_ratio`.", 32, at_least=0, help="See --length-ratio. Default: the run's, or 32."
    )
    sampling: bool = option(
        "Whether each token is sampled instead of searched for. `n_best` independent samples are "
        "returned.",
        False,
        flag="sample",
        group="Sampling",
        help="Sample translations instead of searching for the best.",
    )
    temperature: float = option(
        "Logits are divided by it before a token is sampled; below 1 sharpens, above 1 flattens.",
        1.0,
        above=0,
        note=" (for no randomness use a beam)",
        help="With --sample or --mbr: below 1 likelier tokens are sampled more often, above 1 "
        "rarer ones. Default: 1.",
    )
    top_k: int = option(
        "Only the k most probable tokens are sampled; 0 for all.",
        0,
        at_least=0,
        help="With --sample or --mbr: sample among the k likeliest tokens. Default: all.",
    )
    top_p: float = option(
        "Only the fewest tokens whose probabilities reach p are sampled (nucleus sampling); 1 for "
        "all.",
        1.0,
        above=0,
        at_most=1,
        help="With --sample or --mbr: sample among the likeliest tokens that hold this much "
        "probability. Default: 1, all.",
    )
    seed: int = option(
        "Seed of the random numbers. With the same seed, the same sentence at the same index of a "
        "call gives the same samples.",
        0,
        at_least=0,
        at_most=2**31 - 1,
        help="With --sample or --mbr: seed of the random numbers. Default: 0.",
    )
    mode: str = option(
        '"huggingface" is the search of that library\'s `generate`, with which imported models '
        "were used: scores are divided by `length^length_penalty`, other hypotheses take part, it "
        "may stop early, and the padding token may be generated unless it is forbidden (see "
        "`kformer.decoding.beam_huggingface`).",
        "kformer",
        choices=MODES,
        group="Search",
    )
    early_stopping: bool | str = option(
        'In the mode "huggingface": when a sentence with `beam_size` finished hypotheses is done. '
        'In the mode "kformer" `True` takes a sentence as done as soon as its `n_best` hypotheses '
        "rank above the best live one at its present length, which is sooner, and may miss a "
        'longer hypothesis of a higher rank; the others never miss one. `"shrink"` is Marian\'s '
        'rule, for the mode "huggingface": each finished hypothesis leaves a live one less.',
        False,
        choices=(True, False, "never", "shrink"),
        help="Stop a beam search sooner; it may miss a better, longer translation.",
    )
    forced_end: bool = option(
        'In the mode "huggingface": whether a hypothesis at its limit is given an end token, at no '
        "cost; otherwise it has none.",
        True,
    )
    forbidden_ids: Sequence[int] = option(
        "Tokens that are never generated (besides the start and padding token in the mode "
        '"kformer"). With the end token among them, each hypothesis is as long as its limit '
        "allows, and is then ended.",
        (),
        check=_token_ids,
    )
    renormalize: bool = option(
        "Whether the probabilities of the tokens that are not forbidden sum to one again.", False
    )
    prefix_ids: Sequence[int] = option(
        "Tokens that every hypothesis begins with, at no cost. No limit relative to the source is "
        "below their number. The `Translator` puts a target language here.",
        (),
        check=_token_ids,
    )
    shortlist: Sequence[int] = option(
        "The tokens that may be generated, besides the end token; empty for all. The others are "
        "not computed, so a search takes less time, and probabilities are those among the tokens "
        "of the list (and the prefix), not of the whole vocabulary. See `Translator.shortlist`.",
        (),
        check=_token_ids,
    )
    repetition_penalty: float = option(
        "Where a token has occurred in a hypothesis, a negative score is multiplied by it, another "
        "divided; above 1 it makes repetition less likely. As in Hugging Face's `generate`, the "
        "start token and the prompt of a language model count, and what is penalised is the "
        "log-probability in a beam, and the logit in greedy search and sampling. So the scores of "
        "a beam include the penalty; the others are the model's own, unless `renormalize` is set.",
        1.0,
        above=0,
        note=" (1 for none)",
        help="What tokens that have occurred in a translation cost: above 1 they become less "
        "likely; 1.2 is usual. Default: the model's, which is 1 (nothing) after training.",
    )
    # Each token of an n-gram is an operation, and n may come from a stranger's file.
    no_repeat_ngram_size: int = option(
        "No n-gram of so many tokens (up to 1000) occurs twice in a hypothesis, the start token "
        "and the prompt of a language model included; 0 for no limit. In the mode "
        '"kformer" the end token is exempt.',
        0,
        at_least=0,
        at_most=1000,
        help="No sequence of N tokens occurs twice in a translation; 0 for no limit. "
        "Default: the model's, which is 0 after training.",
    )
    max_text_bytes: int | None = option(
        "A text is cut to so many bytes (of UTF-8, where a code point begins) before it is "
        "tokenized, so that a text of any length costs little. `None` for 64 bytes for each token "
        "that the model reads, and at least 4096. A text whose beginning is nothing but spaces may "
        "then be empty; `truncated` marks it.",
        at_least=4,
        help="Maximum number of bytes of a text that are read. Default: 64 for each token of the "
        "model's limit, and at least 4096.",
    )

    def __post_init__(self):
        check_values(self)
        if self.shortlist and not set(self.shortlist) - set(self.forbidden_ids):
            raise ValueError(
                "All tokens of the shortlist are forbidden: give some that may be generated."
            )
        # In the mode "huggingface" one more token follows, which need not be the end token.
        is_huggingface = self.mode == "huggingface"
        if self.max_length < 1 and not is_huggingface:
            raise ValueError(f"{named('max_length')} must be at least 1, but 0 was given.")
        limit = self.max_length + (is_huggingface and not self.forced_end)
        if self.min_length > limit:
            raise ValueError(
                f"min_length is {self.min_length}, above {named('max_length')}, which is "
                f"{self.max_length}: raise {named('max_length')} to at least {self.min_length}."
            )
        if len(self.prefix_ids) > self.max_length + is_huggingface:
            raise ValueError(
                f"prefix_ids has {len(self.prefix_ids)} tokens, but {named('max_length')} is "
                f"{self.max_length}; raise it to at least {len(self.prefix_ids)}."
            )
        if not self.sampling and self.n_best > self.beam_size:
            raise ValueError(
                f"A beam of {self.beam_size} cannot give the {self.n_best} best: raise "
                f"{named('beam_size')} to {self.n_best}, or lower {named('n_best')}."
            )

    @property
    def compiled_part(self):
        """The options without those that each call may change: limits, seed, bound of the text.

        Searches that share it are compiled once.
        """
        shortest = max(1, self.min_length, len(self.prefix_ids))
        each_call = {"seed": 0, "length_ratio": 0.0, "length_offset": 0, "max_text_bytes": None}
        return dataclasses.replace(self, max_length=shortest, **each_call)

    @property
    def least_limit(self):
        """The limit of the shortest source: a limit relative to the source is never below it."""
        return min(max(1, self.min_length, len(self.prefix_ids)), self.max_length)

    def penalty(self, length, length_penalty=None):
        """The divisor of the score of a hypothesis.

        Args:
            length: int. Its tokens, the end token included.
            length_penalty: float, default `None`, for that of the options.

        Returns:
            float.
        """
        base = (5 + length) / 6 if self.mode == "kformer" else length
        return base ** (self.length_penalty if length_penalty is None else length_penalty)

    @property
    def rows_per_sentence(self):
        """Decoder rows that one sentence needs."""
        return self.n_best if self.sampling else self.beam_size

    def limits(self, source_lengths):
        """The most tokens that each hypothesis may have before its end token.

        Args:
            source_lengths: array of ints `[B]`, the tokens of each source sentence.

        Returns:
            Array of ints `[B]`.
        """
        # In 64 bits: a huge ratio stands for "no relative limit" and must not wrap around.
        relative = (source_lengths * min(self.length_ratio, self.max_length)).astype(
            "int64"
        ) + self.length_offset
        return relative.clip(self.least_limit, self.max_length)


SEARCH = options_of(SearchOptions)
# The others are for Python and saved models alone.
add_flags({name: declared for name, declared in SEARCH.items() if declared.help_text})


def read_options(config, path):
    """`SearchOptions` from a configuration file.

    Args:
        config: dict of JSON values.
        path: path of the file, for messages.

    Raises:
        ValueError: an option is unknown, or its value is not possible.
    """
    try:
        with command_line_names(False):
            return SearchOptions(**config)
    except (TypeError, ValueError) as error:
        raise ValueError(f"The search options in {path} cannot be used: {error}") from error
