"""The third ONNX graph of a model: a whole search, from source ids to hypotheses.

It is what `kformer.decoding` computes, so that texts are equal; a function here says which one.

Shape letters: B sentences, K beams, R = B K rows, V vocabulary (or the columns of a shortlist, or
of the lists of sentences), L the longest hypothesis with its end token, t the tokens so far.
"""

import numpy as np

from kformer.decoding.constraints import SpecialTokens
from kformer.decoding.shortlist import Columns, fixed_tokens
from kformer.export.onnx import blocks
from kformer.export.onnx.graph import Graph
from kformer.export.onnx.networks import decode, encode

_IMPOSSIBLE = float("-inf")


def build_search(model, weights, options, lists=None):
    """The graph of a search with some options.

    Inputs: `source_ids` int64 `[B, S]`; `limits` int64 `[B]`, the most tokens of each sentence's
    hypotheses; `prefix` int64 `[P]`, what all hypotheses begin with; `length_penalty`, float32
    scalar; `n_best`, int64 scalar, the number of best hypotheses that must be exact.

    Outputs: `ids` int64 `[B, K, L]`, hypotheses with their end token and padding, best first;
    `scores` float32 `[B, K]`, sums of log-probabilities.

    It computes in float32 however weights are stored.

    Args:
        model: `kformer.Transformer`.
        weights: `WeightStore`.
        options: `SearchOptions` without sampling. The limits, the prefix, the length penalty and
            the number of hypotheses are inputs instead.
        lists: `kformer.data.TokenLists`, default `None`. The target tokens that source tokens may
            need: translations have no others, except those of the prefix. A search over a shortlist
            does not read them.

    Returns:
        `Graph`.
    """
    graph = Graph("search", weights, "float32")
    source_ids = graph.input("source_ids", "int64", ("batch", "source_length"))
    limits = graph.input("limits", "int64", ("batch",))
    prefix = graph.input("prefix", "int64", ("prefix_length",))
    alpha = graph.input("length_penalty", "float32", ())
    n_best = graph.input("n_best", "int64", ())
    lists = None if options.shortlist else lists
    search = _Search(graph, model, options, lists, source_ids, prefix)
    ids, scores = search.run(source_ids, limits, prefix, alpha, n_best)
    graph.output("ids", ids, "int64", ("batch", options.beam_size, "target_length"))
    graph.output("scores", scores, "float32", ("batch", options.beam_size))
    return graph


