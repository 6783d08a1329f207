"""Rows of ids inside a TensorFlow graph."""


def padded_rows(rows, limit, pad_id, suffix=()):
    """Ragged ids to a dense batch, cut at a limit.

    Args:
        rows: ragged int32 `[B, (S)]`.
        limit: int, the most ids of a row.
        pad_id: int, what shorter rows are filled up with.
        suffix: sequence of ints with which each row ends, and a row that was cut as well.

    Returns:
        int32 `[B, S]` and, boolean `[B]`, which rows were cut.
    """
    import tensorflow as tf

    truncated = tf.cast(rows.row_lengths(), tf.int32) > limit
    ids = rows[:, :limit].to_tensor(default_value=pad_id)
    if suffix:
        columns = tf.range(tf.shape(ids)[1]) - (limit - len(suffix))
        ends = tf.gather(
            tf.constant(suffix, tf.int32), tf.clip_by_value(columns, 0, len(suffix) - 1)
        )
        ids = tf.where(truncated[:, None] & (columns >= 0)[None, :], ends[None, :], ids)
    return ids, truncated
