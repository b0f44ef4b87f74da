"""Many jobs over time: their states, their records and the store that survives a crash."""
