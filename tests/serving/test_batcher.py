"""Batches: fair, by tokens and time, of similar lengths; whoever leaves takes the rest along."""

import asyncio
import concurrent.futures
import threading

import numpy as np
import pytest

from kformer.serving.batcher import Batcher, BatchLimits, estimated_tokens
from kformer.serving.interface import DeadlineExceeded, Draining, ModelFailed

pytestmark = pytest.mark.any_backend


class Model:
    """Reverses texts, and writes their language behind. It computes a batch when it is let."""

    def __init__(self, is_held=False):
        self.batches = []
        self.may_compute = threading.Semaphore(0 if is_held else 1000)

    def __call__(self, signature, texts, languages):
        self.batches.append(list(texts))
        assert self.may_compute.acquire(timeout=20)
        if b"poison" in texts:
            raise ValueError("poison")
        ends = languages or [b""] * len(texts)
        rows = [text[::-1] + end for text, end in zip(texts, ends, strict=True)]
        return {"translation": np.array(rows, object)}


def run(scenario, model, max_tokens=10**6, max_texts=8, wait=0.0, **options):
    """Runs a scenario, a coroutine function of a batcher."""

    async def inside():
        with concurrent.futures.ThreadPoolExecutor(1) as executor:
            batcher = Batcher(model, BatchLimits(max_tokens, max_texts, wait), executor, **options)
            try:
                return await asyncio.wait_for(scenario(batcher), 30)
            finally:
                model.may_compute.release(1000)
                await batcher.close()

    return asyncio.run(inside())


async def until(condition):
    while not condition():
        await asyncio.sleep(0.001)


def test_texts_come_back_in_their_order():
    texts = [b"x" * (7 * i % 11) + b"%d" % i for i in range(50)]

    async def scenario(batcher):
        return await batcher.run("s", texts)

    outputs = run(scenario, Model())
    assert list(outputs["translation"]) == [text[::-1] for text in texts]


def test_one_text_beside_5000_waits_for_at_most_three_batches():
    model = Model(is_held=True)

    async def scenario(batcher):
        many = asyncio.create_task(batcher.run("s", [b"m" * (i % 300) for i in range(5000)]))
        await until(lambda: model.batches)
        one = asyncio.create_task(batcher.run("s", [b"one"]))
        await asyncio.sleep(0)
        model.may_compute.release(3)
        assert (await one)["translation"][0] == b"eno"
        assert not many.done()
        many.cancel()

    run(scenario, model)
    assert any(b"one" in batch for batch in model.batches[:3])


def test_requests_that_do_not_fit_are_passed_over_at_most_twice():
    """A long text waits while shorter ones come without end."""
    model = Model(is_held=True)

    async def scenario(batcher):
        first = asyncio.create_task(batcher.run("s", [b"first"]))
        await until(lambda: model.batches)
        waiting = [asyncio.create_task(batcher.run("s", [b"short"])) for _ in range(8)]
        await asyncio.sleep(0)
        long = asyncio.create_task(batcher.run("s", [b"l" * 400]))
        await asyncio.sleep(0)
        while not long.done():
            waiting += [asyncio.create_task(batcher.run("s", [b"short"])) for _ in range(8)]
            await asyncio.sleep(0)
            count = len(model.batches)
            model.may_compute.release()
            await until(lambda count=count: len(model.batches) > count or long.done())
        for task in (first, *waiting):
            task.cancel()

    run(scenario, model)
    index = next(i for i, batch in enumerate(model.batches) if b"l" * 400 in batch)
    assert index <= 4


def test_batches_keep_to_tokens_and_texts():
    model = Model()
    texts = [b"y" * (i * 37 % 500) for i in range(200)] + [b"z" * 9000]

    async def scenario(batcher):
        await batcher.run("s", texts)

    run(scenario, model, max_tokens=600, max_texts=16)
    assert sum(map(len, model.batches)) == len(texts)
    for batch in model.batches:
        padded = len(batch) * max(map(estimated_tokens, batch))
        assert len(batch) <= 16 and (padded <= 600 or len(batch) == 1)
    # Sorted by length there is little padding.
    real = sum(sum(map(estimated_tokens, batch)) for batch in model.batches)
    padded = sum(len(batch) * max(map(estimated_tokens, batch)) for batch in model.batches)
    assert padded < 1.2 * real


