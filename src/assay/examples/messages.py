"""An application to send messages with: words are counted by the rank that owns them.

assay compare buddy --app examples/messages.py:count_words --words 1
"""

import numpy as np

WORDS = 50_000


def count_words(comm):
    """Every rank reads its part of a text and sends each word's number to the rank that counts it."""
    own = WORDS // comm.size
    counts = np.zeros(own + comm.size, np.int64)

    def count(rows):  # many messages at once, a row each
        np.add.at(counts, rows[:, 0], 1)

    comm.on(0, count)
    text = np.random.default_rng(comm.rank)
    for _ in range(20):
        words = text.zipf(1.3, 4000) % (own * comm.size)
        comm.send(words // own, words % own)  # returns at once
        comm.poll()  # handles what has come
    comm.quiet()  # until everything of everybody is handled
    return counts
