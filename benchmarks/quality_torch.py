"""The PyTorch peer of benchmarks/quality_peers.py: `torch.nn.Transformer` in a plain loop.

It has norms before the sub-layers, one table for both embeddings and the projection, sinusoidal
positions, and the tokenizer, batches, sizes, label smoothing and clipping of a run of kformer. Adam
(0.9, 0.98); the rate rises over the first fifth of the time, falls with its inverse square root,
and to zero over the last quarter. What is validated and kept is the average of the weights, as
kformer has it.
"""

import copy
import json
import math
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

BEAM, LONGEST = 5, 255
# Hypotheses of one search are ranked by log-probability / tokens ** penalty.
PENALTIES = (0.0, 0.6, 1.0, 1.4, 1.8)
WARMUP, COOLDOWN, VALIDATIONS = 0.2, 0.25, 10


def average_of(decay):
    """How `AveragedModel` averages: the latest tenth of the steps, at most `1 / (1 - decay)`."""
    from torch.optim.swa_utils import get_ema_multi_avg_fn

    def update(averages, weights, count):
        get_ema_multi_avg_fn(min(decay, 1 - 10 / (10 + int(count))))(averages, weights, count)

    return update


def rate_at(progress):
    """The learning rate, as a share of its peak, after a share of the time."""
    rising = min(progress / WARMUP, (WARMUP / max(progress, 1e-9)) ** 0.5)
    return rising * max(0.0, min(1.0, (1 - progress) / COOLDOWN))


def settings_of(run):
    """The settings of a run's training; of `--effort 2` and above, of the student's."""
    from kformer.saving import read_config

    student = pathlib.Path(run) / "parts" / "student"
    return read_config(student if student.exists() else run)["training"]


def beam_search(model, source, beam_size, longest, start_id, end_id):
    """Finished hypotheses of each source.

    The beam's best unfinished hypotheses are extended until as many as the beam is wide have
    finished. At the limit all that live are ended.

    Args:
        model: the peer's model, in evaluation mode.
        source: int tensor `[B, S]`, padded.
        beam_size: int. With 1 this is greedy search.
        longest: int. The most tokens of a hypothesis, its end included.
        start_id, end_id: int.

    Returns:
        A list for each source, of pairs: the ids without start and end, and the sum of the
        log-probabilities, that of the end included.
    """
    import torch

    memory, padding = model.encode(source)
    finished = [[] for _ in source]
    active = torch.arange(len(source))
    ids = torch.full((len(source), 1, 1), start_id)  # [B, K, T]
    scores = torch.zeros(len(source), 1)
    for length in range(1, longest + 1):
        rows = active.repeat_interleave(ids.shape[1])
        hidden = model.decode(ids.flatten(0, 1), memory[rows], padding[rows])[:, -1]
        logits = torch.nn.functional.linear(hidden, model.table, model.bias)
        total = scores[..., None] + logits.log_softmax(-1).view(*scores.shape, -1)  # [B, K, V]
        if length == longest:
            for b, k in torch.cartesian_prod(*map(torch.arange, scores.shape)).tolist():
                finished[active[b]].append((ids[b, k, 1:].tolist(), float(total[b, k, end_id])))
            break
        # At most one candidate of each live hypothesis ends, so enough of these go on.
        best, index = total.flatten(1).topk(2 * beam_size)
        beam, token = index // total.shape[-1], index % total.shape[-1]
        ends = token == end_id
        for b, c in ends[:, :beam_size].nonzero().tolist():
            finished[active[b]].append((ids[b, beam[b, c], 1:].tolist(), float(best[b, c])))
        lives = ends.long().sort(dim=1, stable=True).indices[:, :beam_size]
        origin = beam.gather(1, lives)[..., None].expand(-1, -1, ids.shape[2])
        ids = torch.cat([ids.gather(1, origin), token.gather(1, lives)[..., None]], dim=2)
        scores = best.gather(1, lives)
        left = torch.tensor([len(finished[index]) < beam_size for index in active.tolist()])
        active, ids, scores = active[left], ids[left], scores[left]
        if not len(active):
            break
    return finished


def best_of(hypotheses, penalty):
    """The ids of the hypothesis with the best mean log-probability, to a power of the length."""
    return max(hypotheses, key=lambda pair: pair[1] / (len(pair[0]) + 1) ** penalty)[0]


