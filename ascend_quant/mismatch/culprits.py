"""What is to blame: the model, a kind of layers, a layer, an expert, channels, the embedding or the head.

Absolute: a layer is bad at BAD times the error of a Gaussian layer (gaussian.py), so that a bad kind is seen, which
has nothing better of its kind beside it. Relative: one that is far from its peers (median + 5 MAD and three medians,
MAD the median absolute deviation; peers are its kind, or all layers where those are few), has an even share of the
squared error, and more than WELL times a Gaussian's: below that there is nothing to blame, since trained layers differ
several times among themselves. Channels: a few that make all others LIMIT times as coarse; where they come from the
embedding it is named, and not the layers that read it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from ascend_quant.mismatch.channels import LIMIT
from ascend_quant.mismatch.layers import LayerError

BAD = 2.0  # times a Gaussian layer's error; random models have 0.8 to 1.4, small trained ones 0.2 to 0.8
WELL = 1.0  # with less no layer is blamed, however little its peers have
DEVIATIONS = 5
MEDIANS = 3
FEWEST_PEERS = 5
FEWEST_KINDS = 3
MOST_OF = 0.75  # of a kind's layers, or of a model's


@dataclass(frozen=True)
class Culprit:
    """One cause.

    Attributes:
        what: model, kind, layer, expert, channels, embedding or head.
        name: the kind's, the layer's, the table's; of channels, the first layer that has them; of the model, "".
        times: its error over that of a Gaussian layer (of a kind, the median); of channels, embedding and head, how
            much coarser they make the others.
        layers: that would have to keep their dtype; none where that helps nothing.
        channels: that lie out.
        experts: that are bad.
    """

    what: str
    name: str
    times: float
    layers: tuple[str, ...] = ()
    channels: tuple[int, ...] = ()
    experts: tuple[int, ...] = ()


def culprits(layers: Sequence[LayerError], tables: Sequence[dict] = ()) -> list[Culprit]:
    """All that is to blame, causes before what they alone explain.

    Args:
        tables: embedding and head (`EmbeddingSeen.summary`, `HeadSeen.summary`).
    """
    found: list[Culprit] = []
    for rule in (_embedding, _hidden, _head, _model, _kinds, _layers, _experts, _channels):
        explained = {name for culprit in found for name in culprit.layers}
        rest = [layer for layer in layers if layer.name not in explained]
        found += rule(rest, tables, found)
    return found


def _embedding(layers: Sequence[LayerError], tables: Sequence[dict], _: object) -> Iterator[Culprit]:
    for table in tables:
        if table["what"] != "embedding" or table["gain"] < LIMIT:
            continue
        readers = [layer for layer in layers if layer.gain >= LIMIT and set(layer.channels) & set(table["channels"])]
        if readers:
            names = tuple(layer.name for layer in readers)
            yield Culprit("embedding", table["name"], table["gain"], names, tuple(table["channels"]))


def _head(_: object, tables: Sequence[dict], found: Sequence[Culprit]) -> Iterator[Culprit]:
    known = {channel for culprit in found for channel in culprit.channels}
    for table in tables:
        if table["what"] == "head" and table["gain"] >= LIMIT and not known.issuperset(table["channels"]):
            yield Culprit("head", table["name"], table["gain"], (), tuple(table["channels"]))


def _model(layers: Sequence[LayerError], *_: object) -> Iterator[Culprit]:
    bad = [layer for layer in layers if layer.times > BAD]
    if len({layer.kind for layer in bad}) > 1 and len(bad) >= MOST_OF * len(layers):
        yield Culprit("model", "", median(layer.times for layer in layers))


def _kinds(layers: Sequence[LayerError], _: object, found: Sequence[Culprit]) -> Iterator[Culprit]:
    """Bad as a whole: against the Gaussian, or against the other kinds."""
    if _is_model(found):
        return
    kinds: dict[str, list[LayerError]] = {}
    for layer in layers:
        kinds.setdefault(layer.kind, []).append(layer)
    middles = {kind: median(layer.times for layer in held) for kind, held in kinds.items()}
    for kind, held in kinds.items():
        others = [middle for other, middle in middles.items() if other != kind]
        limit = min(BAD, max(WELL, MEDIANS * median(others))) if len(others) + 1 >= FEWEST_KINDS else BAD
        even = sum(layer.share for layer in held) >= 1 / len(kinds)
        if len(held) > 1 and even and sum(layer.times > limit for layer in held) >= MOST_OF * len(held):
            common = set.intersection(*(set(layer.channels) for layer in held))
            names = tuple(layer.name for layer in held)
            yield Culprit("kind", kind, middles[kind], names, tuple(sorted(common)))


def _layers(layers: Sequence[LayerError], _: object, found: Sequence[Culprit]) -> Iterator[Culprit]:
    for layer in layers:
        far = layer.times > WELL and layer.error > _limit(_peers(layer, layers))
        if layer.share >= 1 / len(layers) and (far or (layer.times > BAD and not _is_model(found))):
            yield _expert(layer) or Culprit("layer", layer.name, layer.times, (layer.name,), layer.channels)


def _experts(layers: Sequence[LayerError], _: object, found: Sequence[Culprit]) -> Iterator[Culprit]:
    """In layers whose sum of experts looks well, since few tokens reach the bad ones."""
    for layer in layers if not _is_model(found) else ():
        if culprit := _expert(layer):
            yield culprit


def _hidden(layers: Sequence[LayerError], *_: object) -> Iterator[Culprit]:
    """Channels that layers of several kinds and blocks have in common: those of the hidden state."""
    for culprit, group in _groups(layers):
        if len({layer.kind for layer in group}) > 1 and len({tuple(_position(layer)) for layer in group}) > 1:
            yield culprit


def _channels(layers: Sequence[LayerError], *_: object) -> Iterator[Culprit]:
    """Also where the few are so large that their own products hide the error of the others."""
    for culprit, _ in _groups(layers):
        yield culprit


def _groups(layers: Sequence[LayerError]) -> Iterator[tuple[Culprit, list[LayerError]]]:
    """Layers whose outlying channels are, in part, the same."""
    groups: list[list[LayerError]] = []
    for layer in sorted(layers, key=_position):
        if layer.gain < LIMIT:
            continue
        for group in groups:
            if set(group[0].channels) & set(layer.channels):
                group.append(layer)
                break
        else:
            groups.append([layer])
    for group in groups:
        channels = tuple(sorted({channel for layer in group for channel in layer.channels}))
        names, gain = tuple(layer.name for layer in group), max(layer.gain for layer in group)
        yield Culprit("channels", group[0].name, gain, names, channels), group


def _expert(layer: LayerError) -> Culprit | None:
    """The experts of a layer that are bad, and far from its others."""
    if len(layer.experts) < FEWEST_KINDS:
        return None
    limit = max(BAD, MEDIANS * median(times for _, times in layer.experts))
    bad = {expert: times for expert, times in layer.experts if times > limit}
    return Culprit("expert", layer.name, max(bad.values()), (layer.name,), layer.channels, tuple(bad)) if bad else None


def _peers(layer: LayerError, layers: Sequence[LayerError]) -> Sequence[LayerError]:
    same = [other for other in layers if other.kind == layer.kind]
    return same if len(same) >= FEWEST_PEERS else layers


def _limit(layers: Sequence[LayerError]) -> float:
    middle = median(layer.error for layer in layers)
    deviation = median(abs(layer.error - middle) for layer in layers)
    return max(middle + DEVIATIONS * deviation, MEDIANS * middle)


def _is_model(found: Sequence[Culprit]) -> bool:
    return any(culprit.what == "model" for culprit in found)


def _position(layer: LayerError) -> list[int]:
    """The numbers in a layer's name."""
    return [int(part) for part in layer.name.split(".") if part.isdigit()]