@pytest.mark.heavy
def test_requests_join_within_the_wait_and_signatures_do_not():
    model = Model()

    async def scenario(batcher):
        async def ask(signature, text, after):
            await asyncio.sleep(after)
            return await batcher.run(signature, [text], joins=signature != "apart")

        await asyncio.gather(ask("s", b"a", 0), ask("s", b"b", 0.02), ask("t", b"c", 0.02))
        await asyncio.gather(ask("apart", b"d", 0), ask("apart", b"e", 0.0))

    run(scenario, model, wait=0.5)
    assert model.batches == [[b"a", b"b"], [b"c"], [b"d"], [b"e"]]


def test_texts_of_several_languages_share_batches():
    """Each keeps its own, whatever the order in which they are computed."""
    model = Model()
    texts = [b"x" * (7 * i % 11) + b"%d" % i for i in range(20)]
    rows = [[b"%d" % (i % 3) for i in range(20)], [b"last"] * 20]

    async def scenario(batcher):
        return await asyncio.gather(*(batcher.run("s", texts, languages=row) for row in rows))

    for outputs, row in zip(run(scenario, model, wait=0.05), rows, strict=True):
        expected = [text[::-1] + code for text, code in zip(texts, row, strict=True)]
        assert list(outputs["translation"]) == expected
    assert len(model.batches) == 5


def test_a_failure_harms_its_own_request_alone():
    model = Model()

    async def scenario(batcher):
        asked = [batcher.run("s", [text]) for text in (b"a", b"poison", b"b")]
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert found[0]["translation"][0] == b"a" and found[2]["translation"][0] == b"b"
        assert isinstance(found[1], ModelFailed) and "poison" not in str(found[1])
        assert (await batcher.run("s", [b"ab"]))["translation"][0] == b"ba"

    run(scenario, model, wait=0.05)


def test_a_request_of_several_batches_that_fails_leaves_the_worker_alive():
    async def scenario(batcher):
        with pytest.raises(ModelFailed):
            await batcher.run("s", [b"poison"] * 9, max_texts=4)
        return await batcher.run("s", [b"good"])

    assert run(scenario, Model(), max_texts=4)["translation"][0] == b"doog"


def test_whoever_leaves_takes_along_what_has_not_begun():
    model = Model(is_held=True)

    async def scenario(batcher):
        held = asyncio.create_task(batcher.run("s", [b"held"]))
        await until(lambda: model.batches)
        leaving = asyncio.create_task(batcher.run("s", [b"leaving"]))
        late = batcher.run("s", [b"late"], deadline=asyncio.get_running_loop().time() + 0.05)
        await asyncio.sleep(0)
        leaving.cancel()
        with pytest.raises(DeadlineExceeded):
            await late
        assert batcher.waiting == 0
        model.may_compute.release(9)
        await held
        await batcher.run("s", [b"next"])

    run(scenario, model)
    assert model.batches == [[b"held"], [b"next"]]


def test_drain_answers_what_is_in_flight_and_then_refuses():
    model = Model(is_held=True)

    async def scenario(batcher):
        asked = [asyncio.create_task(batcher.run("s", [b"%d" % i])) for i in range(50)]
        await until(lambda: model.batches)
        draining = asyncio.create_task(batcher.drain(20))
        model.may_compute.release(50)
        assert len(await asyncio.gather(*asked)) == 50
        await draining
        with pytest.raises(Draining):
            await batcher.run("s", [b"new"])

    run(scenario, model)


def test_a_drain_ends_after_its_seconds():
    model = Model(is_held=True)

    async def scenario(batcher):
        asked = asyncio.create_task(batcher.run("s", [b"a"]))
        await until(lambda: model.batches)
        await batcher.drain(0.05)
        with pytest.raises(Draining):
            await asked

    run(scenario, model)


def test_rows_of_different_widths_are_padded():
    def call(signature, texts, languages):
        width = max(map(len, texts))
        tokens = [[bytes([byte]) for byte in text] + [b""] * (width - len(text)) for text in texts]
        numbers = np.array([[len(text)] * width for text in texts], np.float32)
        places = numbers.astype(np.int32)
        return {"tokens": np.array(tokens, object), "numbers": numbers, "places": places}

    class Wide(Model):
        __call__ = staticmethod(call)

    async def scenario(batcher):
        return await batcher.run("s", [b"abc", b"a", b"ab"], joins=False)

    outputs = run(scenario, Wide(), max_texts=1)
    assert outputs["tokens"].tolist() == [[b"a", b"b", b"c"], [b"a", b"", b""], [b"a", b"b", b""]]
    assert outputs["numbers"].tolist() == [[3, 3, 3], [1, 0, 0], [2, 2, 0]]
    # As in the graph, -1 is no place.
    assert outputs["places"].tolist() == [[3, 3, 3], [1, -1, -1], [2, 2, -1]]
