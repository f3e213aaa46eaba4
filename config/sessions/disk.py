"""Failures because of a full disk, in one line."""
from __future__ import annotations

import errno
import os

#: Errors of a file system without space for this user.
FULL = (errno.ENOSPC, errno.EDQUOT)


def full_disk_text(text: str, folder: object) -> str:
    """The cause of a failure if it is a full disk; '': it is not.

    :param text: ReFrame's reason; it lists every file that could not be copied
    :param folder: stage directory of the test case
    """
    for number in FULL:
        if f'[Errno {number}]' in text:
            return (f'disk: the disk of {folder} is full ({os.strerror(number)}): '
                    "free space, or set another (the site's stagedir, --prefix)")
    return ''
