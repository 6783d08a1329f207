"""Measures how several corpora are read and cleaned.

    python benchmarks/corpora.py rules --data DIR [--pairs en-de,en-zh] [--share 0.4] [--seed 0]
        [--examples 0]
    python benchmarks/corpora.py quality --data DIR --work DIR [--pairs en-de,en-zh] [--share 0.4]
        [--seeds 1,2] [--jobs 2] [--option "--steps 600"] [--search "--beam-size 1"]
    python benchmarks/corpora.py directions --data DIR --work DIR [--pairs en-de,en-zh] [--seeds 1]
        [--jobs 2] [--option "--epochs 5"]
    python benchmarks/corpora.py added RUN --data DIR --work DIR [--option "--epochs 2"]
    python benchmarks/corpora.py readers --work DIR [--count 300000]
    python benchmarks/corpora.py scale --work DIR --data DIR [--count 20000000]

rules. What each rule of `kformer clean` costs and finds. DIR has the folders `multi30k-en-de/raw`
and `tatoeba-en-zh` with `train` and `val` in both languages. A share of the pairs is made dirty in
many ways; the others count as clean, also where the corpus itself is dirty or repeats them. The
first table has the kinds of dirt: how many of them `usual` and `strict` leave out or repair (to the
very text that was there before), and the rules that leave most of them out in `strict`. The second
has each rule alone, on repaired text: precision, and recall of all dirt that was not repaired,
clean pairs lost, and CPU seconds per million pairs. `--examples` prints so many clean pairs that
each rule loses in `strict`.

quality. What the same dirt costs a training, and how much of it the rules bring back: BLEU on the
test set after `kformer train --corpora`, with the validation set and nothing else, on the clean
pairs alone, on all pairs as they are, and on all cleaned by `usual` and `strict`. A training that
was interrupted is resumed, and one that is done is not repeated. By default a longer corpus has
larger batches, and shows more tokens in as many updates: `--option "--batch-tokens 2048"` gives the
same to all. `--search` is for `kformer evaluate`: after a short training without a chosen search a
beam writes half of each sentence, and BLEU tells little else.

directions. One model for both directions of all pairs beside a model for each direction: default
trainings, of which the one model's has as many epochs as bring it to the target tokens that the
others see in all. BLEU on the test sets, ± half of the bootstrap's 95 % interval, and the seconds
of all trainings. With two pairs, then, what the one model makes of a direction that it never saw,
from the second language to the third: chrF against the translations by way of the first one, by the
models of one direction; the share of lines that py3langid takes for the wanted language; and three
examples. A training that was interrupted is resumed, and one that is done is not repeated.
`--option` is for all trainings, such as a short try; the one model keeps its own number of epochs.

added. A model of both directions of one pair, such as `seed-1/together` of `directions --pairs
en-zh`, is trained further on both directions of both pairs. BLEU of each direction before and
after.

readers. What reading each format costs, on the same generated pairs: CPU seconds per million pairs,
and by how much the peak of memory rises. Each is read by a process of its own. The catalogue (.po)
has a tenth of the pairs. The files are written to DIR, and stay there.

scale. Three corpora (TSV in gzip, two files in zstd, a Moses zip) are cleaned by `usual` and
prepared for a training. They have so many pairs in all: those of Multi30k, again and again, each
with a made-up name in front; a tenth are copies, a tenth stood there before. Two processes do the
same at once: one is killed twice while it cleans and once while it prepares, and begun again; its
files are then those of the other, byte for byte. The table has CPU seconds per million pairs, the
peak of memory, and the tokens per second of batches that a training of one epoch reads.
"""

import argparse
import collections
import concurrent.futures
import contextlib
import filecmp
import functools
import gzip
import json
import multiprocessing
import pathlib
import random
import shlex
import shutil
import statistics
import subprocess
import sys
import time
import zipfile

import numpy as np
import py3langid
import pyarrow
import sacrebleu

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import kformer  # noqa: E402
from benchmarks.common import (  # noqa: E402
    cpu_name,
    environment,
    integers,
    interval,
    names,
    print_command,
    print_head,
    print_row,
    read,
    size_on_disk,
    spent_on,
    versions,
    write,
)
from benchmarks.common import kformer as kformer_command  # noqa: E402
from kformer.data.corpora.rules import LEVELS, LOWEST_SCORE, RULES, Cleaner  # noqa: E402
from kformer.data.corpora.seen import Seen  # noqa: E402
from kformer.data.preparation import prepare_cached  # noqa: E402
from kformer.data.word_alignment import AlignmentScores  # noqa: E402
from kformer.evaluation import evaluate, suitable_tokenizer  # noqa: E402

