"""What ReFrame's record has of a test case, beside its values.

ReFrame writes each loggable variable and property of a check into its report and its
rows (config/perflog.yaml). A loggable property must never raise: ReFrame would lose
the whole report.
"""
from __future__ import annotations

import dataclasses
import functools
import secrets
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import reframe as rfm
from reframe.core.builtins import loggable_as, run_after, run_before, variable
from reframe.core.exceptions import PerformanceError, ReframeError
from reframe.core.fields import make_convertible, remove_convertible

from config import places
from config.records import attached, samples
from config.records.columns import text_for_row
from config.records.identity import test_case_id
from config.sessions import session_id
from config.sites import topology
from config.version import VERSION, suite_commit

from .options import split_options

if TYPE_CHECKING:
    class Plugin(rfm.RegressionTestPlugin):
        """Attributes that ReFrame's metaclass adds to a class, for mypy."""

        executable: str
        executable_opts: list[str]
        keep_files: list[str]
        prerun_cmds: list[str]

        def __init_subclass__(cls, special: bool = False) -> None: ...
else:
    Plugin = rfm.RegressionTestPlugin


def recorded_as(name: str) -> Callable[[Callable[[Any], str]], Any]:
    """Make a property that ReFrame records under a name."""
    return lambda function: loggable_as(name)(property(function))


class RowText(str):
    """A text of a row: whatever is assigned loses what would shift the columns."""

    def __new__(cls, text: object = '') -> RowText:
        """The text of any object, in a form that a row can hold."""
        return super().__new__(cls, text_for_row(text))


def row_text_variable() -> Any:
    """A variable of a check with a text of a program or a node, for the record."""
    return variable(RowText, value=RowText(), allow_implicit=True)


def joined_reasons(reasons: Iterable[str]) -> str:
    """Several reasons as one text of a row, each once."""
    return text_for_row('; '.join(dict.fromkeys(filter(None, reasons))))


def setting_text(value: Any) -> str:
    """The value of a variable, as -S takes it."""
    if isinstance(value, Mapping):
        return ','.join(f'{key}:{one}' for key, one in value.items())
    return ','.join(map(str, value)) if isinstance(value, list) else str(value)


#: Type of the value that -S gives to a variable.
_GIVEN = type(make_convertible(''))


def _set(cls: Any, name: str, value: Any) -> bool:
    """ReFrame's own function, a method of the class of classes."""
    return bool(type(cls).setvar(cls, name, value))


