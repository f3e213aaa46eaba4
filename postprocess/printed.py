"""Commands that verdict and page print, so that people can run them as printed."""
from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from config import places


@dataclass(frozen=True)
class PrintedCommands:
    """Commands about the perflogs that were read."""
    #: Folder of the perflogs; '': that of commands without --perflogs.
    perflogs: str = ''
    #: Sites that do not exist, because no program measured their records.
    made_up: frozenset[str] = frozenset()
    #: The site that was selected, as --site takes it; '': that of commands without
    #: --site. All others are known by the names of their systems.
    site: str = ''

    @property
    def _folder(self) -> str:
        """The folder, as a word of a shell; '': commands read it by themselves."""
        folder = Path(self.perflogs).absolute()
        return '' if not self.perflogs or folder == places.perflog_folder() else (
            shlex.quote(str(folder)))

    def _site_option(self, system: str) -> str:
        """The option that selects a site in a command, with a blank before it."""
        folder = places.site_folder_of_name(self.site or places.default_site())
        # Records of a site can be on a machine without its folder.
        is_selected = folder.name == system and (folder / places.SYSTEM).is_file()
        return places.site_option(
            places.site_name_or_path(folder) if is_selected else system)

    def read(self, command: str, system: str, options: str) -> str:
        """A command that reads the perflogs, or adds a decision to them.

        :param command: its name, and its arguments
        :param system: the site; '': all
        """
        return (f'./plumb {command}{self._site_option(system)}'
                + f' --perflogs {self._folder}' * bool(self._folder) + f' {options}')

    def decide(self, action: str, target: str, system: str) -> str:
        """A command that keeps a decision: `verdict` accept, mute or retire."""
        return self.read(f'verdict {action} {target}', system,
                         '--until DATE ' * (action == 'mute') + '--reason TEXT')

    def measure(self, command: str, system: str, options: str = '') -> str:
        """A command that measures on a site; '': the site does not exist."""
        if system in self.made_up:
            return ''
        return (f'PLUMBLINE_PERFLOGS={self._folder} ' * bool(self._folder)
                + f'./plumb {command}{self._site_option(system)} {options}'.rstrip())

    def measure_again(self, systems: Iterable[str]) -> str:
        """The commands that measure test cases of sites again: those that did not run,
        and those of which a single session cannot decide. '': no site exists."""
        return '; '.join(filter(None, (
            self.measure('run', system, '--suspects')
            for system in sorted({*systems}, key=self._site_option))))
