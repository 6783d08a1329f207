"""Shows what `kformer serve` promises, on loopback.

    python benchmarks/serving.py same [--count 2000] [--dtype float32]
    python benchmarks/serving.py throughput [--shapes tiny,base] [--dtypes float32,int8]
        [--searches greedy,beam4] [--clients 32] [--seconds 20] [--engine ray]
    python benchmarks/serving.py overload [--shape base] [--seconds 120]
    python benchmarks/serving.py drain [--engine ray]
    python benchmarks/serving.py versions [--count 5]

`same` asks by each protocol, with clients that no one here wrote, eight requests at a time, and
compares with `SavedModelTranslator`. `throughput` has clients that send one sentence after the
other, and the same for FastAPI with CTranslate2, the server that users write themselves; "of
offline" is the gain over batches of one, as a share of what the translator gains by batches of the
server's mean size. `overload` sends ten times what the server takes, whatever it answers. `drain`
sends SIGTERM with 50 requests in flight. `versions` adds versions under load, and a broken one.

The load comes from aiohttp in a process of its own, whose CPU time is printed.
"""

import argparse
import asyncio
import base64
import concurrent.futures
import contextlib
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from benchmarks.common import (  # noqa: E402
    ROOT,
    environment,
    names,
    print_command,
    print_head,
    print_row,
)

FROZEN = ROOT / "saved_models" / "frozen"
DEADLINE_S = 60
NAME = "en-zh"
PREDICT = f"/v1/models/{NAME}:predict"


# The load, in a process of its own.


async def closed_loop(url, texts, clients, seconds):
    """Clients that send one sentence after the other: (status, latency, end) of each request.

    SIGTERM ends it earlier.
    """
    import aiohttp

    found, begin = [], time.perf_counter()
    end = begin + seconds
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def client(number):
            while time.perf_counter() < end and not ended.is_set():
                number += clients
                body = {"instances": [texts[number % len(texts)]]}
                start = time.perf_counter()
                async with session.post(url, json=body) as answered:
                    await answered.read()
                now = time.perf_counter()
                found.append((answered.status, now - start, now - begin))

        await asyncio.gather(*(client(number) for number in range(clients)))
    return found


async def open_loop(url, texts, rate, seconds):
    """Requests at a rate, whatever comes back: (status, latency, end) of each, 0 for a lost one."""
    import aiohttp

    found, tasks = [], set()
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=3 * DEADLINE_S)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:

        async def ask(number):
            start, status = time.perf_counter(), 0
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                body = {"instances": [texts[number % len(texts)]]}
                async with session.post(url, json=body) as answered:
                    await answered.read()
                    status = answered.status
            now = time.perf_counter()
            found.append((status, now - start, now - begin))

        begin = time.perf_counter()
        for number in range(int(rate * seconds)):
            await asyncio.sleep(max(0, begin + number / rate - time.perf_counter()))
            task = asyncio.create_task(ask(number))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await asyncio.gather(*tasks)
    return found


def generate(kind, url, texts, amount, seconds):
    """Runs a loop in a process of its own: its statuses and latencies, and its CPU seconds."""
    job = json.dumps({"kind": kind, "arguments": [url, texts, amount, seconds]})
    command = [sys.executable, __file__, "generate"]
    result = subprocess.run(command, input=job, capture_output=True, text=True, check=True)
    found = json.loads(result.stdout)
    return found["answers"], found["cpu"]


def rate_of(answers, seconds):
    """Answers per second of a closed loop, while all of its clients asked.

    Batches end together, so the time counts from the first end, and what ended then does not.
    """
    ends = sorted(end for _, _, end in answers if end <= seconds)
    return sum(end > ends[0] + 0.05 for end in ends) / (ends[-1] - ends[0])


def run_generator():
    job = json.load(sys.stdin)
    loop = {"closed": closed_loop, "open": open_loop}[job["kind"]]
    answers = asyncio.run(loop(*job["arguments"]))
    usage = resource.getrusage(resource.RUSAGE_SELF)
    json.dump({"answers": answers, "cpu": usage.ru_utime + usage.ru_stime}, sys.stdout)


# Servers.


