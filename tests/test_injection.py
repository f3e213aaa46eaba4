"""Which tests ReFrame makes, and their variables and hooks."""
from __future__ import annotations

import copy
import os
import types

import pytest
import reframe as rfm
from reframe.core import decorators, runtime, variables
from reframe.core.builtins import deprecate, parameter, run_after, variable
from reframe.core.pipeline import RegressionTest
from reframe.core.variables import VarSpace
from reframe.frontend import filters

from config import loading, session

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
    if request.param is OURS:
        monkeypatch.setattr(variables.TestVar, '__deepcopy__', loading.copied,
                            raising=False)
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


# What is made at all ---------------------------------------------------------

@pytest.fixture
def named(monkeypatch):
    """A class of four benchmarks, and a registry that has them."""
    monkeypatch.setattr(runtime, 'runtime', lambda: types.SimpleNamespace(
        get_option=lambda *_: None,
        system=types.SimpleNamespace(name='here', partitions=[])))
    monkeypatch.setattr(loading, '_options', None)
    monkeypatch.delenv(loading.ONLY, raising=False)

    class Named(rfm.RunOnlyRegressionTest):
        size = parameter([1, 2])
        how = parameter([('a', 1), ('b c', 2)], fmt=lambda how: how[0])
        params = ''

        @run_after('init')
        def note(self):
            self.descr = f'{self.size} {self.how[1]}'

    Named.registry = decorators.TestRegistry()
    for number in range(Named.num_variants):
        Named.registry.add(Named, variant_num=number)
    return Named


def test_name_and_hash_are_known_of_a_test_that_was_not_made(named):
    for number in range(4):
        made, told = named(variant_num=number), loading.shell(named, number)
        for name in ('display_name', 'hashcode', 'unique_name',
                     'variant_num'):
            assert getattr(told, name) == getattr(made, name), name
        assert 'descr' not in vars(told)


@pytest.mark.parametrize('names, excluded, left', [
    (['Named'], [], 4), (['size=1'], [], 2), (['how=bc', 'size=1'], [], 3),
    (['Named@3'], [], 1), (['Nam@3'], [], 0), (['/CODE'], [], 1),
    ([], ['size=2'], 2), (['Named'], ['size=2', 'how=a'], 1),
    ([], ['/CODE'], 3), (['nosuch'], [], 0), ([], [], 4)])
def test_only_what_is_asked_for_is_made(named, monkeypatch, names, excluded,
                                        left):
    everything = [types.SimpleNamespace(check=named(variant_num=number))
                  for number in range(4)]
    code = everything[2].check.hashcode
    names, excluded = ([one.replace('CODE', code) for one in some]
                       for some in (names, excluded))
    monkeypatch.setattr(loading, '_options', types.SimpleNamespace(
        names=names, exclude_names=excluded))
    made = loading.instantiate_all(named.registry)
    assert len(made) == left
    # What ReFrame would keep of all.
    kept = [case.check.hashcode for case in everything
            if all(filters.have_not_name(one)(case) for one in excluded)
            and (not names or filters.have_any_name(names)(case))]
    assert [one.hashcode for one in made] == kept


def test_tests_of_others_are_all_made(named, monkeypatch):
    """One may depend on another."""
    monkeypatch.setattr(loading, '_options', types.SimpleNamespace(
        names=['nosuch'], exclude_names=[]))

    class Other(rfm.RunOnlyRegressionTest):
        pass

    named.registry.add(Other, variant_num=0)
    made, = loading.instantiate_all(named.registry)
    assert type(made) is Other


def test_a_broken_expression_is_for_reframe_to_tell(named, monkeypatch):
    monkeypatch.setattr(loading, '_options', types.SimpleNamespace(
        names=['('], exclude_names=[]))
    assert len(loading.instantiate_all(named.registry)) == 4


def test_a_session_of_few_cases_makes_only_those(named, monkeypatch,
                                                 tmp_path):
    code = loading.shell(named, 2).hashcode
    (tmp_path / 'only').write_text(f'[["thishost", "gnu", "{code}"]]')
    monkeypatch.setenv(loading.ONLY, str(tmp_path / 'only'))
    made, = loading.instantiate_all(named.registry)
    assert made.hashcode == code


def test_the_hooks_of_a_class_are_attached_once(named, monkeypatch):
    monkeypatch.setattr(RegressionTest, '__new__',
                        staticmethod(loading.new))

    class Child(named):
        @run_after('init')
        def more(self):
            self.descr += ' more'

    for kind, words in ((named, '1 1'), (Child, '1 1 more')):
        assert kind(variant_num=0).descr == words
        stage = kind._rfm_pipeline_fn_setup
        again = kind(variant_num=3)
        assert again.descr == words.replace('1', '2')
        assert copy.deepcopy(again).descr == again.descr
        assert kind._rfm_pipeline_fn_setup is stage


def test_a_class_shares_what_its_variables_never_change(monkeypatch):
    monkeypatch.setattr(variables.TestVar, '__deepcopy__', loading.copied,
                        raising=False)

    class Old(rfm.RegressionTestPlugin):
        number = variable(int, value=3)
        former = deprecate(variable(int, value=1), 'say number')

    class New(Old):
        words = variable(list, value=[])

    class Newest(New):
        pass

    old, new, newest = (one.var_space for one in (Old, New, Newest))
    assert old['number'] is not new['number']
    assert old['number'].field is newest['number'].field
    # Its target is set anew where it is an alias.
    assert old['former'].field is not new['former'].field
    Newest.words = ['a']
    assert new['words'].default_value == []
    assert (newest['words'].name, newest['words'].owner) == (
        new['words'].name, new['words'].owner)


def test_only_files_with_the_decorator_are_imported(suite):
    folder = suite.tmp / 'mine'
    folder.mkdir()
    (folder / 'helper.py').write_text('import reframe\n1 / 0\n')
    (folder / 'broken.py').write_text('no Python\n')
    (folder / 'mine.py').write_text(
        'from reframe.core.builtins import *\n'
        'from reframe.core.pipeline import RunOnlyRegressionTest\n'
        'from reframe.core.decorators import simple_test\n\n@simple_test\n'
        'class Mine(RunOnlyRegressionTest):\n'
        "    valid_systems = valid_prog_environs = ['*']\n")
    done = suite.reframe('-c', str(folder), '-l')
    assert '- Mine /' in done.stdout and 'Found 1 check(s)' in done.stdout
    assert 'skipping' not in done.stdout + done.stderr
    (folder / 'mine.py').write_text('import reframe\nsimple_test(\n')
    done = suite.reframe('-c', str(folder), '-l')
    assert done.returncode and 'mine.py", line 2' in done.stdout + done.stderr
