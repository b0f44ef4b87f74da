"""One sandboxed process, from the fork server to its exit report: the first asynchronous layer."""
