"""What tests hold a message to: the names and values that it gives in one line, never the sentence around them."""

import re


def line_naming(*parts: object) -> str:
    """A regular expression, for `match=` too: one line that holds every part, in any order, each as a whole word.

    Words may be left out of a part: "rollout.n: … rollouts?" holds both, in this order. A part inside a longer word or
    number is another one: "4" is not found in "40", "1.4", "4,000" or "x4"; "q_proj" is found in "layers.0.q_proj".
    """
    return "(?m:^)" + "".join(f"(?=.*{'.*'.join(map(_whole, str(part).split('…')))})" for part in parts)


def has_line_naming(text: str, *parts: object) -> bool:
    """Whether one line of the text holds every part (`line_naming`)."""
    return re.search(line_naming(*parts), text) is not None


def _whole(words: str) -> str:
    words = words.strip()
    before = r"(?<!\w)" if re.match(r"\w", words) else ""
    after = r"(?!\w)" if re.search(r"\w$", words) else ""
    if re.match(r"\d", words):
        before += r"(?<!\d[.,])"
    if re.search(r"\d$", words):
        after += r"(?![.,]\d)"
    return before + re.escape(words) + after