@contextlib.contextmanager
def serving(path, *arguments):
    """A server process that is ready: (process, URL, port of gRPC)."""
    command = [sys.executable, "-m", "kformer_cli", "serve", f"{NAME}={path}", "--port", "0"]
    process = subprocess.Popen(
        [*command, "--grpc-port", "0", *map(str, arguments)],
        cwd=ROOT,
        env=environment("tensorflow"),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        lines = ""
        while "Ready on" not in lines:
            line = process.stdout.readline()
            assert line, "the server did not start"
            lines += line
        url = re.search(r"Ready on (\S+)", lines)[1]
        yield process, url, int(re.search(r"gRPC on \S+:(\d+)", lines)[1])
    finally:
        process.terminate()
        process.wait(60)


PEER = """
import sys
import ctranslate2, fastapi, pydantic, uvicorn
import kformer
folder, tokenizer, beam, threads, port = sys.argv[1:]
tokenizer = kformer.Tokenizer.load(tokenizer)
engine = ctranslate2.Translator(folder, inter_threads=1, intra_threads=int(threads))
app = fastapi.FastAPI()

class Body(pydantic.BaseModel):
    instances: list[str]

@app.post("/translate")
def translate(body: Body):
    ids = [tokenizer.tokenize(text, special_tokens=True) for text in body.instances]
    rows = [[engine_tokens[i] for i in row] for row in ids]
    found = engine.translate_batch(rows, beam_size=int(beam), min_decoding_length=24,
                                   max_decoding_length=24)
    return {"predictions": [" ".join(one.hypotheses[0]) for one in found]}

import json, pathlib
vocabulary = pathlib.Path(folder) / "source_vocabulary.json"
if not vocabulary.exists():
    vocabulary = pathlib.Path(folder) / "shared_vocabulary.json"
engine_tokens = json.loads(vocabulary.read_text())
uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="error", access_log=False)
"""


@contextlib.contextmanager
def peer(folder, dtype, beam, threads):
    """FastAPI with CTranslate2: the URL to post to."""
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = [folder / f"ctranslate2-{dtype}", folder / "run" / "tokenizer", beam, threads, port]
    process = subprocess.Popen(
        [sys.executable, "-c", PEER, *map(str, arguments)],
        env=environment("torch"),
    )
    try:
        wait_for_port(port, process)
        yield f"http://127.0.0.1:{port}/translate"
    finally:
        process.terminate()
        process.wait(60)


def wait_for_port(port, process, seconds=120):
    import socket

    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.2)
    raise RuntimeError("the peer did not start")


def metric(url, name):
    import urllib.request

    text = urllib.request.urlopen(f"{url}/metrics").read().decode()
    return sum(float(v) for v in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE))


def make_models(shapes, searches, work):
    """Models of random weights, as benchmarks/inference.py makes them: folder of each shape."""
    from benchmarks import inference

    systems = ("saved_model", "saved_model-int8", "ctranslate2-float32", "ctranslate2-int8")
    options = argparse.Namespace(batches=[64], searches=searches, systems=systems, run=None)
    for shape in shapes:
        folder = pathlib.Path(work) / shape
        if not (folder / "texts.json").exists():
            code = (
                "import argparse, pathlib, sys; from benchmarks import inference; "
                f"inference.make(argparse.Namespace(**{vars(options)!r}), {shape!r}, "
                f"pathlib.Path({str(folder)!r}))"
            )
            folder.mkdir(parents=True, exist_ok=True)
            subprocess.run([sys.executable, "-c", code], check=True, env=environment("tensorflow"))
        yield shape, folder, json.loads((folder / "texts.json").read_text()), inference.SEARCHES


# The protocols.


class Clients(threading.local):
    """A client of each protocol, for each thread: methods of texts and a signature.

    They return the outputs by name. LibreTranslate's has translations alone.
    """

    def __init__(self, url, port):
        import grpc
        import requests
        import tritonclient.http as triton
        from tensorflow_serving.apis import prediction_service_pb2_grpc

        self._url, self._session = url, requests.Session()
        channel = grpc.insecure_channel(f"127.0.0.1:{port}")
        self._stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        self._triton = triton.InferenceServerClient(url.removeprefix("http://"))

    def _post(self, path, body):
        return self._session.post(self._url + path, json=body).json()

    def rows(self, texts, signature):
        encoded = [{"b64": base64.b64encode(text.encode()).decode()} for text in texts]
        body = {"signature_name": signature, "instances": encoded}
        rows = self._post(PREDICT, body)["predictions"]
        return {name: [row[name] for row in rows] for name in rows[0]}

    def columns(self, texts, signature):
        return self._post(PREDICT, {"signature_name": signature, "inputs": texts})["outputs"]

    def grpc(self, texts, signature):
        import tensorflow as tf
        from tensorflow_serving.apis import predict_pb2

        request = predict_pb2.PredictRequest()
        request.model_spec.name, request.model_spec.signature_name = NAME, signature
        request.inputs["text"].CopyFrom(tf.make_tensor_proto(texts))
        outputs = self._stub.Predict(request).outputs
        return {name: tf.make_ndarray(value) for name, value in outputs.items()}

    def open_inference(self, texts, signature):
        import tritonclient.http as triton

        tensor = triton.InferInput("text", [len(texts)], "BYTES")
        tensor.set_data_from_numpy(np.array(texts, object))
        found = self._triton.infer(NAME, [tensor], parameters={"signature_name": signature})
        names = [output["name"] for output in found.get_response()["outputs"]]
        return {name: found.as_numpy(name) for name in names}

    def libretranslate(self, texts, signature):
        body = {"q": texts, "source": "en", "target": "zh", "alternatives": 3}
        if signature != "n_best":
            del body["alternatives"]
        found = self._post("/translate", body)
        best, others = found["translatedText"], found.get("alternatives", [[]] * len(texts))
        pairs = zip(best, others, strict=True)
        return {"translation": best, "translations": [[one, *more] for one, more in pairs]}


