"""Files are written completely or not at all, also through links and to devices."""
from __future__ import annotations

import os
import subprocess

import pytest

from config import regular


def test_all_files_are_written_or_none(tmp_path):
    regular.write_files_atomically(tmp_path, {'a': b'1', 'b/c': b'2'})
    (tmp_path / 'folder').mkdir()
    with pytest.raises(OSError):
        regular.write_files_atomically(tmp_path, {'a': b'3', 'a/below': b'4'})
    assert (tmp_path / 'a').read_bytes() == b'1'
    assert (tmp_path / 'b' / 'c').read_bytes() == b'2'
    assert not [*tmp_path.rglob('*.part')]


def test_links_devices_and_fifos_are_not_replaced(tmp_path):
    (tmp_path / 'link').symlink_to(tmp_path / 'file')
    (tmp_path / 'null').symlink_to(os.devnull)
    os.mkfifo(tmp_path / 'fifo')
    with subprocess.Popen(['cat', tmp_path / 'fifo'], stdout=subprocess.PIPE,
                          text=True) as reader:
        regular.write_files_atomically(
            tmp_path, {name: b'x' for name in ('link', 'null', 'fifo')})
        assert reader.communicate()[0] == 'x'
    regular.write_file_atomically(tmp_path / 'null', 'x')
    assert (tmp_path / 'null').is_char_device() and (tmp_path / 'fifo').is_fifo()
    assert (tmp_path / 'link').is_symlink() and (tmp_path / 'file').read_text() == 'x'
