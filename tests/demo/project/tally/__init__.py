"""Counts the words of a text and shows them as bars."""

import re
from collections import Counter

import brightly

WORD = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)?")


def words(text):
    """The words of a text, in lower case."""
    return [word.lower() for word in WORD.findall(text)]


def tally(text, most=10):
    """The most frequent words and how often they occur, ties in order of the
    alphabet."""
    counts = Counter(words(text))
    return sorted(counts.items(), key=lambda item: -item[1])[:most]


def bars(text, width=20, most=10):
    """A line with a bar for each of the most frequent words."""
    counted = tally(text, most)
    if not counted:
        return []
    longest = max(len(word) for word, _ in counted)
    highest = counted[0][1]
    return [
        f"{word:>{longest}} {brightly.bar(count, highest, width)} {count}"
        for word, count in counted
    ]
