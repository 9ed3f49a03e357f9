"""Compares a result with the expectation of a case: ../README.md, "Matching"."""

COMPARISONS = {
    "$gt": lambda got, n: got > n,
    "$ge": lambda got, n: got >= n,
    "$lt": lambda got, n: got < n,
    "$le": lambda got, n: got <= n,
}
OPERATORS = {*COMPARISONS, "$has", "$is", "$any"}


class UnknownWord(Exception):
    """A case uses a $name or $operator that does not exist. The case is wrong, not the sidecar."""


def fill_in(value, saved):
    """Returns the value with each $name replaced by its saved value, and each {$long: n} by a text of n letters."""
    if isinstance(value, dict):
        if list(value) == ["$long"]:
            return "a" * value["$long"]
        return {name: fill_in(member, saved) for name, member in value.items()}
    if isinstance(value, list):
        return [fill_in(element, saved) for element in value]
    if isinstance(value, str) and value.startswith("$"):
        if value[1:] not in saved:
            raise UnknownWord(f"nothing was saved as {value}; saved: {', '.join(saved) or 'nothing'}")
        return saved[value[1:]]
    return value


def difference(want, got, at="result"):
    """Returns the difference, or None if got matches."""
    if is_operator(want):
        [(name, argument)] = want.items()
        return difference_by_operator(name, argument, got, at)
    if isinstance(want, dict):
        if not isinstance(got, dict):
            return f"{at} is {got!r}; it must be an object with {', '.join(want)}"
        wrong = (difference(member, got.get(name), f"{at}.{name}") for name, member in want.items())
        return next(filter(None, wrong), None)
    if isinstance(want, list):
        if not isinstance(got, list) or len(got) != len(want):
            return f"{at} is {got!r}; it must be a list of {len(want)}: {want!r}"
        wrong = (difference(w, g, f"{at}[{i}]") for i, (w, g) in enumerate(zip(want, got, strict=True)))
        return next(filter(None, wrong), None)
    return None if same(want, got) else f"{at} is {got!r}; it must be {want!r}"


def is_operator(want):
    """Whether want is an operator with its argument, such as {$gt: 3}."""
    if not isinstance(want, dict) or not any(name.startswith("$") for name in want):
        return False
    if len(want) != 1 or not OPERATORS.issuperset(want):
        raise UnknownWord(f"{want!r}: an operator stands alone, and is one of {', '.join(sorted(OPERATORS))}")
    return True


def difference_by_operator(name, argument, got, at):
    if name == "$any":
        return f"{at} is null or not there" if got is None else None
    if name == "$is":
        return None if same(argument, got) else f"{at} is {got!r}; it must be exactly {argument!r}"
    if name == "$has":
        return None if isinstance(got, str) and argument in got else f"{at} is {got!r}; it must contain {argument!r}"
    number = isinstance(got, (int, float)) and not isinstance(got, bool)
    return None if number and COMPARISONS[name](got, argument) else f"{at} is {got!r}; it must be {name[1:]} {argument!r}"


def same(a, b):
    """Whether two JSON values are equal. Python alone would say that 1 equals true."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[name], b[name]) for name in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    return isinstance(a, bool) == isinstance(b, bool) and a == b
