"""Public functions of fabric and sim refuse what is of no use to them in plain words."""

import inspect
import warnings

import pytest

from farstep import fabric, sim
from farstep.fabric import topology
from farstep.fabric.errors import ConfigError

WRONG = [
    None,
    5,
    -1,
    2.5,
    "x",
    "a\nb",
    b"x",
    [],
    {},
    [1, 2],
    {"a": 1},
    object(),
    float("nan"),
    True,
    (),
    lambda: 0,
]
NOT_CALLED = {"describe_validation_error", "Fault", "NodeKind", "TaskKind"}
"""What takes an error, a union of types, and enumerations, which refuse as Python's do."""


def callables():
    for module in (fabric, topology, sim):
        for name in module.__all__:
            found = getattr(module, name)
            is_error = inspect.isclass(found) and issubclass(found, BaseException)
            if callable(found) and not is_error and name not in NOT_CALLED:
                yield pytest.param(found, id=f"{module.__name__}.{name}")


def required(function) -> int:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 1
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return max(1, sum(each.default is each.empty and each.kind in kinds for each in parameters))


@pytest.fixture(scope="module")
def network():
    return sim.fabric("clos", nics=16, planes=2, radix=8)


def refusal(function, arguments) -> BaseException | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            function(*arguments)
        except (ValueError, TypeError) as error:  # anything else is a fault of ours
            return error
    return None


@pytest.mark.parametrize("function", list(callables()))
def test_wrong_types_are_refused_in_plain_words(function, network, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    count = required(function)
    for value in WRONG:
        rest = [value] * (count - 1)
        for arguments in ([value, *rest], [network, *rest], [*rest, network]):
            said = refusal(function, arguments)
            assert "a\nb" not in str(said), arguments
            if isinstance(said, TypeError):  # Python's own word on how many arguments there are
                assert "argument" in str(said), arguments


def test_a_number_is_no_graph():
    with pytest.raises(ConfigError, match="graph = 5: must be a graph of networkx"):
        topology.from_networkx(5)
