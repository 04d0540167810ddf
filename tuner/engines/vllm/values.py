"""Tell whether two values are the same argument to vLLM. Pure."""


def same(one: object, other: object) -> bool:
    """Whether two values are equal in type too: 1, 1.0 and true differ, as they do in JSON."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict) and isinstance(other, dict):
        ours, theirs = ({(type(key), key): value for key, value in d.items()} for d in (one, other))
        return ours.keys() == theirs.keys() and all(same(ours[key], theirs[key]) for key in ours)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return repr(one) == repr(other)  # NaN is NaN
