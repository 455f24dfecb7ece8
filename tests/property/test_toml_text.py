import json
import tomllib

from hypothesis import given
from hypothesis import strategies as st

from farstep.observe.toml_text import toml_text

SCALARS = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
)
KEYS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=3)),
    max_leaves=8,
)


@given(st.dictionaries(KEYS, VALUES, max_size=4))
def test_what_is_written_is_read_again(table: dict) -> None:
    assert json.dumps(tomllib.loads(toml_text(table))) == json.dumps(_plain_first(table))


def _plain_first(table: dict) -> dict:
    """Sections come last in a file."""
    is_section = {
        key: isinstance(value, dict)
        or (isinstance(value, list) and value and all(isinstance(v, dict) for v in value))
        for key, value in table.items()
    }
    return {key: table[key] for want in (False, True) for key in table if bool(is_section[key]) is want}


def test_a_scenario_looks_as_one_would_write_it() -> None:
    table = {
        "fabric": {"kind": "clos", "nics": 64, "radix": None},
        "workload": [{"kind": "permutation", "size_bytes": 4_000_000}],
        "faults": [],
        "run": {"sample_interval_us": 2.0},
    }
    assert toml_text(table) == (
        'faults = []\n\n[fabric]\nkind = "clos"\nnics = 64\n\n[[workload]]\nkind = "permutation"\n'
        "size_bytes = 4_000_000\n\n[run]\nsample_interval_us = 2.0\n"
    )
