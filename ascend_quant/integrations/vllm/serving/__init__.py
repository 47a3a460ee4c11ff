"""Requests and calls while an engine refuses to serve: failures, messages to clients, and recovery.

requests.py      ends requests with the reason, and keeps the engine alive
calls.py         calls to the workers that load weights
http_errors.py   responses to HTTP clients
hooks.py         monkeypatches of vLLM for all of this
"""
