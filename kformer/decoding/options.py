"""The options of a search."""

import math
import numbers
from dataclasses import dataclass, replace

from kformer.utils.checks import check_choice, check_whole
from kformer_options.names import command_line_names, named

MODES = ("kformer", "huggingface")
TOKEN_LISTS = ("forbidden_ids", "prefix_ids", "shortlist")


@dataclass(frozen=True)
class SearchOptions:
    """How to search. Lengths are numbers of tokens, the end token not counted.

    Args:
        beam_size: int, default 4. Live hypotheses per sentence; 1 is greedy search (the most
            probable token at each step).
        n_best: int, default 1. Hypotheses returned per sentence, best first; at most `beam_size`
            with a beam.
        length_penalty: float, default 0.6. Exponent alpha of GNMT's length penalty
            `((5 + length) / 6)^alpha`, by which the sum of log-probabilities is divided. 0 compares
            plain sums; larger values favour longer hypotheses.
        min_length: int, default 0. No hypothesis ends before it has so many tokens.
        max_length: int, default 255. A hypothesis that has so many tokens is ended. In the mode
            "huggingface" it may be 0: one token is generated, the end token or another.
        length_ratio: float, default 2.0. The same limit relative to the source: `length_ratio *
            source tokens + length_offset`. The smaller of the two limits holds. Each sentence has
            its own limit, so no sentence changes another's.
        length_offset: int, default 32. See `length_ratio`.
        sampling: bool, default `False`. Whether each token is sampled instead of searched for.
            `n_best` independent samples are returned.
        temperature: float, default 1.0. Logits are divided by it before a token is sampled; below 1
            sharpens, above 1 flattens.
        top_k: int, default 0. Only the k most probable tokens are sampled; 0 for all.
        top_p: float, default 1.0. Only the fewest tokens whose probabilities reach p are sampled
            (nucleus sampling); 1 for all.
        seed: int, default 0. Seed of the random numbers. With the same seed, the same sentence at
            the same index of a call gives the same samples.
        mode: `"kformer"` or `"huggingface"`, default `"kformer"`. The latter is the search of that
            library's `generate`, with which imported models were used: scores are divided by
            `length^length_penalty`, other hypotheses take part, it may stop early, and the padding
            token may be generated unless it is forbidden (see `kformer.decoding.beam_huggingface`).
        early_stopping: `True`, `False` or `"never"`, default `False`. In the mode "huggingface":
            when a sentence with `beam_size` finished hypotheses is done. In the mode "kformer"
            `True` takes a sentence as done as soon as its `n_best` hypotheses rank above the best
            live one at its present length, which is sooner, and may miss a longer hypothesis of a
            higher rank; the others never miss one.
        forced_end: bool, default `True`. In the mode "huggingface": whether a hypothesis at its
            limit is given an end token, at no cost; otherwise it has none.
        forbidden_ids: tuple of ids, default `()`. Tokens that are never generated (besides the
            start and padding token in the mode "kformer"). With the end token among them, each
            hypothesis is as long as its limit allows, and is then ended.
        renormalize: bool, default `False`. Whether the probabilities of the tokens that are not
            forbidden sum to one again.
        prefix_ids: tuple of ids, default `()`. Tokens that every hypothesis begins with, at no
            cost. No limit relative to the source is below their number. The `Translator` puts a
            target language here.
        shortlist: tuple of ids, default `()`. The tokens that may be generated, besides the end
            token; empty for all. The others are not computed, so a search takes less time, and
            probabilities are those among the tokens of the list (and the prefix), not of the whole
            vocabulary. See `Translator.shortlist`.
        repetition_penalty: float, default 1.0. Where a token has occurred in a hypothesis, a
            negative score is multiplied by it, another divided; above 1 it makes repetition less
            likely. As in Hugging Face's `generate`, the start token and the prompt of a language
            model count, and what is penalised is the log-probability in a beam, and the logit in
            greedy search and sampling. So the scores of a beam include the penalty; the others are
            the model's own, unless `renormalize` is set.
        no_repeat_ngram_size: int, default 0. No n-gram of so many tokens (up to 1000) occurs twice
            in a hypothesis, the start token and the prompt of a language model included; 0 for no
            limit. In the mode "kformer" the end token is exempt.
        max_text_bytes: int, default `None`. A text is cut to so many bytes (of UTF-8, where a code
            point begins) before it is tokenized, so that a text of any length costs little. `None`
            for 64 bytes for each token that the model reads, and at least 4096. A text whose
            beginning is nothing but spaces may then be empty; `truncated` marks it.

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

    beam_size: int = 4
    n_best: int = 1
    length_penalty: float = 0.6
    min_length: int = 0
    max_length: int = 255
    length_ratio: float = 2.0
    length_offset: int = 32
    sampling: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    mode: str = "kformer"
    early_stopping: bool | str = False
    forced_end: bool = True
    forbidden_ids: tuple = ()
    renormalize: bool = False
    prefix_ids: tuple = ()
    shortlist: tuple = ()
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0
    max_text_bytes: int | None = None

    def __post_init__(self):
        for name in TOKEN_LISTS:
            # As a tuple, so that options can be compared and be keys.
            object.__setattr__(self, name, _token_ids(name, getattr(self, name)))
        self._check_values()
        self._check_combinations()

    def _check_values(self):
        """Checks the type and range of each option."""
        check_choice("mode", self.mode, MODES)
        if self.early_stopping != "never" and not isinstance(self.early_stopping, bool):
            raise ValueError(
                f"{named('early_stopping')} must be True, False or 'never', but "
                f"{self.early_stopping!r} was given."
            )
        for name in ("sampling", "forced_end", "renormalize"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(
                    f"{named(name)} must be True or False, but {getattr(self, name)!r} was given."
                )
        for name in ("beam_size", "n_best"):
            check_whole(name, getattr(self, name))
        # In the mode "huggingface" one more token follows, which need not be the end token.
        check_whole("max_length", self.max_length, least=int(self.mode == "kformer"))
        for name in ("min_length", "length_offset", "top_k"):
            check_whole(name, getattr(self, name), least=0)
        if self.max_text_bytes is not None:
            check_whole("max_text_bytes", self.max_text_bytes, least=4)
        check_whole("seed", self.seed, least=0, most=2**31 - 1)
        # Each token of an n-gram is an operation, and n may come from a stranger's file.
        check_whole("no_repeat_ngram_size", self.no_repeat_ngram_size, least=0, most=1000)
        for name in (
            *("length_penalty", "length_ratio", "temperature", "top_p"),
            "repetition_penalty",
        ):
            value = getattr(self, name)
            if not isinstance(value, numbers.Real) or not math.isfinite(value):
                raise ValueError(f"{named(name)} must be a finite number, but {value!r} was given.")
        if self.length_ratio < 0:
            raise ValueError(
                f"{named('length_ratio')} must not be negative, but {self.length_ratio} was given."
            )
        if self.temperature <= 0:
            raise ValueError(
                f"{named('temperature')} must be above 0, but {self.temperature} was given; for no "
                "randomness use a beam."
            )
        if self.repetition_penalty <= 0:
            raise ValueError(
                f"{named('repetition_penalty')} must be above 0, but {self.repetition_penalty} was "
                "given; 1 is none."
            )
        if not 0 < self.top_p <= 1:
            raise ValueError(f"{named('top_p')} must lie in (0, 1], but {self.top_p} was given.")

    def _check_combinations(self):
        """Checks options that depend on each other."""
        if self.shortlist and not set(self.shortlist) - set(self.forbidden_ids):
            raise ValueError(
                "All tokens of the shortlist are forbidden: give some that may be generated."
            )
        most = self.max_length + (self.mode == "huggingface" and not self.forced_end)
        if self.min_length > most:
            raise ValueError(
                f"min_length is {self.min_length}, above {named('max_length')}, which is "
                f"{self.max_length}: raise {named('max_length')} to at least {self.min_length}."
            )
        most = self.max_length + (self.mode == "huggingface")
        if len(self.prefix_ids) > most:
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
        return replace(self, max_length=shortest, **each_call)

    @property
    def least_limit(self):
        """The limit of the shortest source: a limit relative to the source is never below it."""
        return min(max(1, self.min_length, len(self.prefix_ids)), self.max_length)

    def penalty(self, length):
        """The divisor of the score of a hypothesis.

        Args:
            length: int. Its tokens, the end token included.

        Returns:
            float.
        """
        base = (5 + length) / 6 if self.mode == "kformer" else length
        return base**self.length_penalty

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


def _token_ids(name, ids):
    """A list of token ids as a tuple of ints; a ValueError for anything else."""
    if type(ids) is tuple and set(map(type, ids)) <= {int} and min(ids, default=0) >= 0:
        return ids  # Long shortlists are usually of this form, and are checked at each call.
    if not isinstance(ids, tuple | list) or any(
        not isinstance(i, numbers.Integral) or isinstance(i, bool) or i < 0 for i in ids
    ):
        raise ValueError(f"{name} must be a list of token ids, but {ids!r} was given.")
    return tuple(int(i) for i in ids)


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