class Peer:
    """A model and its data, for one training.

    Args:
        job: dict with the paths `run` and `data`, the languages `source` and `target`, `seed`,
            `rate`, `dropout`, `seconds` and `threads`.
    """

    def __init__(self, job):
        import torch

        from benchmarks.training_peers import TorchLoop, torch_model
        from kformer import Tokenizer
        from kformer.data import ParallelDataset
        from kformer.models import PRESETS

        torch.manual_seed(job["seed"])
        self.job, run = job, pathlib.Path(job["run"])
        settings = settings_of(run)
        self.average = settings["ema"]
        self.tokenizer = Tokenizer.load(run / "tokenizer")
        sides = job["source"], job["target"]
        batches = {name: settings[name] for name in ("batch_tokens", "max_length", "max_shapes")}
        files = {
            part: [f"{job['data']}/{part}.{side}" for side in sides] for part in ("train", "val")
        }
        self.train_set = ParallelDataset(
            *files["train"], self.tokenizer, **batches, seed=job["seed"]
        )
        self.valid_set = ParallelDataset(*files["val"], self.tokenizer, **batches, shuffle=False)
        config = {**PRESETS[settings["preset"]].config, "dropout": job["dropout"]}
        model = torch_model(config, self.tokenizer.vocabulary_size, self.tokenizer.pad_id)
        self.loop = TorchLoop(model, self.tokenizer.pad_id, tuned=True, device="cpu")

    def train(self):
        """Trains for the job's seconds of CPU time, and keeps the average that validates best.

        Returns:
            Its result: dict with `seconds`, `epochs`, `parameters` and `nll`.
        """
        from torch.optim.swa_utils import AveragedModel

        model, seconds = self.loop.model, self.job["seconds"]
        average = AveragedModel(model, multi_avg_fn=average_of(self.average))
        step, spent, best, self.model = 0, 0.0, math.inf, None
        for number in range(1, VALIDATIONS + 1):
            begin = time.process_time() - spent
            while spent < seconds * number / VALIDATIONS:
                for group in self.loop.optimizer.param_groups:
                    group["lr"] = self.job["rate"] * rate_at(spent / seconds)
                self.loop.step(*self.train_set.batch_at(step))
                average.update_parameters(model)
                step, spent = step + 1, time.process_time() - begin
            nll = self.validate(average.module)
            if nll < best or self.model is None:  # At too high a rate every loss is NaN.
                best, self.model = nll, copy.deepcopy(average.module).eval()
            print(f"{spent:,.0f} s, step {step}, validation {nll:.4f}", file=sys.stderr, flush=True)
        return {
            "seconds": spent,
            "epochs": step / self.train_set.steps_per_epoch,
            "parameters": sum(weight.numel() for weight in model.parameters()),
            "nll": best,
        }

    def validate(self, model):
        """The negative log-likelihood of a token of the validation set, in nats."""
        import torch

        total, count = 0.0, 0
        model.eval()
        for index in range(self.valid_set.steps_per_epoch):
            inputs, labels = self.valid_set.batch_at(index)
            source, target, labels = (
                torch.from_numpy(array).long()
                for array in (inputs["source_ids"], inputs["target_ids"], labels)
            )
            real = labels != self.tokenizer.pad_id
            with torch.no_grad():
                hidden = model(source, target)[real]
                logits = torch.nn.functional.linear(hidden, model.table, model.bias)
            total += float(torch.nn.functional.cross_entropy(logits, labels[real], reduction="sum"))
            count += int(real.sum())
        return total / count

    def search(self, sources):
        """The finished hypotheses of each text."""
        import torch

        ids = self.tokenizer.tokenize(sources, special_tokens=True)
        order = sorted(range(len(ids)), key=lambda index: len(ids[index]))
        found = [None] * len(ids)
        for begin in range(0, len(order), 32):
            chosen = order[begin : begin + 32]
            batch = [torch.tensor(ids[index]) for index in chosen]
            batch = torch.nn.utils.rnn.pad_sequence(batch, True, self.tokenizer.pad_id)
            longest = min(LONGEST, 2 * batch.shape[1] + 32)
            special = self.tokenizer.start_id, self.tokenizer.end_id
            with torch.no_grad():
                results = beam_search(self.model, batch, BEAM, longest, *special)
            for index, result in zip(chosen, results, strict=True):
                found[index] = result
        return found

    def texts(self, found, penalty):
        """The best texts of a search."""
        return self.tokenizer.detokenize([best_of(one, penalty) for one in found])


def main():
    """Does the job of a JSON file; writes the result to another."""
    import torch

    from benchmarks.quality_peers import lines, scores, write_json
    from kformer.training import configure_machine

    job_file, result_file = map(pathlib.Path, sys.argv[1:])
    job = json.loads(job_file.read_text(encoding="utf-8"))
    torch.set_num_threads(job["threads"])
    configure_machine(keep_memory=True)  # As `kformer train` does.
    peer = Peer(job)
    result = peer.train()
    if not job["is_trial"]:
        found = peer.search(lines(job, "val", "source"))
        val = {
            penalty: scores(job, "val", peer.texts(found, penalty))["bleu"] for penalty in PENALTIES
        }
        penalty = max(val, key=val.get)
        texts = peer.texts(peer.search(lines(job, job["test"], "source")), penalty)
        result |= {"penalty": penalty, "val": val[penalty], "texts": texts}
    write_json(result_file, result)


if __name__ == "__main__":
    main()