class Checked(Plugin):
    """Refuses -S of variables that are no settings, and of wrong values.

    ReFrame would set any variable, also those that decide whether a test case passes,
    and ends with a traceback if a value has the wrong type.
    """

    #: Variables of a class, and of its base classes, that -S cannot set. These are
    #: ReFrame's, and decide what runs or whether it passes.
    INTERNAL: ClassVar[frozenset[str]] = frozenset({
        'strict_check', 'require_reference', 'reference', 'sanity_patterns',
        'perf_patterns', 'perf_variables', 'executable', 'executable_opts',
        'prerun_cmds', 'postrun_cmds'})

    #: Of the settings `options` and `client_options`: options of the program, and of
    #: clients, that decide what passes -> what to use instead.
    REFUSED: ClassVar[Mapping[str, str]] = {}
    REFUSED_OF_CLIENTS: ClassVar[Mapping[str, str]] = {}
    #: Letters of the program's short options without a value.
    FLAGS: ClassVar[str] = ''

    #: Smallest value of a setting with a number, where it is not 0.
    SMALLEST: ClassVar[Mapping[str, float]] = {'repetitions': 1, 'node_counts': 1}

    @classmethod
    @functools.cache
    def loggable_attrs(cls) -> list[tuple[str, str | None]]:
        """Names of what ReFrame records, with the names in the record.

        Without `variables`, a deprecated alias of `env_vars`: ReFrame looks for its
        user on the stack whenever it is read, which is for each value and took more
        time than the rest of a row.
        """
        meta: Any = type(cls)
        return [(name, other) for name, other in meta.loggable_attrs(cls)
                if name != 'variables']

    @classmethod
    def setvar(cls, name: str, value: Any) -> bool:
        """Set a variable; ReFrame calls this for -S, and for assignments in classes.

        :raises ReframeError: -S names a variable that is no setting, or has a value of
            the wrong type or out of range
        """
        if not isinstance(value, _GIVEN):
            return _set(cls, name, value)
        option = f'-S {cls.__name__}.{name}={remove_convertible(value)}'
        if any(name in one.__dict__.get('INTERNAL', ()) for one in cls.__mro__):
            raise ReframeError(f'{option}: {name} is not a setting of {cls.__name__}; '
                               'the family\'s page of the documentation lists them')
        try:
            done = _set(cls, name, value)
        except (TypeError, ValueError) as err:
            raise ReframeError(f'{option}: the value cannot be used: {err}') from None
        given = cls.var_space[name].default_value if done else None
        if isinstance(given, str) and name in ('options', 'client_options'):
            refused = ((cls.REFUSED, cls.FLAGS) if name == 'options' else
                       (cls.REFUSED_OF_CLIENTS, ''))
            try:
                split_options(given, name, *refused)
            except ValueError as err:
                raise ReframeError(f'{option}: {err}') from None
        smallest = cls.SMALLEST.get(name, 0)
        for one in given if isinstance(given, list) else [given]:
            if isinstance(one, int | float) and one < smallest:
                raise ReframeError(f'{option}: {one} is too small; the smallest value '
                                   f'is {smallest}')
        return done


