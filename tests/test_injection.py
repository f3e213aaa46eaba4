"""Variables of ReFrame's tests, given by config/session.py."""
from __future__ import annotations

import os
import types

import pytest
import reframe as rfm
from reframe.core.builtins import variable
from reframe.core.variables import VarSpace

from config import session

THEIRS, OURS = session._inject, session.inject
THEIR_CHECK = session._validate_check


def kind():
    """A class with variables of all kinds, and one that inherits them."""
    class Base(rfm.RegressionTestPlugin):
        number = variable(int, value=3)
        words = variable(list, value=[['a'], 'b'])
        nothing = variable(str)
        maybe = variable(int, type(None), value=None)
        size = variable(int, value='7', allow_implicit=True)
        other = variable(alias=number)

    class Check(Base):
        number = 4

    return Check


@pytest.fixture(params=[THEIRS, OURS], ids=['reframe', 'suite'])
def check(request, monkeypatch):
    monkeypatch.setattr(VarSpace, '_inject', request.param)
    return kind()


def test_objects_have_values_of_their_own(check):
    made = [check() for _ in range(3)]
    for one in made:
        assert (one.number, one.other, one.words, one.maybe, one.size) == (
            4, 4, [['a'], 'b'], None, 7)
        with pytest.raises(AttributeError, match='nothing'):
            one.nothing  # noqa: B018
        with pytest.raises(TypeError, match='number'):
            one.number = 'x'
    made[1].words[0].append('c')
    assert made[2].words == check().words == [['a'], 'b']
    made[1].other = 9
    assert (made[1].number, made[2].number, check().number) == (9, 4, 4)


def test_a_later_default_is_that_of_the_next_object(check):
    """As -S sets it, also after the first object."""
    base = check.__mro__[1]
    check(), base(), check()
    check.number = 5
    check.size = '8'
    assert (check().number, check().other, check().size) == (5, 5, 8)
    assert (base().number, base().size) == (3, 7)
    with pytest.raises(TypeError, match='number'):
        check.number = 'x'


def test_the_descriptors_of_a_class_are_made_once(monkeypatch):
    monkeypatch.setattr(VarSpace, '_inject', OURS)
    made = []
    monkeypatch.setattr(session, '_inject', lambda *all: (
        made.append(all), THEIRS(*all)))
    check = kind()
    check(), check(), check.__mro__[1](), check()
    assert len(made) == 2


@pytest.mark.parametrize('validate', [
    session._validate_check, session.validate_check], ids=['reframe', 'suite'])
def test_a_check_that_cannot_be_loaded_is_told(validate, monkeypatch):
    walked = []
    monkeypatch.setattr(session, '_validate_check', lambda self, check: (
        walked.append(check), THEIR_CHECK(self, check))[1])
    loader = types.SimpleNamespace()

    class Check:
        def __init__(self):
            self.valid_systems = self.valid_prog_environs = ['*']

    good, odd, bare = Check(), Check(), Check()
    odd.mine = open(os.devnull)
    del bare.valid_systems
    assert not validate(loader, odd)        # it cannot be copied
    assert validate(loader, good) and validate(loader, Check())
    assert not validate(loader, bare)
    if validate is session.validate_check:
        assert walked == [odd, good, bare]
    odd.mine.close()