PROTOCOLS = {
    "TensorFlow Serving, rows": Clients.rows,
    "TensorFlow Serving, columns": Clients.columns,
    "TensorFlow Serving, gRPC": Clients.grpc,
    "Open Inference": Clients.open_inference,
    "LibreTranslate": Clients.libretranslate,
}


def as_texts(values):
    """Nested lists of str, of an array of bytes or lists of str."""
    if isinstance(values, bytes):
        return values.decode()
    if isinstance(values, list | np.ndarray):
        return [as_texts(value) for value in values]
    return values


def compare(answers, texts, few, expected, attention):
    """The cells of a protocol."""
    found = [
        (as_texts(one["translation"])[0], one.get("score"))
        for one in answers(texts, 1, "serving_default")
    ]
    unequal = [
        (text, one) for (text, _), one in zip(found, expected, strict=True) if text != one.text
    ]
    for text, one in unequal:
        scores = {hypothesis.text: hypothesis.score for hypothesis in one.hypotheses}
        print(f"unequal: gap of score {one.score - scores.get(text, -np.inf):.4f}", file=sys.stderr)
    gaps = [
        abs(score[0] - one.score)
        for (text, score), one in zip(found, expected, strict=True)
        if score is not None and text == one.text
    ]
    lists = [row for one in answers(texts, 32, "n_best") for row in as_texts(one["translations"])]
    wanted = [[hypothesis.text for hypothesis in one.hypotheses] for one in expected]
    equal = sum(a == b for a, b in zip(lists, wanted, strict=True))
    cells = [len(found), f"{len(found) - len(unequal)} of {len(found)}"]
    cells += [f"{max(gaps):.1e}" if gaps else "not carried", f"{equal} of {len(wanted)}"]
    if not gaps:  # LibreTranslate has neither.
        return [*cells, "not carried"]
    differences = [
        np.abs(np.array(one["attention"]) - direct["attention"]).max()
        for one, direct in zip(answers(few, 16, "attention"), attention, strict=True)
    ]
    return [*cells, f"{max(differences):.1e} of {len(few)} texts"]


# The parts.


def exported(dtype, work):
    """The frozen run as a SavedModel of a dtype."""
    if dtype == "float32":
        return FROZEN
    folder = pathlib.Path(work) / f"frozen-{dtype}"
    command = [sys.executable, "-m", "kformer_cli", "export", ROOT / "tests" / "frozen_run"]
    command += ["--output", folder, "--dtype", dtype]
    command += ["--signatures", "serving_default,n_best,attention"]
    subprocess.run([*map(str, command)], cwd=ROOT, env=environment("tensorflow"), check=True)
    return folder