class Recorded(Checked):
    """Identity, place and provenance of a test case in ReFrame's record."""

    #: Variables that make another test case: name -> declared default. (ReFrame
    #: forgets the default of a variable that -S sets.)
    SETTINGS: ClassVar[Mapping[str, Any]] = {}

    INTERNAL: ClassVar[frozenset[str]] = frozenset({
        'session', 'measurement', 'number_of_values', 'version', 'source', 'spec',
        'stack', 'machine', 'binding', 'gpus', 'no_reference'})

    #: Identifier of the session.
    session = variable(str, value='')

    #: Identifier of this measurement; a retry gets another one.
    measurement = variable(str, value='')

    #: Values of this measurement. With fewer rows, it was cut short.
    number_of_values = variable(int, value=0)

    #: Version of the program, from its own output.
    version = row_text_variable()

    #: Origin of the program: spack, module, system, wheel, embedded.
    source = row_text_variable()

    #: Spack hash of the program, empty otherwise.
    spec = row_text_variable()

    #: The MPI or stack that the program was built with.
    stack = row_text_variable()

    #: Names of the files of facts of the job's nodes.
    machine = row_text_variable()

    #: CPUs that the ranks of each node really had, `n1:0,1 n2:0,1`.
    binding = row_text_variable()

    #: PCI addresses of the GPUs of all ranks; empty: not known.
    gpus = row_text_variable()

    #: Note for the summary: why nothing was compared, whose references were
    #: used, which values have no tolerance or are far better than expected.
    no_reference = row_text_variable()

    #: Text of each file of facts, by name.
    facts_files: dict[str, str] = {}

    #: Nodes of the ranks, as they reported them.
    rank_nodes: tuple[str, ...] = ()

    @run_after('init')
    def set_session(self) -> None:
        """Set the id of the session, and start without reasons for inconclusive values
        and without unchecked conditions."""
        self.session = session_id.current_session_id()
        self.inconclusive_reasons: list[str] = []
        self.unchecked: list[str] = []

    @run_before('setup')
    def begin_measurement(self) -> None:
        """Give each measurement, retries included, a random id of its own."""
        self.measurement = secrets.token_hex(6)

    @recorded_as('family')
    def family_text(self) -> str:
        """Benchmark family of the check."""
        return self.family

    @recorded_as('program')
    def program_text(self) -> str:
        """Program that is measured; empty if the check names none."""
        return text_for_row(getattr(self, 'program', ''))

    @recorded_as('check_name')
    def check_class(self) -> str:
        """Name of the check class, without parameters."""
        return type(self).variant_name()

    @recorded_as('params')
    def params(self) -> str:
        """All parameters of the check, as `name=value name=value`."""
        own: dict[str, Any] = {}
        for name in sorted(type(self).raw_params):
            value = getattr(self, name)
            if dataclasses.is_dataclass(type(value)):
                own |= dataclasses.asdict(value)
            elif not name.startswith('.'):      # -P, --repeat, --distribute
                own[name] = type(self).raw_params[name].format(value)
        return text_for_row(' '.join(f'{k}={str(v).replace(" ", "_")}'
                                     for k, v in own.items()))

    @recorded_as('settings')
    def changed_settings(self) -> str:
        """The settings that make it another test case, `name=value name=value`."""
        return text_for_row(' '.join(
            f'{name}={setting_text(value)}' for name, default in self.SETTINGS.items()
            if (value := getattr(self, name)) != default))

    @recorded_as('test_case')
    def test_case(self) -> str:
        """Short id of the test case; '' before its setup."""
        part, environ = self.current_partition, self.current_environ
        if part is None or environ is None:
            return ''
        return test_case_id(self.current_system.name, part.name, environ.name,
                            self.check_class, self.params, self.changed_settings)

    @recorded_as('nodes')
    def nodes_text(self) -> str:
        """Nodes of the job, as one folded text."""
        # A local scheduler lists only the node of the script.
        listed = getattr(self.job, 'nodelist', None) or ()
        nodes = listed if len(listed) >= len(self.rank_nodes) else self.rank_nodes
        return text_for_row(topology.record_of_nodes(nodes))

    @recorded_as('inconclusive')
    def inconclusive(self) -> str:
        """Reasons why sound values must not be compared with references, such as
        oversubscription; empty: they may be compared."""
        return joined_reasons(self.inconclusive_reasons)

    @recorded_as('not_checked')
    def not_checked(self) -> str:
        """What could not be checked."""
        return joined_reasons(self.unchecked)

    @recorded_as('suite')
    def suite_version(self) -> str:
        """Version of Plumbline."""
        return VERSION

    @recorded_as('commit')
    def commit_text(self) -> str:
        """Git commit of the suite's checkout."""
        return suite_commit()

    @recorded_as('reframe_version')
    def reframe_version(self) -> str:
        """Version of ReFrame that runs the session."""
        return rfm.VERSION

    @property
    def attached_files(self) -> dict[str, str]:
        """Texts of files that are kept beside the rows, by path."""
        return {}

    # Last: hooks of families set what the files have.
    @run_before('performance', always_last=True)
    def save_attached_files(self) -> None:
        """Save `attached_files` in the folder of the measurement, and remove old
        samples of the test case; a dry run saves nothing.

        :raises PerformanceError: the folder cannot be written
        """
        if self.is_dry_run():
            return
        files, texts = places.perflog_folder() / 'files', self.attached_files
        try:
            attached.save_files(files / self.session / self.measurement, texts)
            if samples.file_name(self.test_case) in texts:
                samples.remove_old_samples(files, self.test_case)
        except OSError as err:
            raise PerformanceError(
                f'disk: cannot write to {files} ({err.strerror}); check '
                'the disk and the permissions, or set PLUMBLINE_PERFLOGS to another '
                'folder') from None

    def save_machine_facts(self) -> None:
        """Save the facts of the job's nodes beside the rows of the system."""
        folder = Path(places.perflog_folder(), self.current_system.name, 'machines')
        attached.save_files_if_absent(folder, self.facts_files)
