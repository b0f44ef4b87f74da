"""How the kernel enforces a sandbox: synchronous, standard library (and python-prctl) only, and without any idea of policy."""
