"""How a split model is spread over its devices."""


def largest_share(model):
    """The largest share of the weights and the optimizer's variables that one device has."""
    bytes_of, total = {}, 0
    for variable in [*model.variables, *model.optimizer.variables]:
        total += variable.value.nbytes
        for shard in variable.value.addressable_shards:
            bytes_of[shard.device.id] = bytes_of.get(shard.device.id, 0) + shard.data.nbytes
    return max(bytes_of.values()) / total
