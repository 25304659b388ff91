"""Bars made of characters."""


def bar(value, highest, width):
    """A bar of that width, filled in proportion."""
    return ("#" * round(width * value / highest)).ljust(width)
