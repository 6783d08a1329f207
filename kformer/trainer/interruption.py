"""Ending a training by Ctrl-C or SIGTERM, with a checkpoint."""

import contextlib
import signal
import sys
import threading

import keras

from kformer.training.hosts import Hosts

_SIGNALS = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}


class TrainingInterrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM ended a training, after a checkpoint of its last step was saved.

    Args:
        step: int. The step of the checkpoint.
        signal_number: int. The signal that ended the training.
    """

    def __init__(self, step, signal_number):
        super().__init__(f"interrupted by {_SIGNALS[signal_number]} at step {step:,}")
        self.step, self.signal_number = step, signal_number


class Interruption(keras.callbacks.Callback):
    """Ends a training at the end of the step in which a signal arrives, with a checkpoint.

    Used as a context manager, it handles Ctrl-C and SIGTERM. After the first signal the previous
    handlers apply again, so that a second Ctrl-C ends the training at once. Python allows handlers
    only in the main thread; in other threads nothing changes.

    Args:
        checkpoint: `kformer.training.Checkpoint` of the same training. It must come before this
            callback.
        report: function that takes a sentence.
        hosts: `Hosts` or `None`, default `None`. Those of the training: all end at the same step,
            whichever has the signal. `None` for one host.

    Raises:
        TrainingInterrupted: by `fit`, after a signal.
    """

    def __init__(self, checkpoint, report, hosts=None):
        super().__init__()
        self._checkpoint, self._report = checkpoint, report
        self._hosts = hosts or Hosts()
        self._signal_number, self._former = None, {}

    def __enter__(self):
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                former = signal.signal(number, self._handle)
                # A handler that Python did not install is None and cannot be restored.
                self._former[number] = signal.SIG_DFL if former is None else former
        return self

    def __exit__(self, *_):
        for number, handler in self._former.items():
            signal.signal(number, handler)
        self._former = {}

    def _handle(self, number, frame):
        self._signal_number = number
        self.__exit__()
        # If the signal interrupted a print to the same stream, printing here raises a RuntimeError.
        with contextlib.suppress(RuntimeError):
            print(file=sys.stderr)
            saving = "saving a checkpoint at the end of this step ... (Ctrl-C ends at once.)"
            self._report(f"{_SIGNALS[number]}: {saving}")

    def on_train_batch_end(self, batch, logs=None):
        # After the last batch of an epoch comes the validation, so on_epoch_end ends the training.
        if not self._checkpoint.is_last_batch():
            self._end_after_signal()

    def on_epoch_end(self, epoch, logs=None):
        self._end_after_signal()

    def _end_after_signal(self):
        number = self._hosts.greatest(self._signal_number or 0)
        if number:
            self._checkpoint.save()
            self._hosts.ends_together = True
            raise TrainingInterrupted(self._checkpoint.step, number)
