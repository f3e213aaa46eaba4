"""The site's configuration for a session inside one allocation of Slurm or PBS.

ReFrame reads this file instead of the site's system.py: `plumb run --inside`, or
`reframe -C config/inside.py`.
"""
import os
import sys

# A ReFrame that was not installed by `plumb` does not find the suite.
sys.path.append(os.path.abspath(f'{__file__}/../..'))

from config.sites import allocation

site_configuration = allocation.site_configuration_inside()