def same(options):
    """Every protocol beside `SavedModelTranslator`."""
    import kformer
    from kformer.export import SavedModelTranslator

    folder = exported(options.dtype, options.work)
    time = {"categories": "time"}  # What the frozen run was trained on.
    pairs = kformer.examples.generate_pairs(4 * options.count, split="test", seed=1, **time)
    # LibreTranslate's clients get digits and full stops as a document has them.
    texts = [pair.source for pair in pairs if pair.source.replace(" ", "").isalpha()]
    texts = texts[: options.count]
    translator = SavedModelTranslator(folder)
    expected = translator.translate(texts, n_best=4)
    few = texts[: min(len(texts), 320)]
    attention = [
        {
            name: value.numpy()
            for name, value in translator._module.signatures["attention"](
                text=np.array(few[i : i + 16])
            ).items()
        }
        for i in range(0, len(few), 16)
    ]
    print_head(
        ["protocol", "requests", "equal", "score within", "n-best equal", "attention within"]
    )
    with serving(folder) as (_, url, port), concurrent.futures.ThreadPoolExecutor(8) as pool:
        clients = Clients(url, port)
        for name, ask in PROTOCOLS.items():

            def answers(texts, size, signature, ask=ask):
                """The outputs of each request, of `size` texts each, eight at a time."""
                chunks = [texts[i : i + size] for i in range(0, len(texts), size)]
                return pool.map(lambda chunk: ask(clients, chunk, signature), chunks)

            print_row(name, *compare(answers, texts, few, expected, attention))


def offline_rate(folder, texts, batch, threads):
    """Texts per second of `SavedModelTranslator` with batches of a size."""
    code = f"""
import json, sys, time
import tensorflow as tf
tf.config.threading.set_intra_op_parallelism_threads({threads})
from kformer.export import SavedModelTranslator
texts = json.load(sys.stdin)[:{batch}]
translator = SavedModelTranslator({str(folder)!r})
translator(texts)
count, start = 0, time.perf_counter()
while time.perf_counter() < start + 4:
    translator(texts)
    count += len(texts)
print(count / (time.perf_counter() - start))
"""
    result = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps(texts),
        capture_output=True,
        text=True,
        env=environment("tensorflow"),
        check=True,
    )
    return float(result.stdout.split()[-1])


def throughput(options):
    """Clients of one sentence, beside the offline translator and FastAPI with CTranslate2."""
    columns = "model,dtype,search,texts/s,mean batch,p50 ms,p99 ms,of offline,peer texts/s,ratio"
    print_head([*columns.split(","), "generator's CPU s"])
    for shape, folder, texts, beams in make_models(options.shapes, options.searches, options.work):
        for dtype in options.dtypes:
            for search in options.searches:
                suffix = "" if dtype == "float32" else f"-{dtype}"
                path = folder / f"saved-{search}{suffix}"
                cells = one_throughput(options, folder, path, texts, dtype, beams[search])
                print_row(shape, dtype, search, *cells)


def one_throughput(options, folder, path, texts, dtype, beam):
    load = (texts, options.clients)
    with serving(path, "--engine", options.engine) as (_, url, _):
        generate("closed", url + PREDICT, *load, 3)
        names = ("kformer_batch_texts_sum", "kformer_batch_texts_count")
        before = [metric(url, name) for name in names]
        answers, cpu = generate("closed", url + PREDICT, *load, options.seconds)
        after = [metric(url, name) for name in names]
    assert {status for status, *_ in answers} == {200}
    done, batches = (b - a for a, b in zip(before, after, strict=True))
    mean = done / batches
    rate = rate_of(answers, options.seconds)
    latencies = np.array([seconds for _, seconds, _ in answers]) * 1000
    threads = os.cpu_count()
    one = offline_rate(path, texts, 1, threads)
    many = offline_rate(path, texts, max(1, round(mean)), threads)
    with peer(folder, dtype, beam, threads) as peer_url:
        generate("closed", peer_url, *load, 2)
        others, _ = generate("closed", peer_url, *load, options.seconds)
    assert {status for status, *_ in others} == {200}
    other = rate_of(others, options.seconds)
    return [
        *(f"{rate:.1f}", f"{mean:.1f}"),
        *(f"{np.percentile(latencies, share):.0f}" for share in (50, 99)),
        f"{rate / many:.2f} ({rate / one:.1f} of {many / one:.1f})",
        *(f"{other:.1f}", f"{rate / other:.2f}", f"{cpu:.1f}"),
    ]


