"""Compares the quality of translations with a peer's, trained on the same files for the same time.

    python benchmarks/marian_quality.py DATA --from en --to zh --work DIR [--seeds 1,2,3]
        [--threads N] [--backend NAME] [--rates 0.002,0.001,0.0005] [--tokenize NAME]
        [--train-options "--preset small ..."]

DATA is a folder with `train`, `val` and `test` in both languages (`train.en`, ...). kformer is
`kformer train` with the four files, a seed, and no other options but `--train-options`.

The peer is Hugging Face's `MarianMTModel` of the same shape in the loop that PyTorch's users write.
It has the same tokenizer, batches, label smoothing, dropout and clipping, and Adam with the same
warm-up. Its learning rate falls with the root of the step, and to zero over the last quarter of the
time. The weights with the best validation are kept. It is trained once with each of `--rates`,
each time for as many seconds as `kformer train` took from start to end, its tokenizer and
validations included (the peer's imports, preparation and validations are not counted). The rate is
chosen on the validation set.

Both use a beam of 5 with the length penalty that is best on the validation set, and are scored by
sacreBLEU (`--tokenize`, by default `zh` for Chinese, else `13a`) and chrF.

The peer has neither norms before the sub-layers nor rotary positions, which its model does not
offer, nor an average of the weights. So the table compares what two users get from ready-made
tools, not two implementations of one model.

Files in DIR are used again, so it belongs to one folder of data and one set of options. An
interrupted training of kformer starts again, since its time counts.
"""

import argparse
import copy
import importlib.metadata
import json
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from benchmarks.inference import cpu_name  # noqa: E402
from benchmarks.multi30k import kformer, score, spent_on  # noqa: E402
from benchmarks.tables import print_command, print_head, print_row  # noqa: E402

BEAM, LONGEST = 5, 128
COOLDOWN = 0.25
PENALTIES = (0.6, 1.0, 1.4, 1.8, 2.2)


def train_kformer(options, seed):
    """Trains a run; returns its directory and the seconds of the whole command."""
    run = options.work / f"kformer-{options.source}-{options.target}-{seed}"
    clock = run.with_suffix(".seconds")
    if not clock.exists():
        shutil.rmtree(run, ignore_errors=True)
        begin = time.perf_counter()
        arguments = []
        for side, language in (("source", options.source), ("target", options.target)):
            arguments += [
                f"--train-{side}",
                options.data / f"train.{language}",
                f"--valid-{side}",
                options.data / f"val.{language}",
            ]
        kformer(
            options,
            "train",
            "--output",
            run,
            *arguments,
            "--seed",
            seed,
            *shlex.split(options.train_options),
        )
        clock.write_text(f"{time.perf_counter() - begin:.1f}", encoding="utf-8")
    return run, float(clock.read_text(encoding="utf-8"))


def score_kformer(options, run, part, penalty):
    found, _ = score(options, [run], part, penalty, limits=())
    options.signatures = f"BLEU: {found['bleu_signature']}; chrF: {found['chrf_signature']}"
    return found["bleu"], found["chrf"]


