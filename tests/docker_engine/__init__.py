"""A Docker engine for the tests of containers and images: the host's own if it is new enough, else a private one."""

from docker_engine.engine import Engine, engine

__all__ = ["Engine", "engine"]
