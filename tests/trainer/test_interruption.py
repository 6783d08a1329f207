"""Ctrl-C and SIGTERM in a training: the handlers alone; test_cli has whole processes."""

import os
import signal
import threading

import pytest

from kformer.trainer.interruption import Interruption, TrainingInterrupted

pytestmark = [
    pytest.mark.any_backend,
    pytest.mark.skipif(os.name == "nt", reason="os.kill ends a process on Windows"),
]


class FakeCheckpoint:
    step, saved, is_last = 12, 0, False

    def is_last_batch(self):
        return self.is_last

    def save(self):
        self.saved += 1


@pytest.fixture(autouse=True)
def pythons_own_handler():
    """A shell may have started the tests in the background, where it lets SIGINT be ignored."""
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, former)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_waits_for_the_step_and_a_second_ctrl_c_does_not(number, capsys):
    former = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    checkpoint, said = FakeCheckpoint(), []
    with Interruption(checkpoint, said.append) as interruption:
        interruption.on_train_batch_end(0)
        os.kill(os.getpid(), number)
        assert "saving a checkpoint at the end of this step" in said[0]
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            threading.Event().wait(5)
        checkpoint.is_last = True
        interruption.on_train_batch_end(1)
        assert checkpoint.saved == 0, "at the end of an epoch the validation comes first"
        with pytest.raises(TrainingInterrupted, match="at step 12") as caught:
            interruption.on_epoch_end(0)
        assert checkpoint.saved == 1 and caught.value.signal_number == number
    assert former == [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]


def test_in_another_thread_signals_do_what_they_did():
    former, seen = signal.getsignal(signal.SIGINT), []

    def train():
        with Interruption(FakeCheckpoint(), print):
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert seen == [former]