class Peer:
    """Marian in a plain loop, on the text and with the tokenizer of a run."""

    def __init__(self, options, run, seed):
        import keras
        import torch

        from benchmarks.training_peers import TorchLoop, marian_model
        from kformer import Tokenizer
        from kformer.data import ParallelDataset
        from kformer.models import PRESETS
        from kformer.saving import read_config

        torch.manual_seed(seed)
        keras.utils.set_random_seed(seed)
        self.options = options
        self.settings = read_config(run)["training"]
        self.tokenizer = Tokenizer.load(run / "tokenizer")
        files = {
            part: [
                options.data / f"{part}.{language}" for language in (options.source, options.target)
            ]
            for part in ("train", "val")
        }
        batches = {
            "batch_tokens": self.settings["batch_tokens"],
            "max_length": self.settings["max_length"],
        }
        self.train_set = ParallelDataset(
            *map(str, files["train"]), self.tokenizer, **batches, seed=seed
        )
        self.valid_set = ParallelDataset(
            *map(str, files["val"]), self.tokenizer, **batches, shuffle=False
        )
        config = {**PRESETS[self.settings["preset"]].config, "dropout": self.settings["dropout"]}
        model = marian_model(config, self.tokenizer.vocabulary_size, self.tokenizer.pad_id)
        self.loop = TorchLoop(model, self.tokenizer.pad_id, tuned=True, device="cpu")

    def train(self, rate, seconds):
        """Trains for a number of seconds, then sets the best weights.

        Returns:
            The number of target tokens of the training.
        """
        import torch

        model, warmup = self.loop.model, self.settings["warmup_steps"]
        step, tokens, spent, best, weights = 0, 0, 0.0, float("inf"), None
        while spent < seconds:
            begin = time.perf_counter()
            for _ in range(self.train_set.steps_per_epoch):
                left = 1 - (spent + time.perf_counter() - begin) / seconds
                for group in self.loop.optimizer.param_groups:
                    group["lr"] = (
                        rate
                        * min((step + 1) / warmup, (warmup / (step + 1)) ** 0.5)
                        * max(0.0, min(1.0, left / COOLDOWN))
                    )
                inputs, labels = self.train_set.batch_at(step)
                self.loop.step(inputs, labels)
                step += 1
                tokens += int((labels != self.tokenizer.pad_id).sum())
                if spent + time.perf_counter() - begin >= seconds:
                    break
            spent += time.perf_counter() - begin
            model.eval()
            with torch.no_grad():
                loss = self.validate()
            model.train()
            if loss < best:
                best, weights = loss, copy.deepcopy(model.state_dict())
            print(
                f"peer: step {step}, {spent:,.0f} of {seconds:,.0f} s, validation {loss:.4f}",
                file=sys.stderr,
                flush=True,
            )
        if weights is not None:  # At too high a rate every loss is NaN.
            model.load_state_dict(weights)
        model.eval()
        return tokens

    def validate(self):
        import torch

        total, count = 0.0, 0
        for index in range(self.valid_set.steps_per_epoch):
            inputs, labels = self.valid_set.batch_at(index)
            source, target = (
                torch.from_numpy(inputs[name]) for name in ("source_ids", "target_ids")
            )
            labels = torch.from_numpy(labels).to(torch.int64)
            real = labels != self.tokenizer.pad_id
            logits = torch.nn.functional.linear(
                self.loop.model(source, target)[real], self.loop.model.table, self.loop.model.bias
            )
            total += float(torch.nn.functional.cross_entropy(logits, labels[real], reduction="sum"))
            count += int(real.sum())
        return total / count

    def score(self, part, penalty):
        """BLEU and chrF of a part."""
        import torch
        from sacrebleu.metrics import BLEU, CHRF

        sources, references = (
            (self.options.data / f"{part}.{language}").read_text(encoding="utf-8").split("\n")[:-1]
            for language in (self.options.source, self.options.target)
        )
        ids = self.tokenizer.tokenize(sources, special_tokens=True)
        order = sorted(range(len(ids)), key=lambda index: len(ids[index]))
        outputs = [""] * len(ids)
        for begin in range(0, len(order), 32):
            chosen = order[begin : begin + 32]
            width = max(len(ids[index]) for index in chosen)
            batch = torch.tensor(
                [
                    ids[index] + [self.tokenizer.pad_id] * (width - len(ids[index]))
                    for index in chosen
                ]
            )
            with torch.no_grad():
                found = self.loop.model.marian.generate(
                    input_ids=batch,
                    attention_mask=(batch != self.tokenizer.pad_id).long(),
                    num_beams=BEAM,
                    length_penalty=penalty,
                    max_new_tokens=LONGEST,
                    decoder_start_token_id=self.tokenizer.start_id,
                    eos_token_id=self.tokenizer.end_id,
                    forced_eos_token_id=None,
                    use_cache=True,
                )
            for index, row in zip(chosen, found.tolist(), strict=True):
                outputs[index] = self.tokenizer.detokenize(row)
        return [
            metric.corpus_score(outputs, [references]).score
            for metric in (BLEU(tokenize=self.options.tokenize), CHRF())
        ]


def best_penalty(score):
    """The length penalty with the best BLEU on the validation set, and that BLEU."""
    found = {penalty: score("val", penalty)[0] for penalty in PENALTIES}
    penalty = max(found, key=found.get)
    return penalty, found[penalty]


