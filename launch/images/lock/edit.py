"""One value of a YAML file, changed in its place: comments and layout stay."""

from collections.abc import Iterable


def put(text: str, place: Iterable[str], value: str) -> str:
    """The text with another plain value at a place, which is a list of keys.

    Raises:
        KeyError: there is no such place.
    """
    import yaml

    node = yaml.compose(text)
    for key in place:
        below = {name.value: one for name, one in node.value} if isinstance(node, yaml.MappingNode) else {}
        node = below[key]
    return text[: node.start_mark.index] + value + text[node.end_mark.index :]
