"""The short names of test cases are unique, short and without a gap."""
from __future__ import annotations

from conftest import ROOT, each

from postprocess.names import WIDTH, short_name


def lines_of_sites() -> list[tuple[str, str]]:
    """Check and parameters of each line of all cases.txt."""
    return [tuple(line.split(' ', 1)) for path in ROOT.glob('site-configs/*/cases.txt')
            for line in path.read_text().splitlines()
            if line and line[0] not in '#[' and ' ' in line]


@each(lines_of_sites()[::17])
def test_names_of_real_test_cases_fit(check, params):
    name = short_name(check, params, '', 'abcdef12')
    assert len(name) <= WIDTH and name.endswith(' abcdef12')
    assert '  ' not in name and '=,' not in name


def test_a_name_that_is_cut_has_a_mark():
    params = ' '.join(f'part{n}=value{n}' for n in range(20))
    name = short_name('Copy', params, '', 'c0ffee')
    assert len(name) == WIDTH and '… c0ffee' in name


def test_a_parameter_without_a_text_is_no_word():
    assert short_name('Copy', 'network= tls=False deep=True', '', '1') == 'Copy deep 1'
