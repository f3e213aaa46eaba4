"""Reading the checks: what ReFrame would do in vain is left out.

Most of the CPU time of a short session is that of making tests: a site with
GPUs has thousands of them, and of `-n NAME` ReFrame looks at the names of
tests that it has made, at their hashes, too. Both follow from a test's class
and its parameters alone, so what the command line does not ask for is never
made. What is made has the hooks of its class, attached once, and a class the
descriptors of the variables that it inherits.
"""
from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from reframe.core.decorators import TestRegistry
from reframe.core.exceptions import ReframeError
from reframe.core.fields import DeprecatedField
from reframe.core.pipeline import RegressionTest
from reframe.core.variables import TestVar
from reframe.frontend import filters
from reframe.frontend.argparse import _Namespace
from reframe.frontend.loader import RegressionCheckLoader

_new = RegressionTest.__new__
_instantiate_all = TestRegistry.instantiate_all
_update_config = _Namespace.update_config

#: Variable with a file of the cases to which a session is restricted: a list
#: of [partition, environment, hash] in JSON.
ONLY = 'PLUMBLINE_ONLY'

#: Options of ReFrame's command line, once they are known.
_options: Any = None


def only() -> set[tuple[str, str, str]] | None:
    """The cases that $PLUMBLINE_ONLY names; None: any."""
    path = os.environ.get(ONLY)
    if not path:
        return None
    return {(place, environ, code) for place, environ, code in json.loads(
        Path(path).read_text())}


def shell(test: Any, number: int) -> Any:
    """A test that was not made: ReFrame knows its name and its hash.

    :param test: its class
    :param number: of the variant, among the combinations of its parameters
    """
    found = object.__new__(test)
    vars(found).update(_rfm_variant_num=number,
                       _rfm_unique_name=test.variant_name(number))
    return found


def asked() -> list[Callable[[Any], Any]]:
    """ReFrame's own filters for -x and -n, and one for $PLUMBLINE_ONLY: each
    takes a case, of which it sees name and hash."""
    found: list[Callable[[Any], Any]] = []
    if _options is not None:
        try:
            found += map(filters.have_not_name, _options.exclude_names)
            if _options.names:
                found.append(filters.have_any_name(_options.names))
        except ReframeError:
            return []           # no regular expression: ReFrame tells
    named = only()
    if named is not None:
        hashes = {code for _, _, code in named}
        found.append(lambda case: case.check.hashcode in hashes)
    return found


def instantiate_all(self: Any, *args: Any, **more: Any) -> Any:
    """ReFrame's, for the benchmarks that the command line asks for.

    Others' tests are all made: one may depend on another. Benchmarks of the
    suite depend on their fixtures alone.
    """
    wanted = asked()
    for test, variants in self._tests.items() if wanted else ():
        if hasattr(test, 'params'):
            variants[:] = [(words, given) for words, given in variants if all(
                one(SimpleNamespace(check=shell(test, given['variant_num'])))
                for one in wanted)]
    return _instantiate_all(self, *args, **more)


def update_config(self: Any, site_config: Any) -> Any:
    """ReFrame's; notes the options, of a mode as well."""
    global _options
    _options = self
    return _update_config(self, site_config)


def new(test: Any, *args: Any, **more: Any) -> Any:
    """ReFrame's, which with each test sorts the hooks of its class and wraps
    all stages of the pipeline anew, always the same."""
    if '_rfm_pipeline_hooks' not in vars(test):
        return _new(test, *args, **more)
    made = object.__new__(test)
    made._RegressionTest__deferred_rfm_init = made.__rfm_init__()
    return made


#: What of a variable no other class changes.
_SHARED = ('_owner', '_name', '_loggable', '_merge_fn')


def copied(self: TestVar, memo: dict[int, Any]) -> TestVar:
    """A copy of a variable, for a class that inherits it.

    ReFrame copies all that the variable refers to, the descriptor and the
    types that it checks, too, which never change: each class of a check took
    a millisecond, and each session has eighty.
    """
    made = memo[id(self)] = object.__new__(type(self))
    for name in TestVar.__slots__:
        slot = vars(TestVar)[name]
        try:
            value = slot.__get__(self)
        except AttributeError:          # no name yet
            continue
        if name not in _SHARED and not (
                name == '_p_field'
                and not isinstance(value, DeprecatedField)):
            value = copy.deepcopy(value, memo)
        slot.__set__(made, value)
    return made


def validate_source(self: RegressionCheckLoader, filename: str) -> bool:
    """Whether a file may have tests: only the decorator makes one known.

    ReFrame parses each file of a folder to see it, and compiles those that
    have tests once more.
    """
    return b'simple_test' in Path(filename).read_bytes()


def install() -> None:
    """Puts these in the place of ReFrame's."""
    RegressionTest.__new__ = staticmethod(new)
    TestRegistry.instantiate_all = instantiate_all
    _Namespace.update_config = update_config
    TestVar.__deepcopy__ = copied
    RegressionCheckLoader._validate_source = validate_source