class _Search:
    """A search under construction. `graph` in its methods is the body of the loop.

    Attributes:
        size: int. V; with lists of sentences the columns that all unions of lists begin with.
        total: value `[1]`. V.
        lists: value `[R, V]` that is added to logits, or `None`.
    """

    def __init__(self, graph, model, options, lists, source_ids, prefix):
        self.root, self.network, self.width = graph, model.network, options.beam_size
        self.impossible = graph.constant(_IMPOSSIBLE, "float32")
        self.zero, self.one = (graph.constant(number, "int64") for number in (0, 1))
        self.count = graph.expand_dims(graph.size(source_ids, 0), [0])
        special, self.size = SpecialTokens.of(model), model.target_vocabulary_size
        self.lists = union = None
        if lists is not None:
            self.lists, union = self._listed(lists, source_ids, prefix, special, options)
        self.columns = Columns(special, options, union)
        self.start_id = model.start_id
        self.constraints, self.options = self.columns.constraints, options
        if options.shortlist:
            self.size = len(self.columns.tokens)
        total = self._integer(self.size) if union is None else graph.size(union, 0)
        self.total = graph.expand_dims(total, [0])
        self.end_id = self.constraints.special.end_id
        self.numbers = graph("Range", self.zero, total, self.one)  # [V]

    def _listed(self, lists, source_ids, prefix, special, options):
        """`kformer.decoding.shortlist.Lists`: what the tokens of each sentence's list add to the
        logits, `[B, V]`, and the union of the lists, `None` for the whole vocabulary.
        """
        root, size = self.root, self.size
        starts = np.cumsum([1, *map(len, lists.lists)])
        # Behind the end token, which is in every list.
        values = [special.end_id, *(token for row in lists.lists for token in row)]
        values, starts, ends = (
            root.cast(root.constant(each, "int32"), "int64")
            for each in (values, starts[:-1], starts[1:])
        )
        source_ids = root.reshape(source_ids, [-1, 1])
        start, end = (root("Gather", each, source_ids, axis=0) for each in (starts, ends))
        longest = root("Max", root("ReduceMax", root("Sub", end, start), keepdims=0), self.one)
        indices = root("Add", start, root("Range", self.zero, longest, self.one))
        indices = root("Where", root("Less", indices, end), indices, self.zero)
        tokens = root("Gather", values, indices, axis=0)  # [B S, X]
        tokens = root("Reshape", tokens, root("Concat", self.count, self._integer([-1]), axis=0))
        always = np.full(size, _IMPOSSIBLE)
        always[[*lists.always, special.end_id]] = 0
        barrier = self._marked(root.constant(always, "float32"), prefix, 0)
        shape = root("Concat", self.count, self._integer([size]), axis=0)
        barrier = self._marked(root("Expand", barrier, shape), tokens, 0, axis=1)
        fixed = fixed_tokens(special, options)
        if fixed[-1] >= size:
            return barrier, None
        others = root("ReduceMax", barrier, axes=[0], keepdims=0)
        others = self._marked(others, self._integer(fixed), _IMPOSSIBLE)
        others = root("NonZero", root("Not", root("IsInf", others)))
        union = root("Concat", self._integer(fixed), root.reshape(others, [-1]), axis=0)
        self.size = len(fixed)
        return root("Gather", barrier, union, axis=1), union

    def _marked(self, values, ids, cost, axis=0):
        """Float32 values with another at some ids."""
        costs = self.root.constant(cost, "float32")
        costs = self.root("Expand", costs, self.root("Shape", ids))
        return self.root("ScatterElements", values, ids, costs, axis=axis)

    # ---- the loop ----

    def run(self, source_ids, limits, prefix, alpha, n_best):
        """Ids `[B, K, L]` and scores `[B, K]`: `kformer.decoding.run_search.search`."""
        root, network, width = self.root, self.network, self.width
        special = self.constraints.special
        _, mask, cross = encode(root, network, source_ids)
        self.alpha = alpha
        self.last_index = root("Sub", n_best, self.one)
        self.limits = root.expand_dims(limits, [1])  # [B, 1]
        rows = root("Range", self.zero, root.size(source_ids, 0), self.one)
        self.first_rows = root("Mul", root.expand_dims(rows, [1]), self._integer(width))
        self.prefix_length = root.size(prefix, 0)
        # With one more number, so that there is always one to look at.
        prefix = root("Concat", self._numbers(prefix), root.constant([0], "int64"), axis=0)
        self.prefix = prefix
        if width > 1:  # [B] to [R]: each row of a sentence reads the same.
            sources = root("Expand", root.expand_dims(rows, [1]), self._integer([1, width]))
            sources = root.reshape(sources, [-1])
            mask, *cross = (root("Gather", each, sources, axis=0) for each in (mask, *cross))
            if self.lists is not None:
                self.lists = root("Gather", self.lists, sources, axis=0)
        self.cross, self.masks = cross, (None, *blocks.padding(root, mask))
        longest = root("ReduceMax", limits, keepdims=0)
        self.steps = root("Add", longest, self.one)
        ids = self._fill([width], special.pad_id, "int64", root.expand_dims(self.steps, [0]))
        count = root("Mul", self.count, self._integer([width]))
        state = {"last": (self._fill([], special.start_id, "int64", after=count), "int64")}
        state |= {name: (value, "float32") for name, value in self._first_caches(count).items()}
        if width == 1:
            greedy = {
                "ids": (root("Squeeze", ids, root.constant([1], "int64")), "int64"),
                "scores": (self._fill([], 0.0, "float32"), "float32"),
                "is_done": (root("Less", self._fill([], 0, "int64"), self.zero), "bool"),
            }
            last = root.loop(self._true(), state | greedy, self._greedy_step)
            ids = root.expand_dims(last["ids"], [1])
            return self._vocabulary(root, ids), root.expand_dims(last["scores"], [1])
        is_first = root("Less", root.constant(np.arange(width), "int64"), self.one)
        scores = root("Where", is_first, root.constant(0, "float32"), self.impossible)
        impossible = self._fill([width], _IMPOSSIBLE, "float32")
        beams = {
            "live_ids": (ids, "int64"),
            "live_scores": (root("Max", impossible, scores), "float32"),
            "ids": (ids, "int64"),
            "scores": (impossible, "float32"),
            "ranks": (impossible, "float32"),
            "is_open": (root("Not", root("Less", limits, self.zero)), "bool"),
        }
        is_own = self.options.mode == "kformer"
        step = self._beam_step if is_own else self._huggingface_step
        last = root.loop(self._true(), state | beams, step)
        return self._vocabulary(root, last["ids"]), last["scores"]

    def _first_caches(self, count):
        """The state of the decoder before the first of `[R]` rows of tokens, by name."""
        attention = self.network.decoder_layers[0].cross_attention
        if self.network.is_recurrent:
            shape, names = [self.network.target_embedding.hidden_dim], ("state",)
        else:
            shape, names = [attention.num_heads, 0, attention.head_size], ("key", "value")
        value = self._fill(shape, 0, "float32", after=count)
        layers = range(len(self.network.decoder_layers))
        self.cache_names = [f"{name}_{i}" for i in layers for name in names]
        return dict.fromkeys(self.cache_names, value)

    def _logits(self, graph, step, state):
        """Logits `[R, V]` of the next token, and the new caches by name."""
        ids = graph.expand_dims(self._vocabulary(graph, state["last"]), [1])
        positions = graph.expand_dims(step, [0])
        past = [state[name] for name in self.cache_names]
        arguments = graph, self.network, ids, positions, past, self.cross, self.masks
        x, present = decode(*arguments)
        logits = blocks.project_output(graph, self.network, x, ids, self.columns.tokens)
        logits = graph("Squeeze", logits, self._integer([1]))
        if self.lists is not None:
            logits = graph("Add", logits, self.lists)
        return logits, dict(zip(self.cache_names, present, strict=True))

    def _goes_on(self, graph, step, is_open):
        """Whether there is another step: a sentence is open, and there are tokens left."""
        is_open = graph("ReduceMax", graph.cast(is_open, "int64"), keepdims=0)
        is_short = graph("Less", graph("Add", step, self.one), self.steps)
        return graph("And", graph.cast(is_open, "bool"), is_short)

    def _greedy_step(self, graph, step, state):
        """`kformer.decoding.sampling._advance` without sampling; R is B."""
        constraints, special = self.constraints, self.constraints.special
        raw, caches = self._logits(graph, step, state)
        logits = candidates = self._prepared(graph, raw, step)
        if constraints.repetition:
            candidates = self._penalized(graph, raw, step, state["ids"])
            candidates = self._prepared(graph, candidates, step)
            logits = candidates if constraints.renormalize else logits
        if not constraints.renormalize:
            forbidden = self._in_prefix(graph, step, self._barrier(constraints.forbidden_ids))
            candidates = graph("Add", candidates, forbidden)
            candidates = self._without_early_end(graph, candidates, step)
        tokens = graph("ArgMax", candidates, axis=1, keepdims=0)
        at_limit = graph("GreaterOrEqual", step, self._flat(graph, self.limits))
        if constraints.at_limit != "any":
            tokens = graph("Where", at_limit, self._integer(self.end_id), tokens)
        values = graph("GatherElements", logits, graph.expand_dims(tokens, [1]), axis=1)
        values = self._flat(graph, graph("Sub", values, self._normaliser(graph, logits)))
        if constraints.end_is_free:
            values = graph("Where", at_limit, graph.constant(0, "float32"), values)
        is_done, ids = state["is_done"], state["ids"]
        written = self._write(graph, ids, step, graph.expand_dims(tokens, [1]))
        ends = graph("Or", graph("Equal", tokens, self._integer(special.end_id)), at_limit)
        state = caches | {
            "last": tokens,
            "ids": graph("Where", graph.expand_dims(is_done, [1]), ids, written),
            "scores": graph(
                "Where", is_done, state["scores"], graph("Add", state["scores"], values)
            ),
            "is_done": graph("Or", is_done, ends),
        }
        return self._goes_on(graph, step, graph("Not", state["is_done"])), state

    def _beam_step(self, graph, step, state):
        """`kformer.decoding.beam.beam_search`."""
        constraints, width = self.constraints, self.width
        logits, caches = self._logits(graph, step, state)
        live = state["live_scores"]
        if constraints.repetition:
            values = self._penalized(
                graph, self._log_softmax(graph, logits), step, state["live_ids"]
            )
            values = self._prepared(graph, values, step)
            normaliser = graph.constant([[0]], "float32")
        else:
            values = self._prepared(graph, logits, step)
            normaliser = graph("ReduceLogSumExp", values, axes=[1], keepdims=1)
        count = min(width, self.size)
        barrier = self._barrier({*constraints.forbidden_ids, self.end_id})
        allowed = graph("Add", values, self._in_prefix(graph, step, barrier))
        best, tokens = self._top(graph, allowed, count)
        ends = graph("Gather", values, self._integer([self.end_id]), axis=1)
        ends = graph.reshape(graph("Sub", ends, normaliser), [-1, width])
        ends = graph("Add", live, ends)
        at_limit = graph("GreaterOrEqual", step, self.limits)  # [B, 1]
        if constraints.forbids_end:
            forced = live if constraints.end_is_free else ends
            ends = graph("Where", at_limit, forced, self.impossible)
        if constraints.min_length:
            ends = graph("Where", self._too_early(graph, step), self.impossible, ends)
        scores = graph.reshape(graph("Sub", best, normaliser), [-1, width, count])
        scores = graph("Add", scores, graph.expand_dims(live, [2]))
        scores = graph.reshape(scores, [-1, width * count])
        scores = graph("Where", at_limit, self.impossible, scores)
        scores, indices = self._top(graph, scores, width)
        tokens = graph.reshape(tokens, [-1, width * count])
        tokens = graph("GatherElements", tokens, indices, axis=1)
        parents = graph("Div", indices, self._integer(count))
        if self.options.early_stopping is True:
            is_open = graph.expand_dims(state["is_open"], [1])
            ends = graph("Where", is_open, ends, self.impossible)
        length = graph("Add", step, self.one)
        ended = self._write(graph, state["live_ids"], step, self._integer(self.end_id))
        finished = self._add_finished(graph, state, ended, ends, length)
        first = graph("Gather", scores, self.zero, axis=1)  # [B]
        attainable = self._ranks(graph, first, graph("Add", length, self.one))
        if self.options.early_stopping is not True:
            longest = graph("Add", self._flat(graph, self.limits), self.one)
            attainable = graph("Max", attainable, self._ranks(graph, first, longest))
        worst = graph("Gather", finished["ranks"], self.last_index, axis=1)
        can_win = graph("Greater", attainable, worst)
        live_ids = self._pick(graph, state["live_ids"], parents)
        is_open = graph("And", state["is_open"], can_win)
        state = finished | {
            "live_ids": self._write(graph, live_ids, step, graph.expand_dims(tokens, [2])),
            "live_scores": scores,
            "last": graph.reshape(tokens, [-1]),
            "is_open": is_open,
            **self._reordered(graph, caches, parents),
        }
        return self._goes_on(graph, step, is_open), state

    def _huggingface_step(self, graph, step, state):
        """`kformer.decoding.beam_huggingface.huggingface_beam_search`."""
        constraints, width = self.constraints, self.width
        early_stopping = self.options.early_stopping
        logits, caches = self._logits(graph, step, state)
        at_limit = graph("GreaterOrEqual", step, self.limits)  # [B, 1]
        values = self._log_probabilities(graph, logits, step, state["live_ids"])
        if constraints.at_limit != "any":
            cost = graph.constant(0, "float32") if constraints.end_is_free else values
            is_end = graph("Equal", self.numbers, self._integer(self.end_id))
            forced = graph("Where", is_end, cost, self.impossible)
            rows = graph("Expand", at_limit, self._integer([1, width]))
            rows = graph.reshape(rows, [-1, 1])
            values = graph("Where", rows, forced, values)
        count = min(2 * width, self.size)
        best, tokens = self._top(graph, values, count)
        scores = graph.reshape(best, [-1, width, count])
        scores = graph("Add", scores, graph.expand_dims(state["live_scores"], [2]))
        scores = graph.reshape(scores, [-1, width * count])
        scores, indices = self._top(graph, scores, min(2 * width, width * count))
        tokens = graph.reshape(tokens, [-1, width * count])
        tokens = graph("GatherElements", tokens, indices, axis=1)  # [B, C]
        parents = graph("Div", indices, self._integer(count))
        ids = self._pick(graph, state["live_ids"], parents)
        ids = self._write(graph, ids, step, graph.expand_dims(tokens, [2]))
        ends = graph("Or", graph("Equal", tokens, self._integer(self.end_id)), at_limit)
        places = self._integer(width)
        if early_stopping == "shrink":
            is_finished = graph("Not", graph("IsInf", state["ranks"]))
            done = graph("ReduceSum", graph.cast(is_finished, "int64"), self._integer([1]))
            places = graph("Sub", places, done)  # [B, 1]
        columns = graph.constant(np.arange(min(2 * width, width * count)), "int64")
        is_among_first = graph("Less", columns, places)
        if early_stopping == "shrink":
            scores = graph("Where", is_among_first, scores, self.impossible)
        counts = graph("And", ends, is_among_first)
        counts = graph("And", counts, graph.expand_dims(state["is_open"], [1]))
        counted = graph("Where", counts, scores, self.impossible)
        length = graph("Add", step, self.one)
        finished = self._add_finished(graph, state, ids, counted, length)
        live, indices = self._top(graph, graph("Where", ends, self.impossible, scores), width)
        first = graph("Gather", live, self.zero, axis=1)  # [B]
        attainable = self._ranks(graph, first, length)
        if early_stopping == "never":
            longest = graph("Add", self._flat(graph, self.limits), self.one)
            attainable = graph("Max", attainable, self._ranks(graph, first, longest))
        worst = graph("Gather", finished["ranks"], self._integer(width - 1), axis=1)
        can_win = graph("Greater", attainable, worst)
        if early_stopping is True:
            can_win = graph("And", can_win, graph("IsInf", worst))
        elif early_stopping == "shrink":
            can_win = graph("Not", graph("IsInf", first))
        is_open = graph("And", can_win, state["is_open"])
        is_open = graph("And", is_open, graph("Not", self._flat(graph, at_limit)))
        tokens = graph("GatherElements", tokens, indices, axis=1)
        parents = graph("GatherElements", parents, indices, axis=1)
        state = finished | {
            "live_ids": self._pick(graph, ids, indices),
            "live_scores": live,
            "last": graph.reshape(tokens, [-1]),
            "is_open": is_open,
            **self._reordered(graph, caches, parents),
        }
        return self._goes_on(graph, step, is_open), state

    # ---- hypotheses ----

    def _add_finished(self, graph, state, ids, scores, length):
        """`kformer.decoding.beams.add_finished`, as a dict."""
        ranks = self._ranks(graph, scores, length)
        ranks = graph("Concat", state["ranks"], ranks, axis=1)
        ranks, indices = self._top(graph, ranks, self.width)
        scores = graph("Concat", state["scores"], scores, axis=1)
        ids = graph("Concat", state["ids"], ids, axis=1)
        scores = graph("GatherElements", scores, indices, axis=1)
        return {"ids": self._pick(graph, ids, indices), "scores": scores, "ranks": ranks}

    def _ranks(self, graph, scores, length):
        """Scores divided by the penalty of lengths that broadcast to them."""
        base = graph.cast(length, "float32")
        if self.options.mode == "kformer":
            base = graph("Add", graph.constant(5, "float32"), base)
            base = graph("Div", base, graph.constant(6, "float32"))
        return graph("Div", scores, graph("Pow", base, self.alpha))

    def _pick(self, graph, ids, indices):
        """`ids[b, indices[b]]` of ids `[B, C, L]` and indices `[B, K]`."""
        return graph("GatherND", ids, graph.expand_dims(indices, [2]), batch_dims=1)

    def _reordered(self, graph, caches, parents):
        rows = graph.reshape(graph("Add", parents, self.first_rows), [-1])
        return {name: graph("Gather", each, rows, axis=0) for name, each in caches.items()}

    def _write(self, graph, ids, step, token):
        """Ids `[..., L]` with a token at the step's position."""
        positions = graph("Range", self.zero, self.steps, self.one)
        return graph("Where", graph("Equal", positions, step), token, ids)

    # ---- what a token costs: `kformer.decoding.constraints.Constraints` ----

    def _prepared(self, graph, logits, step):
        if self.constraints.renormalize:
            return self._log_probabilities(graph, logits, step)
        return self._forced(graph, logits, step)

    def _log_probabilities(self, graph, logits, step, ids=None):
        constraints = self.constraints
        is_penalized = ids is not None and constraints.repetition
        values = logits
        if is_penalized or not constraints.renormalize:
            values = self._log_softmax(graph, logits)
        if is_penalized:
            values = self._penalized(graph, values, step, ids)
        if constraints.forbidden_ids:
            values = graph("Add", values, self._barrier(constraints.forbidden_ids))
        values = self._without_early_end(graph, values, step)
        if constraints.renormalize:
            values = self._log_softmax(graph, values)
        return self._forced(graph, values, step)

    def _forced(self, graph, values, step):
        """`force_prefix`."""
        index = graph("Min", step, self.prefix_length)
        token = graph("Gather", self.prefix, index, axis=0)
        is_token = graph("Equal", self.numbers, token)
        only = graph("Where", is_token, graph.constant(0, "float32"), self.impossible)
        return graph("Where", graph("Less", step, self.prefix_length), only, values)

    def _in_prefix(self, graph, step, barrier):
        """A barrier `[V]`, or nothing of it within the prefix."""
        is_inside = graph("Less", step, self.prefix_length)
        return graph("Where", is_inside, graph.constant(0, "float32"), barrier)

    def _too_early(self, graph, step):
        return graph("Less", step, self._integer(self.constraints.min_length))

    def _without_early_end(self, graph, values, step):
        if not self.constraints.min_length:
            return values
        barrier, zero = self._barrier({self.end_id}), graph.constant(0, "float32")
        is_early = self._too_early(graph, step)
        return graph("Add", values, graph("Where", is_early, barrier, zero))

    def _barrier(self, ids):
        """Float32 `[V]`: minus infinity at some tokens."""
        zeros = self.root("Expand", self.root.constant(0, "float32"), self.total)
        return self._marked(zeros, self._integer(sorted(ids)), _IMPOSSIBLE)

    def _penalized(self, graph, scores, step, ids):
        """`kformer.decoding.repetition.Repetition`: scores `[R, V]` for hypotheses of which the
        first `step` of L tokens count.
        """
        repetition, special = self.constraints.repetition, self.constraints.special
        stop = graph.expand_dims(step, [0])
        ids = graph("Reshape", ids, graph("Concat", self._integer([-1]), self._length(), axis=0))
        history = graph("Slice", ids, self._integer([0]), stop, self._integer([1]))
        start = graph("Mul", graph("Slice", ids, *map(self._integer, ([0], [1], [1]))), self.zero)
        start_id = special.start_id
        if self.options.shortlist and self.start_id in self.columns.tokens:
            start_id = self.columns.tokens.tolist().index(self.start_id)
        prompt = graph("Add", start, self._integer(start_id))  # [R, 1]
        whole = graph("Concat", prompt, history, axis=1)  # [R, 1 + t]
        # The start token may have no column: then it counts in n-grams alone.
        counted = whole if start_id < self.size else history
        if repetition.penalty != 1:
            values = graph("GatherElements", scores, counted, axis=1)
            factor, zero = (graph.constant(x, "float32") for x in (repetition.penalty, 0))
            pair = graph("Mul", values, factor), graph("Div", values, factor)
            values = graph("Where", graph("Less", values, zero), *pair)
            scores = graph("ScatterElements", scores, counted, values, axis=1)
        if not repetition.ngram_size:
            return scores
        context = repetition.ngram_size - 1
        # Padded on the left, so that every token ends a window, also in a short history.
        pads = self._integer([0, context, 0, 0])
        padded = graph("Pad", whole, pads, self._integer(-1))
        size = graph.expand_dims(graph.size(whole, 1), [0])
        is_repeated = graph("GreaterOrEqual", whole, self.zero)
        for index in range(context):
            at = self._integer([index])
            axes = self._integer([1])
            window = graph("Slice", padded, at, graph("Add", at, size), axes)
            first = graph("Add", size, at)
            last = graph("Slice", padded, first, graph("Add", first, self._integer([1])), axes)
            is_repeated = graph("And", is_repeated, graph("Equal", window, last))
        if self.constraints.at_limit == "end":
            is_end = graph("Equal", whole, self._integer(self.end_id))
            is_repeated = graph("And", is_repeated, graph("Not", is_end))
        cost = graph("Where", is_repeated, self.impossible, graph.constant(0, "float32"))
        if start_id >= self.size:
            stop = graph.constant([2**31], "int64")
            cost = graph("Slice", cost, self._integer([1]), stop, self._integer([1]))
        return graph("ScatterElements", scores, counted, cost, axis=1, reduction="add")

    # ---- small parts ----

    def _log_softmax(self, graph, logits):
        return graph("Sub", logits, self._normaliser(graph, logits))

    def _normaliser(self, graph, logits):
        values = graph("ReduceLogSumExp", logits, axes=[1], keepdims=1)
        return graph("Max", values, graph.constant(-1e30, "float32"))

    def _top(self, graph, values, count):
        return graph("TopK", values, self._integer([count]), outputs=2, axis=1)

    def _vocabulary(self, graph, numbers):
        """`Columns.ids`."""
        if self.columns.tokens is None:
            return numbers
        return graph("Gather", self._integers(self.columns.table), numbers, axis=0)

    def _numbers(self, ids):
        """`Columns.numbers` of ids `[P]` that have a column."""
        if self.columns.tokens is None:
            return ids
        tokens = self._integers(self.columns.tokens)
        is_token = self.root("Equal", self.root.expand_dims(ids, [1]), tokens)
        return self.root("ArgMax", self.root.cast(is_token, "float32"), axis=1, keepdims=0)

    def _flat(self, graph, values):
        return graph.reshape(values, [-1])

    def _length(self):
        return self.root.expand_dims(self.steps, [0])

    def _integer(self, value):
        return self.root.constant(value, "int64")

    def _integers(self, tokens):
        """The value of some tokens, which with lists of sentences are a value already."""
        return tokens if isinstance(tokens, str) else self._integer(tokens)

    def _true(self):
        return self.root.constant(True, "bool")

    def _fill(self, shape, value, dtype, *more, after=None):
        """A constant of the shape `[B, *shape, *more]`; with `after`, of `[after, *shape]`."""
        first = self.count if after is None else after
        shape = self.root("Concat", first, self._integer(shape), *more, axis=0)
        return self.root("Expand", self.root.constant(value, dtype), shape)
