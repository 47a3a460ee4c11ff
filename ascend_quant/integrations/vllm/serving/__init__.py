"""Requests and calls while an engine refuses to serve: failures, messages to clients, and recovery.

requests.py      requests end with the reason, the engine lives on
calls.py         calls to the workers, by which weights come
http_errors.py   what HTTP clients are told
hooks.py         monkeypatches of vLLM for all of this
"""
