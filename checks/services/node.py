#!/usr/bin/env python3
"""The program of the suite on the nodes of a job with servers.

The job script (:mod:`.script`) calls it:

    node.py serve  [--NAME VALUE]... -- SERVER...   until SIGUSR1 (:mod:`.server`)
    node.py client [--NAME VALUE]... -- CLIENT...   becomes the client (:mod:`.client`)
    node.py counters|saved|cluster ...              asks servers (:mod:`.ask`)

A failure is one line on standard output, `failed: TEXT` of a server or a client.
"""
from __future__ import annotations

import errno
import os
import sys

if __name__ == '__main__':              # the suite is not on the path
    sys.path[0] = os.path.abspath(f'{os.path.dirname(__file__)}/../..')

from checks.services import Failed


def main(action: str, words: list[str]) -> int:
    """Do what the command line says; see the head of this file.

    :returns: the exit code.
    """
    try:
        if action not in ('serve', 'client'):
            from checks.services import ask
            return ask.ask_servers(action, *words)
        place = words.index('--')
        options = {name.removeprefix('--'): value for name, value in
                   zip(words[:place:2], words[1:place:2], strict=True)}
        if action == 'client':
            from checks.services import client
            return client.become_client(options, words[place + 1:])
        from checks.services import server
        return server.serve(options, words[place + 1:])
    except (Failed, ValueError) as err:
        text = str(err)
    except OSError as err:
        text = (f'the disk of {err.filename or os.getcwd()} on {os.uname().nodename} '
                f'is full ({err.strerror}): free space there'
                if err.errno in (errno.ENOSPC, errno.EDQUOT) else
                f'{action} on {os.uname().nodename}: {type(err).__name__}: {err}')
    print('failed: ' * (action in ('serve', 'client')) + text, flush=True)
    return 1


if __name__ == '__main__':
    sys.exit(main(sys.argv[1], sys.argv[2:]))