TESTS = {"en-de": "test2016", "en-zh": "test"}
CORPORA = {"en-de": "multi30k-en-de/raw", "en-zh": "tatoeba-en-zh"}
# Sentences of other languages: subject, verb, place.
PHRASES = {
    "fr": (
        "Un homme|Une femme|Un jeune garçon|Une petite fille|Un chien noir|Le vieux pêcheur",
        " joue| court| attend| dort| se repose| regarde les passants",
        " dans la rue.| sur la plage.| devant le magasin.| près de la rivière.| sous un arbre.",
    ),
    "es": (
        "Un hombre|Una mujer|Un niño pequeño|Una joven|Un perro negro|El viejo pescador",
        " juega| corre| espera| duerme| descansa| mira a la gente",
        " en la calle.| en la playa.| delante de la tienda.| cerca del río.| bajo un árbol.",
    ),
    "nl": (
        "Een man|Een vrouw|Een kleine jongen|Een meisje|Een zwarte hond|De oude visser",
        " speelt| rent| wacht| slaapt| rust uit| kijkt naar de mensen",
        " op straat.| op het strand.| voor de winkel.| bij de rivier.| onder een boom.",
    ),
    "sv": (
        "En man|En kvinna|En liten pojke|En flicka|En svart hund|Den gamla fiskaren",
        " leker| springer| väntar| sover| vilar sig| tittar på människorna",
        " på gatan.| på stranden.| framför affären.| vid floden.| under ett träd.",
    ),
    "cs": (
        "Muž|Žena v modrém|Malý chlapec|Mladá dívka|Černý pes|Starý rybář",
        " si hraje| běží rychle| čeká na přítele| tiše spí| odpočívá| se dívá na lidi",
        " na ulici.| na pláži.| před obchodem.| u velké řeky.| pod stromem.",
    ),
    "ru": (
        "Мужчина|Женщина|Маленький мальчик|Девочка|Чёрная собака|Старый рыбак",
        " играет| бежит| ждёт| спит| отдыхает| смотрит на людей",
        " на улице.| на пляже.| перед магазином.| у реки.| под деревом.",
    ),
    "ja": (
        "男の人が|女の人が|小さな男の子が|女の子が|黒い犬が|年を取った漁師が",
        "通りで|海辺で|店の前で|川のそばで|木の下で",
        "遊んでいます。|走っています。|待っています。|眠っています。|人々を見ています。",
    ),
}
# What pages say around their text: two languages.
BOILERPLATE = {
    "en": "Click here to read more|All rights reserved|Sign in to leave a comment|Home|Next page|"
    "Share this article|We use cookies to improve this page|Back to top|Add to basket|Terms of use|"
    "Subscribe to our newsletter|Follow us|Print|Search results|Your shopping basket is empty",
    "de": "Hier klicken, um mehr zu lesen|Alle Rechte vorbehalten|Zum Kommentieren anmelden|Start|"
    "Nächste Seite|Diesen Artikel teilen|Wir nutzen Cookies, um diese Seite zu verbessern|"
    "Nach oben|In den Warenkorb|Nutzungsbedingungen|Unseren Newsletter bestellen|Folgen Sie uns|"
    "Drucken|Suchergebnisse|Ihr Warenkorb ist leer",
    "zh": "点击这里阅读更多|版权所有|登录后发表评论|首页|下一页|分享这篇文章|"
    "我们使用Cookie来改进本页|返回顶部|加入购物车|使用条款|"
    "订阅我们的通讯|关注我们|打印|搜索结果|您的购物车是空的",
}


# Dirt: functions of (the numbers of a pair, its texts, random numbers) that return a dirty pair.


