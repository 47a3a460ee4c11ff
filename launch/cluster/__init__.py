"""The control side of a run: reaches the hosts, waits until they have joined, watches them, keeps logs, ends all."""
