//! Links between two nodes on the loopback.