def overload(options):
    """Ten times what the server takes, open loop."""
    import psutil

    ((_, folder, texts, _),) = make_models([options.shape], ["greedy"], options.work)
    path = folder / "saved-greedy"
    with serving(path, "--deadline-s", DEADLINE_S) as (process, url, _):
        memory = psutil.Process(process.pid).memory_info
        answers, _ = generate("closed", url + PREDICT, texts, 32, 10)
        before = rate_of(answers, 10)
        start = memory().rss
        rate = 10 * before if options.shape == "base" else 3 * before
        answers, cpu = generate("open", url + PREDICT, texts, rate, options.seconds)
        end = memory().rss
        again, _ = generate("closed", url + PREDICT, texts, 32, 10)
    accepted = [seconds for status, seconds, _ in answers if status == 200]
    statuses = [status for status, *_ in answers]
    counts = {status: statuses.count(status) for status in set(statuses)}
    print(f"rate before: {before:.1f} texts/s; load: {rate:.0f} a second for {options.seconds} s")
    print(f"answers: {counts}")
    print(f"p50 and p99 of the accepted: {np.percentile(accepted, [50, 99]).round(2)} s")
    print(f"deadline: {DEADLINE_S} s; memory: {start / 2**20:.0f} MiB, then {end / 2**20:.0f} MiB")
    print(f"rate afterwards: {rate_of(again, 10):.1f} texts/s; generator's CPU: {cpu:.0f} s")


def drain(options):
    """SIGTERM with 50 requests in flight."""
    import requests

    limits = ("--drain-s", 300, "--deadline-s", 600)
    with serving(FROZEN, "--engine", options.engine, *limits) as (process, url, _):
        with concurrent.futures.ThreadPoolExecutor(50) as pool:
            body = {"instances": [f"half past {n}" for n in ("nine", "ten", "two")] * 60}
            asked = [
                pool.submit(requests.post, url + PREDICT, json=body, timeout=600) for _ in range(50)
            ]
            while metric(url, "kformer_accepted_texts") < 25 * 180:
                time.sleep(0.01)
            process.send_signal(signal.SIGTERM)
            statuses = [one.result().status_code for one in asked]
        code = process.wait(120)
    print(f"answered: {statuses.count(200)} of 50; exit code {code}")


def versions(options):
    """New versions under load, then a broken one."""
    import requests

    with tempfile.TemporaryDirectory() as work:
        folder = pathlib.Path(work) / NAME
        shutil.copytree(FROZEN, folder)
        with serving(folder, "--poll-s", 0.5) as (process, url, _):
            import psutil

            load = subprocess.Popen(
                [sys.executable, __file__, "generate"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            job = {"kind": "closed", "arguments": [url + PREDICT, ["half past nine"], 8, 600]}
            load.stdin.write(json.dumps(job))
            load.stdin.close()

            def state():
                found = requests.get(f"{url}/v1/models/{NAME}").json()["model_version_status"]
                return {int(one["version"]): one["state"] for one in found}

            begin = time.monotonic()
            for number in range(2, 2 + options.count):
                aside = pathlib.Path(work) / "aside"
                shutil.copytree(FROZEN / "1", aside)
                aside.rename(folder / str(number))
                while state() != {number: "AVAILABLE"}:
                    assert time.monotonic() < begin + 500, "the versions took too long"
                    time.sleep(0.1)
                memory = psutil.Process(process.pid).memory_info().rss / 2**20
                print(f"version {number} after {time.monotonic() - begin:.1f} s, {memory:.0f} MiB")
            last = options.count + 1
            shutil.copytree(FROZEN / "1", folder / "99")
            (folder / "99" / "saved_model.pb").write_bytes(b"broken")
            while state() != {99: "END", last: "AVAILABLE"}:
                assert time.monotonic() < begin + 500, "the broken version took too long"
                time.sleep(0.1)
            print(f"broken version: {state()}")
            load.terminate()
            answers = json.loads(load.stdout.read())["answers"]
    statuses = [status for status, *_ in answers]
    print(f"requests: {len(statuses)}, of which answered: {statuses.count(200)}")


PARTS = {part.__name__: part for part in (same, throughput, overload, drain, versions)}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = "{" + ",".join(PARTS) + "}"
    parser.add_argument("part", choices=[*PARTS, "generate"], metavar=known)
    parser.add_argument("--count", type=int)
    parser.add_argument("--shapes", default="tiny,base", type=names)
    parser.add_argument("--shape", default="base")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--dtypes", default="float32,int8", type=names)
    parser.add_argument("--searches", default="greedy,beam4", type=names)
    parser.add_argument("--engine", default="local", choices=("local", "ray"))
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seconds", type=int)
    parser.add_argument("--work", help="Folder for the models, to keep them for the next time.")
    options = parser.parse_args()
    if options.part == "generate":
        return run_generator()
    defaults = {"same": 2000, "versions": 5}
    options.count = options.count or defaults.get(options.part)
    options.seconds = options.seconds or (120 if options.part == "overload" else 20)
    print_command()
    with tempfile.TemporaryDirectory() as work:
        options.work = options.work or work
        PARTS[options.part](options)


if __name__ == "__main__":
    main()
