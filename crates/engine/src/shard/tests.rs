//! What a shard does with a resource, seen from its inputs and its sockets.