class Dirt:
    """Makes pairs dirty.

    Args:
        sources, targets: lists of str. The clean corpus.
        languages: two codes.
        clean: list of int. The pairs that stay clean.
        random: `random.Random`.
    """

    def __init__(self, sources, targets, languages, clean, random):
        self.sources, self.targets, self.clean = sources, targets, clean
        self.languages, self.random = languages, random

    def copies(self, i):
        return (self.sources[i],) * 2 if self.random.random() < 0.7 else (self.targets[i],) * 2

    def shifted(self, i):
        return self.sources[i], self.targets[(i + 1) % len(self.targets)]

    def other_language(self, i):
        other = self.random.choice([code for code in PHRASES if code not in self.languages])
        text = "".join(self.random.choice(part.split("|")) for part in PHRASES[other])
        return self.random.choice([(self.sources[i], text), (text, self.targets[i])])

    def truncated(self, i):
        """The beginning of the target, a third to a half of it."""
        characters = self.languages[1] == "zh"
        words = list(self.targets[i]) if characters else self.targets[i].split()
        end = max(1, round(len(words) * self.random.uniform(0.33, 0.5)))
        return self.sources[i], ("" if characters else " ").join(words[:end])

    def repeated(self, i):
        """A clean pair that stands further up, if there is one."""
        other = self.random.choice([j for j in self.clean[:100] if j < i] or self.clean[:1])
        return self.sources[other], self.targets[other]

    def html(self, i):
        name = self.random.choice(["p", "div", "li", "span class='x'", 'a href="/page?a=1"'])
        opening, closing = f"<{name}>", f"</{name.split()[0]}>"
        spaces = self.random.choice(["&nbsp;", "<br/>", "&#160;"])
        return tuple(
            opening + text.replace("'", "&#39;").replace(" ", spaces, 1) + closing
            for text in (self.sources[i], self.targets[i])
        )

    def mojibake(self, i):
        """UTF-8 that was read as another encoding. A text of ASCII alone is first quoted."""
        source, target = self.before_mojibake(i)
        return source, _misread(target)

    def before_mojibake(self, i):
        target = self.targets[i]
        return self.sources[i], f"„{target}“" if target.isascii() else target

    def boilerplate(self, i):
        phrase = self.random.randrange(15)
        return tuple(BOILERPLATE[code].split("|")[phrase] for code in self.languages)

    def numbers_only(self, i):
        day, month, year = (self.random.randrange(1, n) for n in (29, 13, 2024))
        hour, cents = self.random.randrange(24), self.random.randrange(100)
        return self.random.choice(
            [
                (f"{day}/{month}/{year}", f"{day}.{month}.{year}"),
                (f"{year}",) * 2,
                (f"${year}.{cents}", f"{year},{cents} €"),
                (f"{hour}:{cents % 60:02}",) * 2,
                (f"({day}) {hour}, {month} - {cents}%",) * 2,
            ]
        )

    def swapped(self, i):
        return self.targets[i], self.sources[i]

    def merged(self, i):
        """The next sentence stands in the target, too."""
        space = "" if self.languages[1] == "zh" else " "
        return self.sources[i], self.targets[i] + space + self.targets[(i + 1) % len(self.targets)]

    def symbols(self, i):
        return tuple(
            self.random.choice(["-" * 20, "* * *", "____", "👍👍👍", "→ → →", "[ ] ( )", "€ / $"])
            for _ in range(2)
        )

    def half_translated(self, i):
        words = self.sources[i].split()
        half = len(words) // 2
        target = self.targets[i]
        return self.sources[i], target[: len(target) // 2] + " " + " ".join(words[half:])

    def empty_side(self, i):
        return self.random.choice([(self.sources[i], ""), ("", self.targets[i]), (" ", "\u00a0")])

    def stutter(self, i):
        """The target's first words again and again."""
        space = "" if self.languages[1] == "zh" else " "
        words = list(self.targets[i]) if not space else self.targets[i].split()
        start = space.join(words[:2])
        return self.sources[i], space.join([start] * max(2, len(words) // 2))

    def links(self, i):
        path = "/".join(self.sources[i].lower().split()[:3])
        link = f"https://www.example.com/{path}"
        return link, link if self.random.random() < 0.5 else f"{link}?l={self.languages[1]}"

    def other_numbers(self, i):
        first, second = self.random.sample(range(10, 3000), 2)
        return f"{self.sources[i]} ({first})", f"{self.targets[i]} ({second})"


KINDS = [name for name in vars(Dirt) if not name.startswith(("_", "before"))]


def _misread(text):
    for encoding in ("cp1252", "latin-1"):
        try:
            return text.encode().decode(encoding)
        except UnicodeDecodeError:
            continue


def with_dirt(sources, targets, languages, share, seed):
    """Makes a share of a corpus dirty.

    Returns:
        Tuple (sources, targets, kinds, expected): the pairs; for each the kind of its dirt, or
        `None`; and the pair that a repair should give.
    """
    generator = random.Random(seed)
    order = list(range(len(sources)))
    generator.shuffle(order)
    dirty = sorted(order[: round(share * len(order))])
    clean = sorted(set(order) - set(dirty))
    dirt = Dirt(sources, targets, languages, clean, generator)
    kinds, pairs = [None] * len(sources), list(zip(sources, targets, strict=True))
    expected = list(pairs)
    for n, i in enumerate(dirty):
        kinds[i] = KINDS[n % len(KINDS)]
        pairs[i] = getattr(dirt, kinds[i])(i)
        if kinds[i] == "mojibake":
            expected[i] = dirt.before_mojibake(i)
    return *map(list, zip(*pairs, strict=True)), kinds, expected


# Cleaning.


def clean(rules, sources, targets, languages, excluded):
    """Cleans a corpus as `kformer clean` does.

    Returns:
        Tuple (sources, targets, reasons): repaired texts, and int array of indices in `RULES`.
    """
    sources, targets, reasons, _ = Cleaner(rules, languages, excluded)(sources, targets)
    remaining = np.flatnonzero(reasons < 0)

    def texts():
        return [sources[i] for i in remaining], [targets[i] for i in remaining]

    if {"duplicates", "near_duplicates"} & set(rules):
        repeats = Seen(rules)(Seen.hashes_of(*texts()))
        for rule, is_repeat in zip(("duplicates", "near_duplicates"), repeats, strict=True):
            reasons[remaining[is_repeat]] = RULES.index(rule)
        remaining = np.flatnonzero(reasons < 0)
    if "alignment" in rules:
        is_low = AlignmentScores.fit(*texts())(*texts()) < LOWEST_SCORE
        reasons[remaining[is_low]] = RULES.index("alignment")
    return sources, targets, reasons


def measure_rules(options):
    print_command()
    print(f"{cpu_name()}; {versions('ftfy', 'py3langid', 'numpy')}\n")
    for pair in options.pairs:
        measure_corpus(options, pair, pair.split("-"))


def measure_corpus(options, pair, languages):
    folder = options.data / CORPORA[pair]
    clean_texts = [read(folder / f"train.{code}") for code in languages]
    excluded = [line for code in languages for line in read(folder / f"val.{code}")]
    sources, targets, kinds, expected = with_dirt(
        *clean_texts, languages, options.share, options.seed
    )
    kinds = np.array([kind or "clean" for kind in kinds])
    repeats = len(sources) - len(set(zip(*clean_texts, strict=True)))
    print(f"{pair}: {len(kinds):,} pairs, {(kinds == 'clean').sum():,} of them clean; ", end="")
    print(f"{repeats} pairs of the corpus stood there before.\n")
    is_gone, is_repaired = {}, {}
    for level in ("usual", "strict"):
        *texts, reasons = clean(LEVELS[level], sources, targets, languages, excluded)
        is_gone[level] = reasons >= 0
        pairs = zip(zip(*texts, strict=True), expected, strict=True)
        is_repaired[level] = np.array([a == b for a, b in pairs]) & (reasons < 0)
    print_head(("kind", "pairs", "usual: left out %", "repaired %", "strict: left out %", "by"))
    for kind in ("clean", *KINDS):
        of_kind = kinds == kind
        counts = collections.Counter(RULES[reason] for reason in reasons[of_kind] if reason >= 0)
        main = ", ".join(f"{rule} {count}" for rule, count in counts.most_common(3))
        shares = [
            100 * a[of_kind].mean()
            for a in (is_gone["usual"], is_repaired["usual"], is_gone["strict"])
        ]
        digits = 2 if kind == "clean" else 1
        print_row(kind, of_kind.sum(), *(f"{share:.{digits}f}" for share in shares), main)
    print()
    print_head(("rule", "precision", "recall %", "clean lost", "of 10,000", "s per million pairs"))
    is_dirty = (kinds != "clean") & ~is_repaired["usual"]
    for rule in RULES:
        begin = time.process_time()
        if rule in ("mojibake", "html"):
            clean([rule], sources, targets, languages, excluded)
            seconds = time.process_time() - begin
            print_row(rule, "repairs", "", "", "", f"{seconds / len(kinds) * 1e6:.1f}")
            continue
        alone = clean([rule], *texts, languages, excluded)[2]
        seconds = time.process_time() - begin
        if rule == "alignment":  # Fitted on what the other rules leave.
            alone = reasons
        is_out = alone == RULES.index(rule)
        lost = (is_out & (kinds == "clean")).sum()
        print_row(
            rule,
            f"{(is_out & is_dirty).sum() / max(is_out.sum(), 1):.3f}",
            f"{100 * (is_out & is_dirty).sum() / is_dirty.sum():.1f}",
            lost,
            f"{lost / (kinds == 'clean').sum() * 1e4:.1f}",
            f"{seconds / len(kinds) * 1e6:.1f}",
        )
    for level in ("usual", "strict"):
        begin = time.process_time()
        clean(LEVELS[level], sources, targets, languages, excluded)
        seconds = time.process_time() - begin
        print_row(level, "", "", "", "", f"{seconds / len(kinds) * 1e6:.1f}")
    print()
    for rule in RULES if options.examples else ():
        rows = np.flatnonzero((reasons == RULES.index(rule)) & (kinds == "clean"))
        for row in rows[: options.examples]:
            print(f"{rule}: {texts[0][row]} | {texts[1][row]}")
    print()


# Quality.


def measure_quality(options):
    print_command()
    print(f"{cpu_name()}; {versions('keras', 'torch', 'sacrebleu', 'ftfy', 'py3langid')}\n")
    for pair in options.pairs:
        folder = options.work / pair
        folder.mkdir(parents=True, exist_ok=True)
        _write_levels(options, folder, pair)
        levels = ("clean", "none", "usual", "strict")
        tasks = [(folder, pair, seed, level) for seed in options.seeds for level in levels]
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            found = dict(
                zip(tasks, pool.map(lambda task: _bleu(options, *task), tasks), strict=True)
            )
        print(f"{pair}:\n")
        print_head(("seed", *levels, "usual: recovered %", "strict: recovered %"))
        rows = [[found[folder, pair, seed, level] for level in levels] for seed in options.seeds]
        means = [statistics.mean(column) for column in zip(*rows, strict=True)]
        for name, row in zip((*options.seeds, "mean"), (*rows, means), strict=True):
            clean, none, *cleaned = row
            shares = [100 * (bleu - none) / (clean - none) for bleu in cleaned]
            cells = [f"{bleu:.2f}" for bleu in row] + [f"{share:.0f}" for share in shares]
            print_row(name, *cells)
        print()


def _write_levels(options, folder, pair):
    """Writes the clean pairs, all pairs, and a description for each level."""
    languages, data = pair.split("-"), options.data / CORPORA[pair]
    texts = [read(data / f"train.{code}") for code in languages]
    *dirty, kinds, _ = with_dirt(*texts, languages, options.share, options.seed)
    rows = [row for row, kind in enumerate(kinds) if kind is None]
    for side, code in enumerate(languages):
        write(folder / f"clean.{code}", [texts[side][row] for row in rows])
        write(folder / f"dirty.{code}", [text.replace("\n", " ") for text in dirty[side]])
    for level in ("clean", "none", "usual", "strict"):
        name = "clean" if level == "clean" else "dirty"
        files = [json.dumps(str(folder.resolve() / f"{name}.{code}")) for code in languages]
        valid = [json.dumps(str((data / f"val.{code}").resolve())) for code in languages]
        (folder / f"{level}.yaml").write_text(
            "corpora:\n"
            f"  text: {{source: {files[0]}, target: {files[1]}, languages: {pair}}}\n"
            f"validation:\n  {pair}: {{source: {valid[0]}, target: {valid[1]}}}\n"
            f"clean: {'none' if level == 'clean' else level}\n",
            encoding="utf-8",
        )


def _bleu(options, folder, pair, seed, level):
    """BLEU on the test set after a training, which is made or gone on with."""
    run, result = folder / f"{level}-{seed}", folder / f"{level}-{seed}.json"
    if not result.exists():
        command = ["train", "--output", run, "--resume", "--corpora", folder / f"{level}.yaml"]
        kformer_command(options, *command, "--seed", seed, *shlex.split(options.option))
        sides = [options.data / CORPORA[pair] / f"{TESTS[pair]}.{code}" for code in pair.split("-")]
        texts = ["--source", sides[0], "--reference", sides[1]]
        tokenize = ["--tokenize", "zh"] if pair.endswith("zh") else []
        command = ["evaluate", run, *texts, "--json", *tokenize, *shlex.split(options.search)]
        write(result, [kformer_command(options, *command, capture=True).strip()])
    return json.loads(result.read_text(encoding="utf-8"))["bleu"]


# Directions.


def measure_directions(options):
    print_command()
    print(f"{cpu_name()}; {versions('keras', 'tensorflow', 'sacrebleu', 'py3langid')}\n")
    pairs = [tuple(pair.split("-")) for pair in options.pairs]
    directions = [direction for pair in pairs for direction in (pair, pair[::-1])]
    for seed in options.seeds:
        folder = options.work / f"seed-{seed}"
        folder.mkdir(parents=True, exist_ok=True)
        alone = functools.partial(_alone, options, folder, seed)
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            runs = list(pool.map(alone, directions))
        seconds, tokens = (sum(each) for each in zip(*map(spent_on, runs), strict=True))
        together = _together(options, folder, seed, pairs, tokens)
        print(f"seed {seed}:\n")
        print_head(("direction", "a model each", "one model", "pairs"))
        model = kformer.Translator.load(together)
        for direction, run in zip(directions, runs, strict=True):
            scores = (
                _with_interval(translator, options.data, direction)
                for translator in (kformer.Translator.load(run), model.for_direction(*direction))
            )
            count = len(read(_path(options.data, "train", direction, 0)))
            print_row("-".join(direction), *scores, f"{count:,}")
        one, _ = spent_on(together)
        print(f"\nSeconds of the trainings: {seconds:,.0f} in all, {one:,.0f} of the one model.\n")
        if len(pairs) > 1:
            _print_unseen(options, dict(zip(directions, runs, strict=True)), model, pairs)


def _path(data, split, direction, side):
    """The file of a split in the language of one side of a direction."""
    pair = next(pair for pair in CORPORA if set(pair.split("-")) == set(direction))
    name = TESTS[pair] if split == "test" else split
    return (data / CORPORA[pair] / f"{name}.{direction[side]}").resolve()


def _alone(options, folder, seed, direction):
    """The run of a model for one direction."""
    run = folder / "-".join(direction)
    texts = [
        part
        for split in ("train", "valid")
        for side, name in enumerate(("source", "target"))
        for part in (
            f"--{split}-{name}",
            _path(options.data, {"valid": "val"}.get(split, split), direction, side),
        )
    ]
    return _trained(options, run, "--seed", seed, *texts)


def _together(options, folder, seed, pairs, tokens):
    """The run of one model for both directions of all pairs, which sees so many target tokens."""
    description = _write_directions(options, folder, pairs)
    command = ["--corpora", description, "--seed", seed]
    # A first epoch tells how many tokens there are in one.
    first, run = folder / "one-epoch", folder / "together"
    _, epoch = spent_on(_trained(options, first, *command, "--epochs", 1, "--no-choose-search"))
    return _trained(options, run, *command, "--epochs", max(1, round(tokens / epoch)))


def _write_directions(options, folder, pairs):
    """Writes a description of both directions of all pairs, and returns its path."""
    corpora, validation = [], []
    for pair in pairs:
        sides = [json.dumps(str(_path(options.data, "train", pair, side))) for side in (0, 1)]
        name, text = "-".join(pair), f"source: {sides[0]}, target: {sides[1]}"
        corpora.append(f"  {name}: {{{text}, languages: {name}, both_directions: true}}\n")
        for direction in (pair, pair[::-1]):
            sides = [json.dumps(str(_path(options.data, "val", direction, i))) for i in (0, 1)]
            text = f"source: {sides[0]}, target: {sides[1]}"
            validation.append(f"  {'-'.join(direction)}: {{{text}}}\n")
    parts = ["corpora:\n", *corpora, "validation:\n", *validation, "clean: none\n"]
    path = folder / "corpora.yaml"
    path.write_text("".join(parts), encoding="utf-8")
    return path


def _trained(options, run, *command):
    """The run of a training, which is made, gone on with, or there already."""
    done = run.with_name(f"{run.name}.done")
    if not done.exists():
        command = [*shlex.split(options.option), *command]  # The last number of epochs counts.
        kformer_command(options, "train", "--output", run, "--resume", *command)
        write(done, [])
    return run


def _with_interval(translator, data, direction):
    """BLEU of the test set, with half of its interval."""
    sources, references = (read(_path(data, "test", direction, side)) for side in (0, 1))
    result = evaluate(translator, sources, references)
    width = interval(result.hypotheses, references, suitable_tokenizer(references))
    return f"{result.bleu:.2f} ± {width:.2f}"


def measure_added(options):
    print_command()
    print(f"{cpu_name()}; {versions('keras', 'tensorflow', 'sacrebleu')}\n")
    pairs = [tuple(pair.split("-")) for pair in CORPORA]
    options.work.mkdir(parents=True, exist_ok=True)
    description = _write_directions(options, options.work, pairs)
    start = ["--start-from", options.run, "--corpora", description]
    runs = (options.run, _trained(options, options.work / "added", *start))
    models = [kformer.Translator.load(run) for run in runs]
    print_head(("direction", "before", "after"))
    for direction in [direction for pair in pairs for direction in (pair, pair[::-1])]:
        scores = [
            _with_interval(model.for_direction(*direction), options.data, direction)
            if direction[1] in model.tokenizer.languages
            else ""
            for model in models
        ]
        print_row("-".join(direction), *scores)


def _print_unseen(options, runs, model, pairs):
    """Prints what the one model makes of a direction that it never saw."""
    (first, second), (_, third) = pairs[:2]
    sources = read(_path(options.data, "test", (second, first), 0))
    middle = kformer.Translator.load(runs[second, first])(sources)
    pivoted = kformer.Translator.load(runs[first, third])(middle)
    direct = model.for_direction(second, third)(sources)
    chrf = sacrebleu.corpus_chrf(direct, [pivoted]).score
    share = statistics.mean(py3langid.classify(text)[0] == third for text in direct)
    print(
        f"{second}-{third}, never trained: chrF {chrf:.1f} against the way by {first}; "
        f"{share:.0%} of the lines are {third}.\n"
    )
    print_head((second, "one model", f"by way of {first}"))
    for row in zip(sources[:3], direct, pivoted, strict=False):
        print_row(*row)
    print()


# Readers.


def measure_readers(options):
    """A row for each format: what reading the same pairs costs."""
    from tests.data.corpora.test_readers import COLUMNS, COMPRESS, WRITERS

    print_command()
    print(f"{cpu_name()}; {versions('pyarrow', 'polib')}\n")
    print_head(("files", "pairs", "MB", "CPU s per million pairs", "MiB of memory"))
    generator = random.Random(0)
    words = [f"{generator.randrange(36**4):x}ü" for _ in range(20_000)]

    def text():
        return " ".join(generator.choices(words, k=generator.randrange(5, 25))) + "."

    pairs = [(text(), text()) for _ in range(options.count)]
    options.work.mkdir(parents=True, exist_ok=True)
    few = pairs[: len(pairs) // 10]
    for ending in COMPRESS:
        paths = [options.work / f"two.{side}{ending}" for side in ("en", "de")]
        for side, path in enumerate(paths):
            content = "".join(f"{pair[side]}\n" for pair in pairs)
            path.write_bytes(COMPRESS[ending](content.encode()))
        _measure_reader(f"two files{ending}", paths, {"source": paths[0], "target": paths[1]})
    for name in WRITERS:
        path = options.work / f"corpus{name[1:]}"
        if not path.exists():
            WRITERS[name](path, few if name == "x.po" else pairs)
        entry = {"files": path, "columns": COLUMNS.get(name)}
        _measure_reader(path.suffix or "folder of datasets", [path], entry)


def _measure_reader(label, paths, entry):
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, spawn) as pool:
        count, seconds, memory = pool.submit(_read, entry).result()
    size = size_on_disk(*paths) / 1e6
    print_row(label, f"{count:,}", f"{size:.1f}", f"{seconds / count * 1e6:.1f}", f"{memory:.0f}")


def _read(entry):
    """Returns the pairs of a corpus, CPU seconds, and MiB by which the peak of memory rises."""
    from tests.data.corpora.test_readers import corpus, readers

    corpus = corpus(entry.pop("files", None), **entry)
    before, begin = _peak(), time.process_time()
    count = sum(len(sources) for sources, _ in readers.read_pairs(corpus))
    return count, time.process_time() - begin, (_peak() - before) / 1024


def _peak():
    status = pathlib.Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])


# Scale.


def measure_scale(options):
    """A row for the cleaning, the preparation and the batches of the process nobody killed."""
    print_command()
    print(f"{cpu_name()}; {versions('numpy', 'pyarrow', 'ftfy', 'py3langid', 'sentencepiece')}\n")
    options.work.mkdir(parents=True, exist_ok=True)
    if not (options.work / "corpora.yaml").exists():
        _write_large(options.work, options.data, options.count)
    for name in ("whole", "killed"):
        shutil.rmtree(options.work / name, ignore_errors=True)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        killed = pool.submit(_killed_job, options)
        with _job(options.work, "whole") as process:
            [result] = [json.loads(line) for line in process.stdout if line.startswith("{")]
        kills = killed.result()
    folders = [options.work / name for name in ("whole", "killed")]
    paths = [sorted(p.relative_to(f) for p in f.rglob("*") if p.is_file()) for f in folders]
    equal = paths[0] == paths[1] and all(
        filecmp.cmp(folders[0] / path, folders[1] / path, shallow=False) for path in paths[0]
    )
    print_head(("what", "pairs", "CPU s per million pairs", "wall s", "MiB of memory"))
    for what, values in result.items():
        if what != "batches":
            pairs, seconds, wall, memory = values
            per_million = f"{seconds / pairs * 1e6:.0f}"
            print_row(what, f"{pairs:,}", per_million, f"{wall:.0f}", f"{memory:.0f}")
    print(f"\nbatches: {result['batches']:,.0f} tokens per second")
    same = "the same bytes" if equal else "OTHER BYTES"
    print(f"killed at {', '.join(kills)}, and begun again: {same} ({len(paths[0])} files)")
    return 0 if equal else 1


def _write_large(work, data, count):
    """Writes the corpora, a third of the pairs to each, and their description."""
    folder = data / CORPORA["en-de"]
    english, german = (read(folder / f"train.{code}") for code in ("en", "de"))
    numbers = np.random.default_rng(0)

    def pairs(count):
        """Chunks of pairs."""
        former = []
        for begin in range(0, count, 10_000):
            size = min(10_000, count - begin)
            letters = numbers.integers(26, size=(size, 7), dtype=np.uint8) + ord("a")
            rows, kinds = numbers.integers(len(english), size=size), numbers.random(size)
            chunk = []
            for name, row, kind in zip(letters, rows.tolist(), kinds, strict=True):
                name = name.tobytes().decode().capitalize()
                pair = f"{name}: {english[row]}", f"{name}: {german[row]}"
                if kind < 0.1:
                    pair = pair[:1] * 2
                elif kind < 0.2 and former:
                    pair = former[row % len(former)]
                chunk.append(pair)
            former = chunk[::10]
            yield chunk

    def lines(chunk, side):
        return "".join(f"{pair[side]}\n" for pair in chunk).encode()

    part = count // 3
    with gzip.open(work / "one.tsv.gz", "wb", compresslevel=1) as file:
        for chunk in pairs(count - 2 * part):
            file.write("".join(f"{a}\t{b}\n" for a, b in chunk).encode())
    with contextlib.ExitStack() as stack:
        sides = []
        for code in ("en", "de"):
            path = str(work / f"two.{code}.zst")
            sides.append(stack.enter_context(pyarrow.CompressedOutputStream(path, "zstd")))
        for chunk in pairs(part):
            for side, file in enumerate(sides):
                file.write(lines(chunk, side))
    plain = [work / f"three.{code}" for code in ("en", "de")]
    with open(plain[0], "wb") as first, open(plain[1], "wb") as second:
        for chunk in pairs(part):
            first.write(lines(chunk, 0))
            second.write(lines(chunk, 1))
    deflated = {"compression": zipfile.ZIP_DEFLATED, "compresslevel": 1}
    with zipfile.ZipFile(work / "three.de-en.zip", "w", **deflated) as archive:
        for path in plain:
            archive.write(path, path.name)
            path.unlink()
    (work / "corpora.yaml").write_text(
        "corpora:\n"
        "  one: {files: one.tsv.gz, languages: en-de}\n"
        "  two: {source: two.en.zst, target: two.de.zst, languages: en-de, weight: 2}\n"
        "  three: {files: three.de-en.zip, languages: en-de, weight: 0.5}\n"
        "clean: usual\n",
        encoding="utf-8",
    )


def _job(work, name):
    command = [sys.executable, __file__, "job", "--work", str(work), "--name", name]
    variables = environment("torch", OMP_NUM_THREADS="1")
    return subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True)


