"""A process of `kformer.serving.batch.pools.Processes`.

It reads pickled shards on standard input, and writes for each a pickled pair to standard output:
what `translate_shard` returned, and the exception that it raised. One of them is `None`.
"""

import contextlib
import os
import pickle
import sys

from kformer.serving.batch.shards import translate_shard

replies = os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)  # What a library prints is no reply.
with contextlib.suppress(EOFError):  # The job has ended.
    while True:
        shard = pickle.load(sys.stdin.buffer)
        try:
            reply = translate_shard(*shard), None
        except Exception as error:
            reply = None, error
        pickle.dump(reply, replies)
        replies.flush()