def train_peer(options, run, seed, seconds):
    """Scores of the peer for each rate, the best on the validation set last.

    Each rate is trained in a process of its own.
    """
    results = []
    for rate in options.rates:
        path = (
            options.work
            / f"marian-{options.source}-{options.target}-{seed}-{rate}-{seconds:.0f}s.json"
        )
        if not path.exists():
            command = [
                sys.executable,
                __file__,
                *sys.argv[1:],
                "--peer",
                str(path),
                str(run),
                str(seed),
                str(rate),
                str(seconds),
            ]
            subprocess.run(command, env={**os.environ, "KERAS_BACKEND": "torch"}, check=True)
        results.append(json.loads(path.read_text(encoding="utf-8")))
    return sorted(results, key=lambda result: result["val"])


def peer_process(options, path, run, seed, rate, seconds):
    import torch

    from kformer.training import configure_machine

    if options.threads:
        torch.set_num_threads(options.threads)
    configure_machine(keep_memory=True)  # As `kformer train` does.
    peer = Peer(options, pathlib.Path(run), int(seed))
    tokens = peer.train(float(rate), float(seconds))
    penalty, val = best_penalty(peer.score)
    bleu, chrf = peer.score("test", penalty)
    result = {
        "rate": float(rate),
        "tokens": tokens,
        "penalty": penalty,
        "val": val,
        "bleu": bleu,
        "chrf": chrf,
    }
    aside = pathlib.Path(f"{path}.partial")
    aside.write_text(json.dumps(result), encoding="utf-8")
    aside.rename(path)


def report(options):
    names = ("keras", options.backend, "torch", "transformers", "sacrebleu")
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)
    print(f"{cpu_name()}; {versions}\n")
    print_command()
    head = ["system", "seed", "rate", "training, s", "target tokens seen", "length penalty"]
    head += ["val BLEU", "test BLEU", "chrF"]
    print_head(head)
    for seed in options.seeds:
        run, seconds = train_kformer(options, seed)
        penalty, val = best_penalty(
            lambda part, penalty, run=run: score_kformer(options, run, part, penalty)
        )
        bleu, chrf = score_kformer(options, run, "test", penalty)
        _, tokens = spent_on(run)
        rate = json.loads((run / "config.json").read_text(encoding="utf-8"))["training"][
            "learning_rate"
        ]
        row = [
            "kformer",
            seed,
            f"{rate:.3g}",
            f"{seconds:,.0f}",
            f"{tokens:,}",
            penalty,
            f"{val:.2f}",
            f"{bleu:.2f}",
            f"{chrf:.2f}",
        ]
        print_row(*row)
        *others, chosen = train_peer(options, run, seed, seconds)
        for peer in (chosen, *reversed(others)):
            row = [
                "Marian",
                seed,
                f"{peer['rate']:.3g}",
                f"{seconds:,.0f}",
                f"{peer['tokens']:,}",
                peer["penalty"],
                f"{peer['val']:.2f}",
            ]
            # The validation set has chosen one rate; the others are not scored on the test set.
            row += (
                [f"{peer[name]:.2f}" for name in ("bleu", "chrf")] if peer is chosen else ["", ""]
            )
            print_row(*row)
    print(f"\n{options.signatures}")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=pathlib.Path)
    parser.add_argument(
        "--work", type=pathlib.Path, required=True, help="folder for runs and results"
    )
    parser.add_argument("--from", dest="source", default="en")
    parser.add_argument("--to", dest="target", default="zh")
    parser.add_argument(
        "--seeds", type=lambda text: [int(seed) for seed in text.split(",")], default=[1]
    )
    parser.add_argument(
        "--rates",
        type=lambda text: [float(rate) for rate in text.split(",")],
        default=[0.002, 0.001, 0.0005],
    )
    parser.add_argument("--tokenize", help="sacreBLEU's tokenizer")
    parser.add_argument(
        "--train-options",
        default="",
        help="options of `kformer train`, in one string, for a trial or another setting",
    )
    parser.add_argument("--threads", type=int)
    parser.add_argument("--backend", default=os.environ.get("KERAS_BACKEND", "tensorflow"))
    parser.add_argument("--peer", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.tokenize = options.tokenize or ("zh" if options.target == "zh" else "13a")
    options.work.mkdir(parents=True, exist_ok=True)
    if options.peer:
        peer_process(options, *options.peer)
    else:
        report(options)


if __name__ == "__main__":
    main()