def _killed_job(options):
    """Kills a job three times, and lets it come to its end; returns where it was killed."""
    part, kills = options.count // 3, []
    for what, least in (("one", part // 2), ("three", part // 2), ("prepared two", part // 3)):
        with _job(options.work, "killed") as process:
            for line in process.stdout:
                found, _, pairs = line.strip().rpartition(" ")
                if found == what and int(pairs) > least:
                    process.kill()
                    kills.append(f"{what}: {int(pairs):,}")
                    break
    with _job(options.work, "killed") as process:
        process.stdout.read()
    return kills


def run_job(options):
    """Cleans, prepares and reads; prints where it is, and at the end a JSON object."""
    result, folder = {}, options.work / options.name

    @contextlib.contextmanager
    def measured(what, count):
        begin, wall = time.process_time(), time.perf_counter()
        yield
        seconds, wall = time.process_time() - begin, time.perf_counter() - wall
        result[what] = count(), seconds, wall, _peak() / 1024

    def progress(name, pairs):
        print(name, pairs, flush=True)

    with measured("cleaned", lambda: sum(c["pairs"] for c in report.corpora.values())):
        corpora = kformer.data.Corpora.load(options.work / "corpora.yaml")
        report = kformer.data.clean(corpora, folder / "clean", progress=progress)
    corpora = kformer.data.Corpora.load(folder / "clean" / "corpora.yaml").corpora
    sides = {name: (*corpus.source, *corpus.target) for name, corpus in corpora.items()}
    with measured("prepared", lambda: sum(corpus.num_lines for corpus in prepared)):
        paths = [path for pair in sides.values() for path in pair]
        tokenizer = kformer.Tokenizer.train(paths, vocabulary_size=8000)
        prepared = [
            prepare_cached(
                *pair,
                tokenizer,
                folder / "prepared",
                num_threads=1,
                progress=lambda done, total, name=name: progress(f"prepared {name}", done),
            )
            for name, pair in sides.items()
        ]
    mixed = kformer.data.MixedCorpus(prepared, [corpus.weight for corpus in corpora.values()])
    data = kformer.data.ParallelDataset.from_prepared(mixed, batch_tokens=25_000)
    count, begin = 0, time.perf_counter()
    for number in range(min(len(data), 2_000)):
        inputs = data[number][0]
        count += sum(int((inputs[f"{side}_ids"] != 0).sum()) for side in ("source", "target"))
    result["batches"] = count / (time.perf_counter() - begin)
    print(json.dumps(result), flush=True)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = parser.add_subparsers(dest="part", required=True)
    part = parts.add_parser("rules", help="what each rule costs and finds, on planted dirt")
    part.add_argument("--data", type=pathlib.Path, required=True)
    part.add_argument("--pairs", type=names, default=list(CORPORA), help="of en-de, en-zh")
    part.add_argument("--share", type=float, default=0.4, help="of dirty pairs")
    part.add_argument("--seed", type=int, default=0)
    part.add_argument("--examples", type=int, default=0, help="clean pairs lost, for each rule")
    part = parts.add_parser("quality", help="what dirt costs, and what the rules bring back")
    part.add_argument("--data", type=pathlib.Path, required=True)
    part.add_argument("--work", type=pathlib.Path, required=True)
    part.add_argument("--pairs", type=names, default=list(CORPORA), help="of en-de, en-zh")
    part.add_argument("--share", type=float, default=0.4, help="of dirty pairs")
    part.add_argument("--seed", type=int, default=0, help="of the dirt")
    part.add_argument("--seeds", type=integers, default=[1, 2], help="of the trainings")
    part.add_argument("--jobs", type=int, default=2, help="trainings at once")
    part.add_argument("--option", default="", help="more options of `kformer train`")
    part.add_argument("--search", default="", help="options of `kformer evaluate`")
    part.set_defaults(backend="torch", threads=1)
    part = parts.add_parser("directions", help="one model for several directions")
    part.add_argument("--data", type=pathlib.Path, required=True)
    part.add_argument("--work", type=pathlib.Path, required=True)
    part.add_argument("--pairs", type=names, default=list(CORPORA), help="of en-de, en-zh")
    part.add_argument("--seeds", type=integers, default=[1], help="of the trainings")
    part.add_argument("--jobs", type=int, default=2, help="trainings at once")
    part.add_argument("--option", default="", help="more options of `kformer train`")
    part.set_defaults(backend="tensorflow", threads=1)
    part = parts.add_parser("added", help="what a language that is added costs the others")
    part.add_argument("run", type=pathlib.Path)
    part.add_argument("--data", type=pathlib.Path, required=True)
    part.add_argument("--work", type=pathlib.Path, required=True)
    part.add_argument("--option", default="", help="more options of `kformer train`")
    part.set_defaults(backend="tensorflow", threads=1)
    part = parts.add_parser("readers", help="what reading each format costs")
    part.add_argument("--work", type=pathlib.Path, required=True)
    part.add_argument("--count", type=int, default=300_000, help="of pairs")
    part = parts.add_parser("scale", help="millions of pairs, cleaned and prepared, with kills")
    part.add_argument("--work", type=pathlib.Path, required=True)
    part.add_argument("--data", type=pathlib.Path, required=True)
    part.add_argument("--count", type=int, default=20_000_000, help="of pairs")
    part = parts.add_parser("job", help="what scale starts")
    part.add_argument("--work", type=pathlib.Path, required=True)
    part.add_argument("--name", required=True)
    options = parser.parse_args()
    run = {"rules": measure_rules, "quality": measure_quality, "readers": measure_readers}
    run |= {"directions": measure_directions, "added": measure_added}
    return {**run, "scale": measure_scale, "job": run_job}[options.part](options)


if __name__ == "__main__":
    sys.exit(main())
